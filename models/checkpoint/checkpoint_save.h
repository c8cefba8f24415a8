/* A checkpoint with other numbers in it, on disk: what a full fine-tune leaves. */
#ifndef MODELS_CHECKPOINT_CHECKPOINT_SAVE_H
#define MODELS_CHECKPOINT_CHECKPOINT_SAVE_H

#include "models/checkpoint/checkpoint.h"

struct checkpoint_change {
    enum component component;
    const char *name;     /* diffusers' */
    struct tensor tensor; /* host memory; of the tensor's elements, in any dtype and shape */
};

struct checkpoint_changes {
    const struct checkpoint_change *items;
    size_t count;
    const char *prediction_type; /* the scheduler's from now on; NULL: what it is */
};

/* Makes the folder `out`, which must not be there yet, in diffusers' layout: what was opened as the
 * folder `path`, with one file of weights for each component. Tensors that are not changed keep
 * their dtype. Further models (a safety checker) are left out, and model_index.json says so.
 * ERROR_UNSUPPORTED: the checkpoint is a single file. */
bool checkpoint_save(struct checkpoint *c, const char *path,
    const struct checkpoint_changes *changes, const char *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
