/* A packed weight made again from the tensors that it was made of, with changes: what an adapter
 * that is no low-rank product needs, and whoever wants a weight as the checkpoint has it. */
#ifndef MODELS_REPACK_H
#define MODELS_REPACK_H

#include "models/weights.h"

/* Changes one layer's numbers, pristine when it is called: weight [n][k][taps] (taps: 9 of a 3x3
 * convolution, else 1) and bias [n], NULL if the layer has none. */
typedef bool (*repack_change)(
    void *user, const struct named_weight *layer, float *weight, float *bias, struct error *err);

/* The numbers of a packed weight, f32: what every dtype on disk becomes without loss. */
struct weight_numbers {
    const char *name; /* of its first layer; borrowed from the list */
    float *weight;    /* owned: [n][k][taps] */
    float *bias;      /* owned: [n], or NULL */
    int64_t row;      /* of weight: k * taps */
};
/* Of `packed`, one of the weights in `list`, changed. `w` is the source that the model was made
 * from; `change` is called for each layer. *out is finished by the caller on success. */
bool weight_numbers_read(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, repack_change change, void *user, struct weight_numbers *out,
    struct error *err) __attribute__((warn_unused_result));
/* *out is like `like`, stacked of the same layers in the same order, with these numbers. With a
 * change that changed nothing it computes the same bits. */
bool weight_numbers_pack(const struct weights *w, const struct weight_numbers *numbers,
    const struct packed *like, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));
void weight_numbers_finish(struct weight_numbers *numbers);

#endif
