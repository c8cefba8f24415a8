/* Saves the result of a full fine-tune as a checkpoint that diffusers and latentd load. */
#ifndef TRAIN_SAVE_MODEL_H
#define TRAIN_SAVE_MODEL_H

#include "models/checkpoint/checkpoint.h"
#include "train/optimizer/parameters.h"

/* Writes `checkpoint`, which was opened as `path`, with the trained tensors (in save_precision) and
 * the trained prediction type. `out` is a folder, or a file if the checkpoint is a single file. An
 * existing one is replaced atomically. `values` is host memory, laid out like the parameters.
 * `room` is host memory of the same size, which is overwritten; it may be `values`. */
bool save_model(const struct parameters *parameters, const float *values, float *room,
    const struct train_config *config, struct checkpoint *checkpoint, const char *path,
    const char *out, struct error *err) __attribute__((warn_unused_result));

#endif
