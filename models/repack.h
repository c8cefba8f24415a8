/* Rebuilds a packed weight, with changes, from the tensors that it was made of. Needed for adapters
 * that are not low-rank products, and by code that reads a weight as the checkpoint has it. */
#ifndef MODELS_REPACK_H
#define MODELS_REPACK_H

#include "models/weights.h"

/* Changes the numbers of one layer, which at first are those of the checkpoint: weight [n][k][taps]
 * (taps: 9 for a 3x3 convolution, else 1) and bias [n], NULL if the layer has none. */
typedef bool (*repack_change)(
    void *user, const struct named_weight *layer, float *weight, float *bias, struct error *err);

/* The numbers of a packed weight in f32. Every dtype on disk converts to f32 without loss. */
struct weight_numbers {
    const char *name; /* name of its first layer; borrowed from the list */
    float *weight;    /* owned: [n][k][taps] */
    float *bias;      /* owned: [n], or NULL */
    int64_t row;      /* numbers in a row of weight: k * taps */
};
/* Reads the numbers of `packed`, one of the weights in `list`, and changes them. `w` is the source
 * that the model was made from. `change` is called for each layer. On success the caller finishes
 * *out. */
bool weight_numbers_read(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, repack_change change, void *user, struct weight_numbers *out,
    struct error *err) __attribute__((warn_unused_result));
/* Packs these numbers as `like` is packed, with the same layers stacked in the same order. If
 * nothing was changed, the packed weight computes the same bits. */
bool weight_numbers_pack(const struct weights *w, const struct weight_numbers *numbers,
    const struct packed *like, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));
void weight_numbers_finish(struct weight_numbers *numbers);

#endif
