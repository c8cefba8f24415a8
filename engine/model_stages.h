/* What is done to a studio's images by the models of a checkpoint: their memory, their texts, UNet
 * calls and decodes.
 *
 * Images of one latent size have a sampler in an arena of its own, made when the first of them
 * comes, larger when more come, and given back when its memory is wanted for others. What a call
 * needs beside it comes from one common arena, whose need is known from dry runs before anything
 * is begun. */
#ifndef ENGINE_MODEL_STAGES_H
#define ENGINE_MODEL_STAGES_H

#include "engine/stages.h"
#include "kernels/recordings.h"
#include "models/safety_checker.h"
#include "models/text_encoder.h"
#include "models/vae.h"

struct model_stages;

/* All borrowed. */
struct stage_models {
    const struct kernels *kernels;
    const struct text_encoder *text_encoder;
    const struct unet *unet;
    const struct vae *vae;
    const struct safety_checker *safety_checker; /* NULL: pictures are not checked */
    struct arena *arena;                         /* the common one */
    struct recordings *recordings;               /* NULL: every step is launched call by call */
    enum choice vae_tiling;                      /* of requests that leave it open */
    int max_rows;                                /* of a UNet call; 0: what the device gains from */
};

bool model_stages_create(const struct stage_models *models, struct model_stages **out,
    struct error *err) __attribute__((warn_unused_result));
void model_stages_destroy(struct model_stages *m); /* NULL is fine */

/* As a table; `m` is borrowed by it. */
struct stages model_stages_table(struct model_stages *m);

/* Reserves what one picture of the request takes beside its sampler. */
bool model_stages_plan(struct model_stages *m, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

/* Makes every operation of the request known to the device's tuner; reserves nothing. */
bool model_stages_note(struct model_stages *m, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
