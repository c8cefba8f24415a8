/* Writes a checkpoint with other numbers in it: the result of a full fine-tune. */
#ifndef MODELS_CHECKPOINT_CHECKPOINT_SAVE_H
#define MODELS_CHECKPOINT_CHECKPOINT_SAVE_H

#include "models/checkpoint/checkpoint.h"

struct checkpoint_change {
    enum component component;
    const char *name;     /* diffusers' name */
    struct tensor tensor; /* host memory; as many elements as the original, any dtype and shape */
};

struct checkpoint_changes {
    const struct checkpoint_change *items;
    size_t count;
    const char *prediction_type; /* for the scheduler's config; NULL: unchanged */
};

/* Writes the checkpoint that was opened as the folder `path` to the folder `out`, which must not
 * exist yet. `out` has diffusers' layout with one weight file per component. Unchanged tensors keep
 * their dtype. Other models (a safety checker) are left out, and model_index.json says so. */
bool checkpoint_save(struct checkpoint *c, const char *path,
    const struct checkpoint_changes *changes, const char *out, struct error *err)
    __attribute__((warn_unused_result));

/* Writes a checkpoint that was opened as a single file to the file `out`, in its own layout. An
 * existing file is replaced. The averages of the weights (model_ema) are left out, because they no
 * longer match. A prediction type is written to the metadata (modelspec.prediction_type). */
bool checkpoint_save_file(struct checkpoint *c, const struct checkpoint_changes *changes,
    const char *out, struct error *err) __attribute__((warn_unused_result));

#endif
