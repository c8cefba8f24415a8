#include "kernels/check.h"

#include <stdio.h>

#define TEXT_SIZE 112

bool check_fail(const struct check *k, const char *format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    return error_set(&k->c->error, ERROR_INTERNAL, "%s: %s", k->op, text);
}

bool check_tensor(
    const struct check *k, const char *name, const struct tensor *t, int rank_min, int rank_max) {
    char text[TEXT_SIZE];
    if (!t)
        return check_fail(k, "%s is missing", name);
    if (t->rank < rank_min || t->rank > rank_max)
        return check_fail(k, "%s is %s, its rank must be %d to %d", name,
            tensor_describe(t, text, sizeof(text)), rank_min, rank_max);
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 1)
            return check_fail(k, "%s is %s, every size must be at least 1", name,
                tensor_describe(t, text, sizeof(text)));
    if (!t->data)
        return check_fail(k, "%s (%s) has no memory", name, tensor_describe(t, text, sizeof(text)));
    if (t->device != k->c->kernels->device)
        return check_fail(k, "%s (%s) is on another device than %s", name,
            tensor_describe(t, text, sizeof(text)), k->c->kernels->name);
    return true;
}

bool check_activation(
    const struct check *k, const char *name, const struct tensor *t, int rank_min, int rank_max) {
    char text[TEXT_SIZE];
    if (!check_tensor(k, name, t, rank_min, rank_max))
        return false;
    bool takes_f16 = k->c->kernels->weight_dtypes & 1u << DTYPE_F16;
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && !(t->dtype == DTYPE_F16 && takes_f16))
        return check_fail(k, "%s is %s, it must be f32%s bf16", name,
            tensor_describe(t, text, sizeof(text)), takes_f16 ? ", f16 or" : " or");
    return true;
}

bool check_dtype(const struct check *k, const char *name, const struct tensor *t, enum dtype dtype,
    const char *like_name) {
    char text[TEXT_SIZE];
    if (t->dtype == dtype)
        return true;
    return check_fail(k, "%s is %s, it must be %s%s%s", name,
        tensor_describe(t, text, sizeof(text)), dtype_name(dtype), like_name ? " like " : "",
        like_name ? like_name : "");
}

bool check_like(const struct check *k, const char *name, const struct tensor *t,
    const char *like_name, const struct tensor *like) {
    char text[TEXT_SIZE], want[TEXT_SIZE];
    if (!check_tensor(k, name, t, 1, TENSOR_MAX_RANK))
        return false;
    if (tensor_same_shape(t, like) && t->dtype == like->dtype)
        return true;
    return check_fail(k, "%s is %s, it must be like %s, %s", name,
        tensor_describe(t, text, sizeof(text)), like_name,
        tensor_describe(like, want, sizeof(want)));
}

bool check_shape(const struct check *k, const char *name, const struct tensor *t,
    const struct tensor *want, const char *from_name, const struct tensor *from) {
    char text[TEXT_SIZE], expected[TEXT_SIZE], source[TEXT_SIZE];
    if (tensor_same_shape(t, want) && t->dtype == want->dtype)
        return true;
    return check_fail(k, "%s is %s, it must be %s for %s %s", name,
        tensor_describe(t, text, sizeof(text)), tensor_describe(want, expected, sizeof(expected)),
        from_name, tensor_describe(from, source, sizeof(source)));
}

bool check_row_add(const struct check *k, const char *name, const struct tensor *t, int64_t offset,
    int64_t channels, const char *from_name, const struct tensor *from) {
    char text[TEXT_SIZE], source[TEXT_SIZE];
    if (t->shape[0] == from->shape[0] && offset >= 0 && channels <= t->shape[1] - offset)
        return true;
    return check_fail(k, "%s is %s, it must have a row with %lld channels from %lld on for %s %s",
        name, tensor_describe(t, text, sizeof(text)), (long long)channels, (long long)offset,
        from_name, tensor_describe(from, source, sizeof(source)));
}

bool check_apart(const struct check *k, const struct tensor *y, const char *name,
    const struct tensor *x, bool may_be_same) {
    return check_output_apart(k, "y", y, name, x, may_be_same);
}

bool check_output_apart(const struct check *k, const char *output_name, const struct tensor *y,
    const char *name, const struct tensor *x, bool may_be_same) {
    char text[TEXT_SIZE], other[TEXT_SIZE];
    if (!x)
        return true;
    uintptr_t y_begin = (uintptr_t)y->data, y_end = y_begin + tensor_bytes(y);
    uintptr_t x_begin = (uintptr_t)x->data, x_end = x_begin + tensor_bytes(x);
    if (y_begin >= x_end || x_begin >= y_end)
        return true;
    if (may_be_same && y_begin == x_begin && y_end == x_end)
        return true;
    return check_fail(k, "%s (%s) overlaps %s (%s)", output_name,
        tensor_describe(y, text, sizeof(text)), name, tensor_describe(x, other, sizeof(other)));
}

bool check_activation_kind(const struct check *k, enum activation activation) {
    if (activation >= ACTIVATION_NONE && activation <= ACTIVATION_GELU)
        return true;
    return check_fail(k, "activation %d is unknown", (int)activation);
}

bool check_weight(const struct check *k, const struct packed *weight, bool is_conv) {
    if (!weight)
        return check_fail(k, "weight is missing");
    if (weight->is_conv != is_conv)
        return check_fail(k, "weight is packed for %s", weight->is_conv ? "conv2d" : "linear");
    if (weight->owner != k->c->kernels)
        return check_fail(k, "weight is packed for %s, not for %s",
            weight->owner ? weight->owner->name : "nobody", k->c->kernels->name);
    return true;
}

bool check_conv_output(const struct check *k, enum conv_kind kind, const struct tensor *x,
    int64_t n, enum dtype dtype, const struct tensor *y) {
    char text[112];
    struct tensor want = *x;
    want.dtype = dtype;
    for (int i = 1; i <= 2; i++) {
        want.shape[i] = conv_out_size(kind, x->shape[i]);
        /* An upsampling may give one pixel less than twice the size: the size before the model's
         * downsampling may have been odd. */
        if (kind == CONV_3X3_UP && y->shape[i] == want.shape[i] - 1)
            want.shape[i]--;
        if (want.shape[i] < 1)
            return check_fail(k, "x is %s, too small for this convolution",
                tensor_describe(x, text, sizeof(text)));
    }
    want.shape[3] = n;
    return check_shape(k, "y", y, &want, "x", x) && check_apart(k, y, "x", x, false);
}

bool check_term(const struct check *k, const struct low_rank_term *t, int64_t channels) {
    if (!t->down || !t->up)
        return check_fail(k, "a term's factors are missing");
    if (t->rank < 1 || t->n < 1 || t->first < 0 || t->n > channels - t->first)
        return check_fail(k, "a term of rank %lld to %lld outputs from %lld on does not fit %lld",
            (long long)t->rank, (long long)t->n, (long long)t->first, (long long)channels);
    return true;
}
