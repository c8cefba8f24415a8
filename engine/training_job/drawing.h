/* A studio for the pictures that a job draws with its own models. It draws one picture at a time,
 * so that requests wait for at most one UNet call of one picture. */
#ifndef ENGINE_TRAINING_JOB_DRAWING_H
#define ENGINE_TRAINING_JOB_DRAWING_H

#include "engine/drawing/model_stages.h"
#include "engine/drawing/studio.h"

struct drawing_models { /* all borrowed */
    const struct kernels *kernels;
    const struct text_encoder *text_encoder;
    const struct unet *unet;
    const struct vae *vae; /* must have its decoder */
    const struct tokenizer *tokenizer;
    const json_t *scheduler_json; /* the checkpoint's scheduler_config.json, as requests see it */
    const struct generate_request *defaults; /* of fields that a request leaves out */
    int default_px;                          /* side of a picture without a given size */
};

/* A zeroed struct can be finished. The struct must not move while it has a request. */
struct drawing {
    struct arena *arena;         /* owned */
    struct model_stages *stages; /* owned */
    struct studio *studio;       /* owned */
    struct resolve_figures figures;
    /* `asked`: there is a request, from drawing_resolve to drawing_forget. `drawn`: the request has
     * ended, with `result` or `error`. */
    struct resolved_request request;
    bool asked, drawn, cancelled;
    struct generate_result result;
    struct error error;
};

bool drawing_init(const struct drawing_models *models, struct drawing *out, struct error *err)
    __attribute__((warn_unused_result));
/* Cancels the request, if there is one. */
void drawing_finish(struct drawing *drawing);

/* Fills in `request`. */
bool drawing_resolve(struct drawing *drawing, const struct generate_request *request,
    struct error *err) __attribute__((warn_unused_result));
/* Draws `request` from now on; call studio_work until it is drawn. */
bool drawing_admit(struct drawing *drawing, struct error *err) __attribute__((warn_unused_result));
/* Finishes the request, which is not being drawn, and its result. */
void drawing_forget(struct drawing *drawing);

#endif
