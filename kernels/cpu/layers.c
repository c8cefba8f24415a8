#include "kernels/cpu/layers.h"

#include "kernels/cpu/scratch.h"
#include "kernels/reference/reference.h"

#include <stdlib.h>
#include <string.h>

static enum dtype layers_activation_dtype(enum dtype weight_dtype) {
    return weight_dtype == DTYPE_BF16 && cpu_level()->multiplies_bf16 ? DTYPE_BF16 : DTYPE_F32;
}

enum layer_code layers_code(
    bool is_conv, enum conv_kind kind, int64_t n, int64_t k, enum dtype activation_dtype) {
    const struct cpu_level *level = cpu_level();
    const bool winograd = is_conv && panels_take_winograd(kind, k);
    if (activation_dtype == DTYPE_F32)
        return winograd ? LAYER_WINOGRAD : LAYER_F32;
    if (is_conv && kind == CONV_3X3_UP)
        return level->conv3x3_up;
    if (!winograd)
        return level->linear;
    return n >= LEVEL_DEEP ? level->conv3x3_deep : level->conv3x3;
}

static const struct layer_engine *engine_of(enum layer_code code) {
    switch (code) {
    case LAYER_F32:
    case LAYER_WINOGRAD:
        return &panels_engine;
    case LAYER_ONEDNN:
        return &dnnl_engine;
    case LAYER_PHASES:
        return &phases_engine;
    }
    return &panels_engine;
}

static bool pack(const struct tensor *weight, const struct tensor *bias, bool is_conv,
    enum conv_kind kind, bool geglu, enum dtype dtype, struct packed **out, struct error *err) {
    enum dtype activation_dtype = layers_activation_dtype(dtype);
    const struct layer_engine *engine = engine_of(
        layers_code(is_conv, kind, weight->shape[0], weight->shape[1], activation_dtype));
    struct layer *layer;
    if (!engine->pack(weight, bias, is_conv, kind, geglu, dtype, &layer, err))
        return false;
    layer->engine = engine;
    layer->activation_dtype = activation_dtype;
    layer->packed.is_conv = is_conv;
    layer->packed.kind = kind;
    layer->packed.n = weight->shape[0];
    layer->packed.k = weight->shape[1];
    layer->packed.geglu = geglu;
    *out = &layer->packed;
    return true;
}

static bool layers_linear_pack(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype dtype, struct packed **out, struct error *err) {
    return pack(weight, bias, false, CONV_1X1, geglu, dtype, out, err);
}

static bool layers_conv2d_pack(const struct tensor *weight, const struct tensor *bias,
    enum conv_kind kind, enum dtype dtype, struct packed **out, struct error *err) {
    return pack(weight, bias, true, kind, false, dtype, out, err);
}

static void layers_packed_destroy(struct packed *packed) {
    struct layer *layer = (struct layer *)packed;
    if (layer)
        layer->engine->destroy(layer);
}

static bool layers_unpack(
    const struct packed *packed, float *weight, float *bias, struct error *err) {
    struct layer *layer = (struct layer *)packed;
    return layer->engine->unpack(layer, weight, bias, err);
}

static bool layers_rewrite(
    struct packed *packed, const float *weight, const float *bias, struct error *err) {
    struct layer *layer = (struct layer *)packed;
    return layer->engine->rewrite(layer, weight, bias, err);
}

/* Returns the layer behind a weight. If x has another dtype than the one that this weight is
 * multiplied with, sets the error and returns NULL. */
static struct layer *layer_for(
    const struct packed *weight, const struct tensor *x, struct error *err) {
    struct layer *layer = (struct layer *)weight;
    if (x->dtype == layer->activation_dtype)
        return layer;
    error_set(err, ERROR_INTERNAL, "x is %s, this weight multiplies %s", dtype_name(x->dtype),
        dtype_name(layer->activation_dtype));
    return NULL;
}

static bool layers_linear(const struct linear_args *args, struct error *err) {
    struct layer *layer = layer_for(args->weight, args->x, err);
    return layer && layer->engine->linear(layer, args, err);
}

static bool layers_conv2d(const struct conv2d_args *args, struct error *err) {
    struct layer *layer = layer_for(args->weight, args->x, err);
    return layer && layer->engine->conv2d(layer, args, err);
}

/* Unpacks a weight into the form of the reference kernels. The caller frees out->weight. */
static bool as_reference(
    const struct packed *packed, struct reference_packed *out, struct error *err) {
    const int64_t taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    *out = (struct reference_packed){ .base = *packed };
    out->weight = calloc((size_t)(packed->n * taps * packed->k), sizeof(*out->weight));
    if (!out->weight)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a weight");
    return layers_unpack(packed, out->weight, NULL, err);
}

/* Computes dx with plain loops on the unpacked weight, for layers whose gradient the engine cannot
 * compute fast. With oneDNN, only layers with certain unusual numbers of channels need this. */
static bool plain_linear_dx(const struct linear_backward_args *args, struct error *err) {
    struct linear_backward_args plain = { .dy = args->dy, .dx = args->dx };
    struct reference_packed weight;
    plain.accumulate = args->accumulate;
    plain.weight = &weight.base;
    const bool ok = cpu_plans() || (as_reference(args->weight, &weight, err) &&
                                       reference_linear_backward(&plain, err));
    if (!cpu_plans())
        free(weight.weight);
    return ok;
}

static bool plain_conv2d_dx(const struct conv2d_backward_args *args, struct error *err) {
    struct conv2d_backward_args plain = { .dy = args->dy, .dx = args->dx };
    struct reference_packed weight;
    plain.accumulate = args->accumulate;
    plain.weight = &weight.base;
    const bool ok = cpu_plans() || (as_reference(args->weight, &weight, err) &&
                                       reference_conv2d_backward(&plain, err));
    if (!cpu_plans())
        free(weight.weight);
    return ok;
}

/* dbias += the sums [rows][n] of all rows, added up before they meet what dbias holds. `whole` [n]
 * is scratch. */
static void add_rows(
    const float *sums, int64_t rows, int64_t n, float *restrict whole, float *restrict dbias) {
    memcpy(whole, sums, (size_t)n * sizeof(*whole));
    for (int64_t row = 1; row < rows; row++)
        for (int64_t i = 0; i < n; i++)
            whole[i] += sums[row * n + i];
    for (int64_t i = 0; i < n; i++)
        dbias[i] += whole[i];
}

/* dbias += the sums of dy over all rows; d_row_add (+)= the sums of each row, from channel `first`
 * on. */
static bool add_sums(const struct matmul_gradient *job, struct tensor *dbias,
    struct tensor *d_row_add, int64_t first, bool accumulate, struct error *err) {
    const int64_t count = job->rows * job->n;
    float *sums = cpu_scratch((size_t)(count + job->n) * sizeof(*sums), err), *old = sums + count;
    if (!sums || cpu_plans())
        return sums != NULL;
    cpu_level()->matmul->gradient_sums(job, sums);
    if (dbias)
        add_rows(sums, job->rows, job->n, old, dbias->data);
    for (int64_t row = 0; d_row_add && row < job->rows; row++) {
        float *sum = sums + row * job->n;
        char *to = (char *)d_row_add->data +
                   (size_t)(row * d_row_add->shape[1] + first) * dtype_size(d_row_add->dtype);
        if (accumulate)
            convert_elements(old, DTYPE_F32, to, d_row_add->dtype, job->n);
        for (int64_t i = 0; accumulate && i < job->n; i++)
            sum[i] += old[i];
        convert_elements(to, d_row_add->dtype, sum, DTYPE_F32, job->n);
    }
    return true;
}

static bool layers_linear_backward(const struct linear_backward_args *args, struct error *err) {
    struct layer *layer = layer_for(args->weight, args->dy, err);
    if (!layer || (args->dx && !layer->engine->linear_dx(layer, args, err) &&
                      (err->code != ERROR_UNSUPPORTED || !plain_linear_dx(args, err))))
        return false;
    struct matmul_gradient job = { .bf16 = args->dy->dtype == DTYPE_BF16,
        .dy = args->dy->data,
        .x = args->x ? args->x->data : NULL,
        .rows = 1,
        .w = 1,
        .w_out = 1,
        .stride = 1,
        .n = layer->packed.n,
        .k = layer->packed.k,
        .taps = 1,
        .dw = args->dw ? args->dw->data : NULL };
    job.h = job.h_out = tensor_elements(args->dy) / job.n;
    if (args->dw && !cpu_plans())
        cpu_level()->matmul->gradient(&job);
    return !args->dbias || add_sums(&job, args->dbias, NULL, 0, false, err);
}

static bool layers_conv2d_backward(const struct conv2d_backward_args *args, struct error *err) {
    struct layer *layer = layer_for(args->weight, args->dy, err);
    if (!layer || (args->dx && !layer->engine->conv2d_dx(layer, args, err) &&
                      (err->code != ERROR_UNSUPPORTED || !plain_conv2d_dx(args, err))))
        return false;
    const enum conv_kind kind = layer->packed.kind;
    const int64_t *out = args->dy->shape;
    struct matmul_gradient job = { .bf16 = args->dy->dtype == DTYPE_BF16,
        .dy = args->dy->data,
        .x = args->x ? args->x->data : NULL,
        .rows = out[0],
        .h = args->x ? args->x->shape[1] : 0,
        .w = args->x ? args->x->shape[2] : 0,
        .h_out = out[1],
        .w_out = out[2],
        .stride = kind == CONV_3X3_DOWN || kind == CONV_3X3_DOWN_RIGHT ? 2 : 1,
        .padding = kind == CONV_1X1 || kind == CONV_3X3_DOWN_RIGHT ? 0 : 1,
        .upsample = kind == CONV_3X3_UP,
        .n = layer->packed.n,
        .k = layer->packed.k,
        .taps = kind == CONV_1X1 ? 1 : 9,
        .dw = args->dw ? args->dw->data : NULL };
    if (args->dw && !cpu_plans())
        cpu_level()->matmul->gradient(&job);
    return !(args->dbias || args->d_row_add) ||
           add_sums(&job, args->dbias, args->d_row_add, args->row_add_offset,
               args->accumulate_row_add, err);
}

void layers_register(struct kernels *table) {
    table->activation_dtype = layers_activation_dtype;
    table->linear_pack = layers_linear_pack;
    table->conv2d_pack = layers_conv2d_pack;
    table->packed_destroy = layers_packed_destroy;
    table->unpack = layers_unpack;
    table->rewrite = layers_rewrite;
    table->linear = layers_linear;
    table->conv2d = layers_conv2d;
    table->linear_backward = layers_linear_backward;
    table->conv2d_backward = layers_conv2d_backward;
}
