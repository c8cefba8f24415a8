/* Implements the stages of a studio with the models of a checkpoint: memory, texts, UNet calls and
 * decodes.
 *
 * Images of one latent size share a sampler in an arena of its own. That arena is made for the
 * first image, grows with the number of images, and is freed when another size needs its memory.
 * All other memory of a call comes from one common arena, whose size is found by dry runs before an
 * image begins. */
#ifndef ENGINE_DRAWING_MODEL_STAGES_H
#define ENGINE_DRAWING_MODEL_STAGES_H

#include "engine/drawing/stages.h"
#include "kernels/compute/recordings.h"
#include "models/safety_checker.h"
#include "models/text_encoder.h"
#include "models/vae.h"

struct model_stages;

/* All members are borrowed. */
struct stage_models {
    const struct kernels *kernels;
    const struct text_encoder *text_encoder;
    const struct unet *unet;
    const struct vae *vae;
    const struct safety_checker *safety_checker; /* NULL: pictures are not checked */
    struct arena *arena;                         /* the common arena */
    struct recordings *recordings;               /* NULL: steps are not recorded and replayed */
    enum choice vae_tiling;                      /* for requests that do not set vae_tiling */
    int max_rows; /* of a UNet call; 0: as many as the device gains from */
};

bool model_stages_create(const struct stage_models *models, struct model_stages **out,
    struct error *err) __attribute__((warn_unused_result));
void model_stages_destroy(struct model_stages *m); /* NULL is fine */

/* Returns the function table of `m`. The table borrows `m`. */
struct stages model_stages_table(struct model_stages *m);

/* Reserves the memory that one picture of the request needs, without the memory of its sampler. */
bool model_stages_plan(struct model_stages *m, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

/* Tells the device's tuner every operation that the request needs. Reserves nothing. */
bool model_stages_note(struct model_stages *m, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
