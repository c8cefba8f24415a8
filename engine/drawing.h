/* One request on its way through a pipeline: the two passes over it, a dry one that plans memory
 * and the real one. Only engine/pipeline.c and engine/drawing.c. */
#ifndef ENGINE_DRAWING_H
#define ENGINE_DRAWING_H

#include "engine/pipeline.h"
#include "kernels/recordings.h"
#include "models/text_encoder.h"
#include "models/unet.h"
#include "models/vae.h"

/* What drawing needs of a pipeline; everything borrowed. */
struct drawing_models {
    const struct kernels *kernels;
    const struct text_encoder *text_encoder;
    const struct unet *unet;
    const struct vae *vae;
    struct arena *arena;
    struct recordings *recordings; /* NULL: every step is launched call by call */
};

/* Draws `request` into *result (zeroed; finished by the caller, also on failure). */
bool drawing_run(const struct drawing_models *models, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

/* Everything but the drawing: reserves its activation memory. */
bool drawing_plan(const struct drawing_models *models, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

/* Makes its operations known to the device's tuner; reserves nothing. */
bool drawing_note(const struct drawing_models *models, const struct resolved_request *request,
    struct error *err) __attribute__((warn_unused_result));

#endif
