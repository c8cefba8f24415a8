#include "models/repack.h"

#include "kernels/pack.h"
#include "models/layers.h"

#include <stdlib.h>

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
    const struct weight_numbers *numbers, struct error *err) {
    const int64_t size = layer->is_conv && layer->kind != CONV_1X1 ? 3 : 1;
    const int64_t shape[4] = { layer->n, layer->k, size, size };
    float *weight = numbers->weight + layer->first * numbers->row;
    return read_tensor(w, layer, "weight", layer->is_conv ? 4 : 2, shape, weight, err) &&
           (!layer->has_bias ||
               read_tensor(w, layer, "bias", 1, &layer->n, numbers->bias + layer->first, err));
}

bool weight_numbers_pack(const struct weights *w, const struct weight_numbers *numbers,
    const struct packed *like, struct packed **out, struct error *err) {
    const int64_t size = like->is_conv && like->kind != CONV_1X1 ? 3 : 1;
    const struct tensor bias = tensor_1d(numbers->bias, DTYPE_F32, like->n);
    const struct tensor *given = numbers->bias ? &bias : NULL;
    if (like->is_conv) {
        const struct tensor weight = tensor_4d(
            numbers->weight, DTYPE_F32, like->n, like->k, size, size);
        return conv2d_pack(
            w->kernels, numbers->name, &weight, given, like->kind, w->dtype, out, err);
    }
    const struct tensor weight = tensor_2d(numbers->weight, DTYPE_F32, like->n, like->k);
    return linear_pack(w->kernels, numbers->name, &weight, given, like->geglu, w->dtype, out, err);
}

void weight_numbers_finish(struct weight_numbers *numbers) {
    free(numbers->weight);
    free(numbers->bias);
    *numbers = (struct weight_numbers){ 0 };
}

/* Allocates the numbers and finds the name of the first layer. */
static bool numbers_alloc(const struct weight_list *list, const struct packed *packed,
    struct weight_numbers *out, struct error *err) {
    const int64_t taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    bool has_bias = false;
    *out = (struct weight_numbers){ .row = packed->k * taps };
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].packed != packed)
            continue;
        out->name = out->name ? out->name : list->items[i].name;
        has_bias = has_bias || list->items[i].has_bias;
    }
    if (!out->name)
        return error_set(err, ERROR_INTERNAL, "a weight that no layer of its model has");
    out->weight = calloc((size_t)packed->n, (size_t)out->row * sizeof(float));
    out->bias = has_bias ? calloc((size_t)packed->n, sizeof(float)) : NULL;
    return (out->weight && (out->bias || !has_bias)) ||
           error_set(err, ERROR_NO_MEMORY, "%s: no memory to make the weight again", out->name);
}

bool weight_numbers_read(const struct weights *w, const struct weight_list *list,
    const struct packed *packed, repack_change change, void *user, struct weight_numbers *out,
    struct error *err) {
    bool ok = numbers_alloc(list, packed, out, err);
    for (size_t i = 0; ok && i < list->count; i++) {
        const struct named_weight *layer = &list->items[i];
        if (layer->packed == packed)
            ok = read_layer(w, layer, out, err) &&
                 change(user, layer, out->weight + layer->first * out->row,
                     layer->has_bias ? out->bias + layer->first : NULL, err);
    }
    if (!ok)
        weight_numbers_finish(out);
    return ok;
}
