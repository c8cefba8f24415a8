/* The stages of a studio, implemented by the models of a checkpoint: memory, texts, UNet calls and
 * decodes.
 *
 * Images of one latent size share a sampler in an arena of its own. The arena is made for the first
 * of them, grows with their number, and is freed when its memory is needed for another size.
 * Everything else that a call needs comes from one common arena. Dry runs tell its size before
 * anything begins. */
#ifndef ENGINE_DRAWING_MODEL_STAGES_H
#define ENGINE_DRAWING_MODEL_STAGES_H

#include "engine/drawing/stages.h"
#include "kernels/compute/recordings.h"
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
    struct arena *arena;                         /* the common arena */
    struct recordings *recordings;               /* NULL: no step is recorded and replayed */
    enum choice vae_tiling;                      /* for requests that leave it open */
    int max_rows; /* of a UNet call; 0: as many as the device gains from */
};

bool model_stages_create(const struct stage_models *models, struct model_stages **out,
    struct error *err) __attribute__((warn_unused_result));
void model_stages_destroy(struct model_stages *m); /* NULL is fine */

/* The function table of `m`, which it borrows. */
struct stages model_stages_table(struct model_stages *m);

/* Reserves the memory that one picture of the request needs besides its sampler. */
bool model_stages_plan(struct model_stages *m, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

/* Tells the device's tuner every operation of the request; reserves nothing. */
bool model_stages_note(struct model_stages *m, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
