/* Rebuilds a packed weight with changes from the tensors that it was made of. Adapters that are not
 * low-rank products need this, and so does code that wants a weight as the checkpoint has it. */
#ifndef MODELS_REPACK_H
#define MODELS_REPACK_H

#include "models/weights.h"

/* Changes one layer's numbers, which are those of the checkpoint when it is called: weight
 * [n][k][taps] (taps: 9 for a 3x3 convolution, else 1) and bias [n], NULL if the layer has none. */
typedef bool (*repack_change)(
    void *user, const struct named_weight *layer, float *weight, float *bias, struct error *err);

/* The numbers of a packed weight in f32, to which every dtype on disk converts without loss. */
struct weight_numbers {
    const char *name; /* name of its first layer; borrowed from the list */
    float *weight;    /* owned: [n][k][taps] */
    float *bias;      /* owned: [n], or NULL */
    int64_t row;      /* numbers of a row of weight: k * taps */
};
/* Reads the numbers of `packed`, one of the weights in `list`, and changes them. `w` is the source
 * that the model was made from; `change` is called for each layer. On success the caller finishes
 * *out. */
bool weight_numbers_read(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, repack_change change, void *user, struct weight_numbers *out,
    struct error *err) __attribute__((warn_unused_result));
/* Packs these numbers like `like`, with the same layers stacked in the same order. If nothing was
 * changed it computes the same bits. */
bool weight_numbers_pack(const struct weights *w, const struct weight_numbers *numbers,
    const struct packed *like, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));
void weight_numbers_finish(struct weight_numbers *numbers);

#endif
