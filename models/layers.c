#include "models/layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool layer_name(char name[SAFETENSORS_MAX_NAME_BYTES], const char *prefix, const char *leaf,
    struct error *err) {
    const int length = snprintf(
        name, SAFETENSORS_MAX_NAME_BYTES, "%s%s%s", prefix, prefix[0] ? "." : "", leaf);
    if (length < 0 || length >= SAFETENSORS_MAX_NAME_BYTES) {
        return error_set(err, ERROR_INVALID, "%s.%s: a tensor's name has at most %d bytes", prefix,
            leaf, SAFETENSORS_MAX_NAME_BYTES - 1);
    }
    return true;
}

bool weights_end(const struct weights *w, struct error *err) {
    return !w->end || w->end(w->user, err);
}

/* Allocates memory. The shapes come from a checked config, so sizes cannot overflow, but the
 * allocation may still be refused. */
static void *allocate(int64_t count, size_t size, const char *name, struct error *err) {
    size_t bytes;
    void *data = NULL;
    if (!__builtin_mul_overflow((size_t)count, size, &bytes))
        data = malloc(bytes);
    if (!data)
        error_set(err, ERROR_NO_MEMORY, "%s: no memory for %lld numbers", name, (long long)count);
    return data;
}

/* Gets the tensor `name`.`kind`. */
static bool get(const struct weights *w, const char *name, const char *kind, int rank,
    const int64_t *shape, struct tensor *out, struct error *err) {
    char full[SAFETENSORS_MAX_NAME_BYTES];
    return layer_name(full, name, kind, err) && w->get(w->user, full, rank, shape, out, err);
}

/* Gets the tensor `name`.`kind`, converted to f32, into dst, which has room for the whole shape. */
static bool get_f32(const struct weights *w, const char *name, const char *kind, int rank,
    const int64_t *shape, float *dst, struct error *err) {
    struct tensor t;
    if (!get(w, name, kind, rank, shape, &t, err))
        return false;
    convert_elements(dst, DTYPE_F32, t.data, t.dtype, tensor_elements(&t));
    return true;
}

/* Allocates memory of the device that computes with these weights. */
static bool resident_alloc(const struct weights *w, const char *name, size_t bytes,
    struct resident *out, struct error *err) {
    out->memory = w->kernels->memory;
    out->bytes = bytes;
    return out->memory->alloc(MEMORY_WEIGHTS, bytes, &out->data, err) ||
           error_prefix(err, "%s", name);
}

static void resident_finish(struct resident *resident) {
    if (resident->memory)
        resident->memory->release(MEMORY_WEIGHTS, resident->data, resident->bytes);
}

/* Uploads the tensor t as `dtype`, piece by piece, to the memory from element `offset` on. */
static bool resident_fill(const struct resident *out, int64_t offset, enum dtype dtype,
    const struct tensor *t, struct error *err) {
    float piece[16384]; /* also large enough for narrower dtypes */
    const int64_t count = tensor_elements(t), step = sizeof(piece) / sizeof(piece[0]);
    for (int64_t i = 0; i < count; i += step) {
        const int64_t n = count - i < step ? count - i : step;
        convert_elements(
            piece, dtype, (const char *)t->data + (size_t)i * dtype_size(t->dtype), t->dtype, n);
        char *to = (char *)out->data + (size_t)(offset + i) * dtype_size(dtype);
        if (!out->memory->upload(to, piece, (size_t)n * dtype_size(dtype), err))
            return false;
    }
    return true;
}

static bool note_resident(const struct weights *w, const char *name, const struct tensor *weight,
    const struct tensor *bias, struct error *err) {
    struct named_resident resident = { .weight = *weight };
    if (!w->list)
        return true;
    memccpy(resident.name, name, 0, sizeof(resident.name) - 1);
    if (bias)
        resident.bias = *bias;
    return weight_list_add_resident(w->list, &resident, err);
}

bool norm_load(const struct weights *w, const char *prefix, const char *leaf, int64_t channels,
    struct norm *out, struct error *err) {
    char name[SAFETENSORS_MAX_NAME_BYTES];
    struct tensor gamma, beta;
    if (!layer_name(name, prefix, leaf, err) ||
        !resident_alloc(w, name, 2 * (size_t)channels * sizeof(float), &out->resident, err) ||
        !get(w, name, "weight", 1, &channels, &gamma, err) ||
        !resident_fill(&out->resident, 0, DTYPE_F32, &gamma, err) ||
        !get(w, name, "bias", 1, &channels, &beta, err) ||
        !resident_fill(&out->resident, channels, DTYPE_F32, &beta, err)) {
        norm_finish(out);
        return false;
    }
    out->gamma = tensor_1d(out->resident.data, DTYPE_F32, channels);
    out->beta = tensor_1d((float *)out->resident.data + channels, DTYPE_F32, channels);
    out->gamma.device = out->beta.device = w->kernels->device;
    if (note_resident(w, name, &out->gamma, &out->beta, err))
        return true;
    norm_finish(out);
    return false;
}

void norm_finish(struct norm *norm) {
    resident_finish(&norm->resident);
    *norm = (struct norm){ 0 };
}

/* Records where the layer's tensors are stored. With check_only nothing was packed, and `packed` is
 * not read. */
static bool note(const struct weights *w, struct named_weight weight, const char *name,
    struct packed *const *packed, struct error *err) {
    if (!w->list)
        return true;
    memccpy(weight.name, name, 0, sizeof(weight.name) - 1);
    weight.packed = w->check_only ? NULL : *packed;
    return weight_list_add(w->list, &weight, err);
}

bool linear_load(const struct weights *w, const char *prefix, const char *leaf,
    struct linear_shape shape, struct packed **out, struct error *err) {
    const int64_t weight_shape[2] = { shape.n, shape.k };
    char name[SAFETENSORS_MAX_NAME_BYTES];
    struct tensor weight, bias;
    return layer_name(name, prefix, leaf, err) &&
           get(w, name, "weight", 2, weight_shape, &weight, err) &&
           (!shape.bias || get(w, name, "bias", 1, &shape.n, &bias, err)) &&
           (w->check_only || linear_pack(w->kernels, name, &weight, shape.bias ? &bias : NULL,
                                 shape.geglu, w->dtype, out, err)) &&
           note(w, (struct named_weight){ .n = shape.n, .k = shape.k, .has_bias = shape.bias },
               name, out, err);
}

bool linear_load_stacked(const struct weights *w, const struct linear_part *parts, int count,
    int64_t k, bool bias, struct packed **out, struct error *err) {
    int64_t n = 0;
    for (int i = 0; i < count; i++)
        n += parts[i].n;
    /* f32 holds every source dtype exactly, so parts of different dtypes can be stacked too. */
    float *weight_data = allocate(n * k, sizeof(float), parts[0].name, err);
    float *bias_data = weight_data ? allocate(n, sizeof(float), parts[0].name, err) : NULL;
    bool ok = weight_data && bias_data;
    int64_t row = 0;
    for (int i = 0; ok && i < count; i++) {
        const int64_t shape[2] = { parts[i].n, k };
        ok = get_f32(w, parts[i].name, "weight", 2, shape, weight_data + row * k, err) &&
             (!bias || get_f32(w, parts[i].name, "bias", 1, shape, bias_data + row, err));
        row += parts[i].n;
    }
    if (ok) {
        const struct tensor weight_tensor = tensor_2d(weight_data, DTYPE_F32, n, k);
        const struct tensor bias_tensor = tensor_1d(bias_data, DTYPE_F32, n);
        ok = w->check_only || linear_pack(w->kernels, parts[0].name, &weight_tensor,
                                  bias ? &bias_tensor : NULL, false, w->dtype, out, err);
    }
    free(bias_data);
    free(weight_data);
    row = 0;
    for (int i = 0; ok && i < count; i++) {
        const struct named_weight part = {
            .first = row, .n = parts[i].n, .k = k, .has_bias = bias
        };
        ok = note(w, part, parts[i].name, out, err);
        row += parts[i].n;
    }
    return ok;
}

bool qkv_load(const struct weights *w, const char *prefix, const char *const leaves[3],
    int64_t channels, bool bias, struct packed **out, struct error *err) {
    struct linear_part parts[3];
    for (int i = 0; i < 3; i++) {
        parts[i].n = channels;
        if (!layer_name(parts[i].name, prefix, leaves[i], err))
            return false;
    }
    return linear_load_stacked(w, parts, 3, channels, bias, out, err);
}

bool conv_load(const struct weights *w, const char *prefix, const char *leaf, enum conv_kind kind,
    int64_t c_out, int64_t c_in, struct packed **out, struct error *err) {
    const int64_t size = kind == CONV_1X1 ? 1 : 3;
    const int64_t shape[4] = { c_out, c_in, size, size };
    char name[SAFETENSORS_MAX_NAME_BYTES];
    struct tensor weight, bias;
    return layer_name(name, prefix, leaf, err) && get(w, name, "weight", 4, shape, &weight, err) &&
           get(w, name, "bias", 1, &c_out, &bias, err) &&
           (w->check_only ||
               conv2d_pack(w->kernels, name, &weight, &bias, kind, w->dtype, out, err)) &&
           note(w,
               (struct named_weight){
                   .n = c_out, .k = c_in, .has_bias = true, .is_conv = true, .kind = kind },
               name, out, err);
}

bool table_load(const struct weights *w, const char *prefix, const char *leaf, int64_t rows,
    int64_t channels, struct table *out, struct error *err) {
    const int64_t shape[2] = { rows, channels };
    char name[SAFETENSORS_MAX_NAME_BYTES];
    struct tensor t;
    if (!layer_name(name, prefix, leaf, err) || !get(w, name, "weight", 2, shape, &t, err))
        return false;
    const size_t bytes = (size_t)rows * (size_t)channels * dtype_size(w->dtype);
    if (!resident_alloc(w, name, bytes, &out->resident, err) ||
        !resident_fill(&out->resident, 0, w->dtype, &t, err)) {
        table_finish(out);
        return false;
    }
    out->tensor = tensor_2d(out->resident.data, w->dtype, rows, channels);
    out->tensor.device = w->kernels->device;
    if (note_resident(w, name, &out->tensor, NULL, err))
        return true;
    table_finish(out);
    return false;
}

void table_finish(struct table *table) {
    resident_finish(&table->resident);
    *table = (struct table){ 0 };
}

void layer_linear(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y) {
    op_linear(c, &(struct linear_args){ .x = x, .weight = weight, .y = y });
}

void layer_linear_add(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y) {
    op_linear(c, &(struct linear_args){ .x = x, .weight = weight, .residual = y, .y = y });
}

void layer_conv(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y) {
    op_conv2d(c, &(struct conv2d_args){ .x = x, .weight = weight, .y = y });
}

void layer_layer_norm(struct compute *c, const struct tensor *x, const struct norm *norm, float eps,
    struct tensor *y) {
    op_layer_norm(c, &(struct layer_norm_args){
                         .x = x, .gamma = &norm->gamma, .beta = &norm->beta, .eps = eps, .y = y });
}

void layer_self_attention(
    struct compute *c, const struct packed *qkv_weight, int heads, bool causal, struct tensor *y) {
    const size_t mark = arena_mark(c->arena);
    const int64_t channels = y->shape[2], head_dim = channels / heads;
    struct tensor qkv = compute_tensor_3d(c, y->dtype, y->shape[0], y->shape[1], 3 * channels);
    layer_linear(c, y, qkv_weight, &qkv);
    op_attention(c, &(struct attention_args){
                        .q = &qkv,
                        .k = &qkv,
                        .v = &qkv,
                        .k_offset = channels,
                        .v_offset = 2 * channels,
                        .heads = heads,
                        .head_dim = (int)head_dim,
                        .scale = 1.0f / sqrtf((float)head_dim),
                        .causal = causal,
                        .y = y,
                    });
    arena_release(c->arena, mark);
}

struct tensor layer_to_dtype(struct compute *c, const struct tensor *x, enum dtype dtype) {
    if (x->dtype == dtype)
        return *x;
    struct tensor y = compute_tensor_1d(c, dtype, tensor_elements(x));
    y.rank = x->rank;
    memcpy(y.shape, x->shape, sizeof(y.shape));
    op_convert(c, &(struct convert_args){ .x = x, .y = &y });
    return y;
}

void layer_conv_to_dtype(
    struct compute *c, const struct tensor *x, const struct packed *weight, struct tensor *y) {
    const bool widens = c->kernels->widens && y->dtype == DTYPE_F32 && !c->tape;
    if (x->dtype == y->dtype || widens) {
        layer_conv(c, x, weight, y);
        return;
    }
    const size_t mark = arena_mark(c->arena);
    struct tensor out = compute_tensor_4d(
        c, x->dtype, y->shape[0], y->shape[1], y->shape[2], y->shape[3]);
    layer_conv(c, x, weight, &out);
    op_convert(c, &(struct convert_args){ .x = &out, .y = y });
    arena_release(c->arena, mark);
}
