/* A studio for pictures that a job draws with its own models, one at a time, so that requests never
 * wait for more than one such call. */
#ifndef ENGINE_TRAINING_JOB_DRAWING_H
#define ENGINE_TRAINING_JOB_DRAWING_H

#include "engine/drawing/model_stages.h"
#include "engine/drawing/studio.h"

struct drawing_models { /* all borrowed */
    const struct kernels *kernels;
    const struct text_encoder *text_encoder;
    const struct unet *unet;
    const struct vae *vae; /* with its decoder */
    const struct tokenizer *tokenizer;
    const json_t *scheduler_json; /* the checkpoint's */
    int default_px;               /* side of a picture of the default size */
};

/* A zeroed one can be finished. Call drawing_finish only when no request is left. */
struct drawing {
    struct arena *arena;         /* owned */
    struct model_stages *stages; /* owned */
    struct studio *studio;       /* owned */
    struct resolve_figures figures;
};

bool drawing_init(const struct drawing_models *models, struct drawing *out, struct error *err)
    __attribute__((warn_unused_result));
void drawing_finish(struct drawing *drawing);

#endif
