#include "models/repack.h"

#include "kernels/pack.h"
#include "models/layers.h"

#include <stdlib.h>

/* The numbers of a packed weight, f32: what every dtype on disk becomes without loss. */
struct numbers {
    float *weight; /* owned: [n][k][taps] */
    float *bias;   /* owned: [n], or NULL */
    int64_t row;   /* of weight: k * taps */
};

static bool read_tensor(const struct weights *w, const struct named_weight *layer, const char *leaf,
    int rank, const int64_t *shape, float *to, struct error *err) {
    char name[SAFETENSORS_MAX_NAME_BYTES];
    struct tensor t;
    if (!layer_name(name, layer->name, leaf, err) || !w->get(w->user, name, rank, shape, &t, err))
        return false;
    convert_elements(to, DTYPE_F32, t.data, t.dtype, tensor_elements(&t));
    return true;
}

static bool read_layer(const struct weights *w, const struct named_weight *layer,
    const struct numbers *numbers, struct error *err) {
    const int64_t size = layer->is_conv && layer->kind != CONV_1X1 ? 3 : 1;
    const int64_t shape[4] = { layer->n, layer->k, size, size };
    float *weight = numbers->weight + layer->first * numbers->row;
    return read_tensor(w, layer, "weight", layer->is_conv ? 4 : 2, shape, weight, err) &&
           (!layer->has_bias ||
               read_tensor(w, layer, "bias", 1, &layer->n, numbers->bias + layer->first, err));
}

static bool pack(const struct weights *w, const char *name, const struct packed *like,
    const struct numbers *numbers, struct packed **out, struct error *err) {
    const int64_t size = like->is_conv && like->kind != CONV_1X1 ? 3 : 1;
    const struct tensor bias = tensor_1d(numbers->bias, DTYPE_F32, like->n);
    const struct tensor *given = numbers->bias ? &bias : NULL;
    if (like->is_conv) {
        const struct tensor weight = tensor_4d(
            numbers->weight, DTYPE_F32, like->n, like->k, size, size);
        return conv2d_pack(w->kernels, name, &weight, given, like->kind, w->dtype, out, err);
    }
    const struct tensor weight = tensor_2d(numbers->weight, DTYPE_F32, like->n, like->k);
    return linear_pack(w->kernels, name, &weight, given, like->geglu, w->dtype, out, err);
}

bool weights_repack(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, repack_change change, void *user, struct packed **out,
    struct error *err) {
    const int64_t taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    struct numbers numbers = { .row = packed->k * taps };
    const struct named_weight *first = NULL;
    bool ok = true;
    numbers.weight = calloc((size_t)packed->n, (size_t)numbers.row * sizeof(float));
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].packed != packed)
            continue;
        first = first ? first : &list->items[i];
        if (list->items[i].has_bias && !numbers.bias)
            numbers.bias = calloc((size_t)packed->n, sizeof(float));
        ok = ok && (numbers.bias || !list->items[i].has_bias);
    }
    if (!first)
        ok = error_set(err, ERROR_INTERNAL, "a weight that no layer of its model has");
    else if (!ok || !numbers.weight)
        ok = error_set(err, ERROR_NO_MEMORY, "%s: no memory to make the weight again", first->name);
    for (size_t i = 0; ok && i < list->count; i++) {
        const struct named_weight *layer = &list->items[i];
        if (layer->packed == packed)
            ok = read_layer(w, layer, &numbers, err) &&
                 change(user, layer, numbers.weight + layer->first * numbers.row,
                     layer->has_bias ? numbers.bias + layer->first : NULL, err);
    }
    ok = ok && pack(w, first->name, packed, &numbers, out, err);
    free(numbers.weight);
    free(numbers.bias);
    return ok;
}
