/* The loop: from noise to finished latents for a few images at once.
 *
 * One UNet call an evaluation. With guidance each image is two rows of it, all unconditional rows
 * first. An image's latents depend on its own noise generator and context only, not on its batch
 * mates (the kernels' row contract).
 */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "engine/noise.h"
#include "engine/scheduler/scheduler.h"
#include "models/unet.h"

struct sampler_batch {
    const struct unet *unet; /* borrowed, as everything here */
    const struct scheduler_plan *plan;
    int images;            /* 1..UNET_CALL_MAX_IMAGES */
    int64_t height, width; /* of the latents */
    bool guided;
    double guidance_scale;
    double guidance_rescale;            /* 0: off */
    const struct tensor *context;       /* [guided ? 2 images : images][t][cross_attention_dim] */
    struct noise_generator *generators; /* [images], of one kind: initial noise, then the steps' */
    const float *init_latents;          /* [images][c][height][width] to start from, or NULL */
    /* The result, [images][c][height][width]; host memory, and scratch until then. */
    float *latents;
    /* Called before the first and after every evaluation; false (and an error) ends the run. */
    bool (*between)(int evaluations_done, void *user, struct error *err);
    void *user;
};

/* Leaves c->error on failure; latents that are not finite are one. A dry run takes one evaluation
 * and touches neither generators nor latents. */
void sampler_run(struct compute *c, const struct sampler_batch *batch);

#endif
