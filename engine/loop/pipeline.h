/* One loaded checkpoint and the way from prompt to picture, in the caller's thread.
 *
 * resolve -> text_encoder -> unet (n times) -> scheduler step -> vae. The command line draws one
 * request after the other (pipeline_generate); the daemon's engine thread (engine/loop/engine.h)
 * draws all of them at once in the pipeline's studio. */
#ifndef ENGINE_LOOP_PIPELINE_H
#define ENGINE_LOOP_PIPELINE_H

#include "base/choice.h"
#include "engine/adapters/adapters.h"
#include "engine/drawing/studio.h"
#include "kernels/devices.h"
#include "models/checkpoint/checkpoint.h"

struct pipeline;

struct pipeline_options {
    const char *model_path;    /* a diffusers folder or a single file */
    const char *tokenizer_dir; /* NULL: the checkpoint's own */
    struct device_choice device;
    struct dtype_choice dtype; /* of the weights */
    struct adapters_options adapters;
    /* The registry of another pipeline, which this one shares until pipeline_take_adapters makes it
     * its own. `kernels` is then that pipeline's opened device. NULL: this pipeline makes its
     * own. */
    struct adapters *registry;
    const struct kernels *kernels;
    /* Defaults of the served requests, which replace the checkpoint's own
     * (engine/request/defaults.h). Borrowed; NULL: none. */
    const struct generate_request *defaults;
    const char *embeddings_dir; /* textual inversions; NULL: none */
    bool no_recordings; /* launch every operation separately, even if steps could be replayed */
    bool one_at_a_time; /* studio_set_one_at_a_time */
    int max_batch_rows; /* of a UNet call, 1..UNET_CALL_MAX_ROWS; 0: as many as the device gains
                           from */
    /* CHOICE_AUTO: used if the checkpoint has one; CHOICE_ON: the checkpoint must have one. */
    enum choice safety_checker;
    /* For requests that leave it open; CHOICE_AUTO: tiles if there is no memory for the whole
     * picture. */
    enum choice vae_tiling;
    /* Called before the weights are read, once the device, the dtype and the checkpoint's headers
     * were found valid. May be NULL. */
    void (*opened)(void *user);
    /* Called after each loaded tensor with the fraction loaded, 0 to 1. Return false to stop with
     * ERROR_CANCELLED. May be NULL. */
    bool (*loading)(double fraction, void *user);
    void *user;
};

/* The device memory that a checkpoint will take, estimated from its files' headers. */
struct pipeline_size {
    size_t weights;
    size_t activations; /* those of `like`, scaled by the default picture sizes of the two */
};
/* Measures a checkpoint without loading it. Also checks the name and shape of every tensor, so a
 * broken checkpoint, or something else, is detected. `like` is a loaded checkpoint. */
struct pipeline_info;
bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) __attribute__((warn_unused_result));

bool pipeline_create(const struct pipeline_options *options, struct pipeline **out,
    struct error *err) __attribute__((warn_unused_result));
void pipeline_destroy(struct pipeline *pipeline); /* NULL is fine */

/* What the caller may know about a pipeline. */
struct pipeline_info {
    const char *model_name;        /* the engine's name for it, or NULL; borrowed */
    const char *model_path;        /* borrowed */
    const struct kernels *kernels; /* the device's */
    struct unet *unet;             /* the UNet in use, to be read only; borrowed */
    const char *device;            /* "cpu", "cuda:0" */
    enum dtype dtype, activation_dtype;
    const struct implementation *implementations; /* struct kernels', or NULL */
    int default_width, default_height;            /* px */
    int max_tokens;                               /* 77 */
    bool checks_safety;            /* pictures go through the checkpoint's safety checker */
    bool inpaints;                 /* its UNet has 9 channels: it needs a picture and a mask */
    int max_batch_rows;            /* of a UNet call, for small pictures; large ones have fewer */
    const char *default_scheduler; /* "pndm"; NULL if the checkpoint names none that we have */
    const char *prediction_type;
    const json_t *scheduler_json; /* the checkpoint's, for scheduler_config_resolve; borrowed */
    const json_t
        *defaults; /* of fields that a request leaves out (generate_defaults_json); borrowed */
    double load_s;
    int64_t weight_bytes, activation_bytes; /* activations: of a picture of the default size */
};
void pipeline_get_info(const struct pipeline *pipeline, struct pipeline_info *out);
/* Memory and utilisation of its device now. Returns false if the device has no figures (the CPU).
 * Any thread. */
bool pipeline_get_figures(const struct pipeline *pipeline, struct device_figures *out);

/* Its adapters; any thread may use them until the pipeline is destroyed. */
struct adapters *pipeline_get_adapters(const struct pipeline *pipeline);
/* Makes the registry that the pipeline was created with its own (adapters_rebase, which calls
 * `switched`); the pipeline that had it before loses it. Waits. */
void pipeline_take_adapters(struct pipeline *pipeline, void (*switched)(void *user), void *user);

/* Its textual inversions; any thread may use them until the pipeline is destroyed. */
struct embeddings *pipeline_get_embeddings(const struct pipeline *pipeline);

/* Does what resolve_request does. Any thread; *out may be used until the pipeline is destroyed. */
bool pipeline_resolve(const struct pipeline *pipeline, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));

/* The studio in which requests are drawn. Owned by the pipeline; only the engine thread uses it. */
struct studio *pipeline_studio(struct pipeline *pipeline);

/* Does what studio_generate does. Not re-entrant: one thread at a time. */
bool pipeline_generate(struct pipeline *pipeline, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

/* Resolves the request and tells the device's tuner every operation of it, without drawing and
 * without taking the memory for it. */
bool pipeline_note(struct pipeline *pipeline, const struct generate_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
