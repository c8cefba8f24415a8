/* A packed weight made again from the tensors that it was made of, with changes: what an adapter
 * that is no low-rank product needs, and whoever wants a weight as the checkpoint has it. */
#ifndef MODELS_REPACK_H
#define MODELS_REPACK_H

#include "models/weights.h"

/* Changes one layer's numbers, pristine when it is called: weight [n][k][taps] (taps: 9 of a 3x3
 * convolution, else 1) and bias [n], NULL if the layer has none. */
typedef bool (*repack_change)(
    void *user, const struct named_weight *layer, float *weight, float *bias, struct error *err);

/* *out is like `packed`, one of the weights in `list`: of the same shape, stacked of the same
 * layers in the same order. `w` is the source that the model was made from; `change` is called for
 * each layer. With a change that changes nothing *out computes the same bits as `packed`. */
bool weights_repack(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, repack_change change, void *user, struct packed **out,
    struct error *err) __attribute__((warn_unused_result));

#endif
