/* One loaded checkpoint and the way from prompt to picture, in the caller's thread.
 *
 * resolve -> text_encoder -> unet (n times) -> scheduler step -> vae. The command line draws one
 * request after the other (pipeline_generate); the daemon's engine thread (engine/engine.h) has all
 * of them in the pipeline's studio.
 */
#ifndef ENGINE_PIPELINE_H
#define ENGINE_PIPELINE_H

#include "base/choice.h"
#include "engine/adapters/adapters.h"
#include "engine/studio.h"
#include "kernels/devices.h"
#include "models/checkpoint/checkpoint.h"

struct pipeline;

struct pipeline_options {
    const char *model_path;    /* a diffusers folder or a single file */
    const char *tokenizer_dir; /* NULL: the checkpoint's own */
    struct device_choice device;
    struct dtype_choice dtype; /* how weights are held */
    struct adapters_options adapters;
    /* Of another pipeline, which this one shares with it from pipeline_take_adapters on. NULL: it
     * has its own. With it comes the device, which is open. */
    struct adapters *registry;
    const struct kernels *kernels;
    const char *embeddings_dir; /* of textual inversion; NULL: none */
    bool no_recordings; /* launch every operation by itself, also where steps could be replayed */
    bool one_at_a_time; /* studio_set_one_at_a_time */
    int max_batch_rows; /* of a UNet call, 1..UNET_CALL_MAX_ROWS; 0: what the device gains from */
    /* CHOICE_AUTO: if the checkpoint has one; CHOICE_ON: it must have one. */
    enum choice safety_checker;
    /* Of requests that leave it open; CHOICE_AUTO: where a picture whole has not the memory. */
    enum choice vae_tiling;
    /* Called once device, dtype and the checkpoint's headers are known to be right, before the
     * weights are read. May be NULL. */
    void (*opened)(void *user);
    /* After each tensor that was loaded: how much of them is there, 0 to 1. False ends it with
     * ERROR_CANCELLED. May be NULL. */
    bool (*loading)(double fraction, void *user);
    void *user;
};

/* What a checkpoint is going to take of the device's memory, by its files' headers. */
struct pipeline_size {
    size_t weights;
    size_t activations; /* `like`'s, as the size of its own picture is to this one's */
};
/* Also looks at every tensor's name and shape, so that a checkpoint that is broken, or none, is
 * found out without loading it. `like` is a checkpoint that was loaded. */
struct pipeline_info;
bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) __attribute__((warn_unused_result));

bool pipeline_create(const struct pipeline_options *options, struct pipeline **out,
    struct error *err) __attribute__((warn_unused_result));
void pipeline_destroy(struct pipeline *pipeline); /* NULL is fine */

/* What the caller may know about it. */
struct pipeline_info {
    const char *model_name;        /* the engine's for it, or NULL; borrowed */
    const char *model_path;        /* borrowed */
    const struct kernels *kernels; /* the device's */
    struct unet *unet;             /* that draws: for who only reads it; borrowed */
    const char *device;            /* "cpu", "cuda:0" */
    enum dtype dtype, activation_dtype;
    const struct implementation *implementations; /* struct kernels', or NULL */
    int default_width, default_height;            /* px */
    int max_tokens;                               /* 77 */
    bool checks_safety; /* pictures go through the checkpoint's safety checker */
    bool inpaints;      /* its UNet has 9 channels: it draws from a picture and a mask only */
    int max_batch_rows; /* of a UNet call, for small pictures; large ones have fewer */
    const char *default_scheduler; /* "pndm"; NULL if the checkpoint names none of ours */
    const char *prediction_type;
    const json_t *scheduler_json; /* the checkpoint's, for scheduler_config_resolve; borrowed */
    double load_s;
    int64_t weight_bytes, activation_bytes; /* activations: of a picture of its own size */
};
void pipeline_get_info(const struct pipeline *pipeline, struct pipeline_info *out);
/* Memory and utilisation of its device now; false if it has no figures of its own (the CPU). From
 * any thread. */
bool pipeline_get_figures(const struct pipeline *pipeline, struct device_figures *out);

/* Its adapters; any thread may use them until the pipeline is destroyed. */
struct adapters *pipeline_get_adapters(const struct pipeline *pipeline);
/* The registry that it was created with is its own from now on (adapters_rebase), and no longer the
 * one's whose it was. Waits. */
void pipeline_take_adapters(struct pipeline *pipeline, void (*switched)(void *user), void *user);

/* Its textual inversion; any thread may use it until the pipeline is destroyed. */
struct embeddings *pipeline_get_embeddings(const struct pipeline *pipeline);

/* As resolve_request. Any thread; *out may be used until the pipeline is destroyed. */
bool pipeline_resolve(const struct pipeline *pipeline, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));

/* Where requests are drawn; the engine thread's. Owned by the pipeline. */
struct studio *pipeline_studio(struct pipeline *pipeline);

/* As studio_generate. Not re-entrant: one thread at a time. */
bool pipeline_generate(struct pipeline *pipeline, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

/* Resolves the request and makes every operation of it known to the device's tuner, without drawing
 * and without the memory that drawing would take. */
bool pipeline_note(struct pipeline *pipeline, const struct generate_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
