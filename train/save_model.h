/* What a full fine-tune has made, as a checkpoint that diffusers and latentd load. */
#ifndef TRAIN_SAVE_MODEL_H
#define TRAIN_SAVE_MODEL_H

#include "models/checkpoint/checkpoint.h"
#include "train/parameters.h"

/* Writes the folder `out`, or the file for a checkpoint that is one, in place of what is there, as
 * a whole: `checkpoint`, which was opened as `path`, with the trained tensors as save_precision
 * says, and the prediction type that was trained. `values` is host memory, laid out as the
 * parameters are; `room` has as many floats, is host memory too, and may be `values`: what was in
 * it is lost. */
bool save_model(const struct parameters *parameters, const float *values, float *room,
    const struct train_config *config, struct checkpoint *checkpoint, const char *path,
    const char *out, struct error *err) __attribute__((warn_unused_result));

#endif
