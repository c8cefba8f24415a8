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
 * their dtype. Further models (a safety checker) are left out, and model_index.json says so. */
bool checkpoint_save(struct checkpoint *c, const char *path,
    const struct checkpoint_changes *changes, const char *out, struct error *err)
    __attribute__((warn_unused_result));

/* Makes the file `out`, in place of one that is there: a checkpoint that was opened as a single
 * file, in its layout. Its averages of the weights (model_ema) are left out, which are no longer
 * theirs; a prediction type is said in the metadata (modelspec.prediction_type). */
bool checkpoint_save_file(struct checkpoint *c, const struct checkpoint_changes *changes,
    const char *out, struct error *err) __attribute__((warn_unused_result));

#endif
