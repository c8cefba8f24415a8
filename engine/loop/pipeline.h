/* One loaded checkpoint, with everything that draws a picture from a prompt. Drawing runs on the
 * caller's thread:
 *
 * resolve -> text_encoder -> unet (n times) -> scheduler step -> vae. The command line draws one
 * request after the other (pipeline_generate); the daemon's engine thread (engine/loop/engine.h)
 * draws all of them at once in the pipeline's studio. */
#ifndef ENGINE_LOOP_PIPELINE_H
#define ENGINE_LOOP_PIPELINE_H

#include "base/choice.h"
#include "engine/adapters/adapters.h"
#include "engine/drawing/studio.h"
#include "engine/prompts/texts.h"
#include "kernels/devices.h"
#include "models/checkpoint/checkpoint.h"

struct pipeline;

struct pipeline_options {
    const char *model_path;    /* a diffusers folder or a single file */
    const char *tokenizer_dir; /* NULL: use the checkpoint's own tokenizer */
    struct device_choice device;
    struct dtype_choice dtype; /* of the weights */
    struct adapters_options adapters;
    /* NULL: the pipeline makes a registry of its own. Otherwise the registry of another pipeline:
     * this one shares it until pipeline_take_adapters takes it over, and `kernels` is the other
     * pipeline's opened device. */
    struct adapters *registry;
    const struct kernels *kernels;
    /* Defaults of the served requests, which replace the checkpoint's own
     * (engine/request/defaults.h). Borrowed; NULL: none. */
    const struct generate_request *defaults;
    const char *embeddings_dir; /* textual inversions; NULL: none */
    bool no_recordings;         /* launch every operation separately: record and replay no steps */
    bool one_at_a_time;         /* studio_set_one_at_a_time */
    int max_batch_rows; /* of a UNet call, 1..UNET_CALL_MAX_ROWS; 0: as many as the device gains
                           from */
    /* CHOICE_AUTO: use a checker if the checkpoint has one. CHOICE_ON: fail if it has none. */
    enum choice safety_checker;
    /* For requests that do not set vae_tiling. CHOICE_AUTO: tiles if memory is too short for the
     * whole picture. */
    enum choice vae_tiling;
    /* Called after the device, the dtype and the checkpoint's headers were found valid, before the
     * weights are read. May be NULL. */
    void (*opened)(void *user);
    /* Called for each tensor with the fraction loaded, 0 to 1. Return false to stop with
     * ERROR_CANCELLED. May be NULL. */
    bool (*loading)(double fraction, void *user);
    void *user;
};

/* The device memory that a checkpoint will take, estimated from the headers of its files. */
struct pipeline_size {
    size_t weights;
    size_t activations; /* those of `like`, scaled by the ratio of default picture sizes */
};
/* Measures a checkpoint without loading it. Also checks the name and shape of every tensor, so that
 * a broken or unsupported checkpoint is detected. `like` describes a loaded checkpoint. */
struct pipeline_info;
bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) __attribute__((warn_unused_result));

bool pipeline_create(const struct pipeline_options *options, struct pipeline **out,
    struct error *err) __attribute__((warn_unused_result));
void pipeline_destroy(struct pipeline *pipeline); /* NULL is fine */

/* A description of a pipeline. It does not change. */
struct pipeline_info {
    const char *model_name;        /* the engine's name for it; borrowed; or NULL */
    const char *model_path;        /* borrowed */
    const struct kernels *kernels; /* the kernels of the device */
    struct unet *unet;             /* read only; borrowed */
    const char *device;            /* "cpu", "cuda:0" */
    enum dtype dtype, activation_dtype;
    const struct implementation *implementations; /* those of the kernels, or NULL */
    int default_width, default_height;            /* px */
    int max_tokens;                               /* 77 */
    bool checks_safety;            /* the checkpoint's safety checker checks pictures */
    bool inpaints;                 /* the UNet has 9 channels and needs a picture and a mask */
    int max_batch_rows;            /* of a UNet call with small pictures; fewer with large ones */
    const char *default_scheduler; /* "pndm"; NULL if the checkpoint's is not supported */
    const char *prediction_type;
    const json_t *scheduler_json; /* the checkpoint's scheduler_config.json; borrowed */
    const json_t
        *defaults; /* of fields that a request leaves out (generate_defaults_json); borrowed */
    double load_s;
    int64_t weight_bytes, activation_bytes; /* activations: for a default-size picture */
};
void pipeline_get_info(const struct pipeline *pipeline, struct pipeline_info *out);
/* Reads the current memory and utilisation of the device. Returns false if the device has no
 * figures (the CPU). Any thread. */
bool pipeline_get_figures(const struct pipeline *pipeline, struct device_figures *out);

/* Returns the registry of adapters. Any thread may use it until the pipeline is destroyed. */
struct adapters *pipeline_get_adapters(const struct pipeline *pipeline);
/* Takes over the shared registry from the other pipeline, which can no longer use it. Calls
 * adapters_rebase, which calls `switched`. Waits. */
void pipeline_take_adapters(struct pipeline *pipeline, void (*switched)(void *user), void *user);

/* Returns the textual inversions. Any thread may use them until the pipeline is destroyed. */
struct embeddings *pipeline_get_embeddings(const struct pipeline *pipeline);

/* Calls resolve_request for this checkpoint. Any thread. *out may be used until the pipeline is
 * destroyed. */
bool pipeline_resolve(const struct pipeline *pipeline, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));

/* Calls resolve_text_count for this checkpoint. Any thread. */
bool pipeline_count_text(const struct pipeline *pipeline, const struct generate_request *request,
    bool negative, struct text_count *out, struct error *err) __attribute__((warn_unused_result));

/* Returns the studio in which requests are drawn. The pipeline owns it; only the engine thread uses
 * it. */
struct studio *pipeline_studio(struct pipeline *pipeline);

/* Calls studio_generate for this checkpoint. One thread at a time; callbacks must not call it. */
bool pipeline_generate(struct pipeline *pipeline, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

/* Resolves the request and tells the device's tuner every operation that it needs. Does not draw,
 * and reserves no memory. */
bool pipeline_note(struct pipeline *pipeline, const struct generate_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
