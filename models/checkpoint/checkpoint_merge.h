/* Writes a checkpoint with adapters merged into its weights. */
#ifndef MODELS_CHECKPOINT_CHECKPOINT_MERGE_H
#define MODELS_CHECKPOINT_CHECKPOINT_MERGE_H

#include "models/adapter/adapter.h"
#include "models/checkpoint/checkpoint.h"

struct merge_adapter {
    const struct adapter *adapter; /* opened for the `targets` of checkpoint_merge */
    double weight, text_encoder_weight;
};

/* Writes the checkpoint `c`, which was opened from `path`, to `out` in the same layout. That is a
 * single file, or a folder with everything except weights that the checkpoint does not use. Each
 * changed tensor becomes W + sum of weight * change, computed in f32 in the order of the adapters
 * and rounded once, to its own dtype. Everything else is copied byte for byte, metadata included.
 * `note` is added to the metadata as "latentd.merged". `targets` are the layers of the models that
 * were made from `c`. An output folder must not exist yet. ERROR_IO says what could not be
 * written. */
bool checkpoint_merge(struct checkpoint *c, const char *path, const struct adapter_targets *targets,
    const struct merge_adapter *adapters, size_t count, const char *note, const char *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
