/* Checks weights and packs them. Their shapes come from a file, so an error names the weight. */
#include "kernels/pack.h"

static bool is_float(enum dtype dtype) {
    return dtype == DTYPE_F32 || dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

static bool refuse(const char *name, const struct tensor *t, struct error *err, const char *want) {
    char text[112];
    return error_field(err, name, tensor_describe(t, text, sizeof(text)), "%s", want);
}

static bool sizes_are_positive(const struct tensor *t) {
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 1)
            return false;
    return true;
}

const char *kernels_dtype_names(const struct kernels *kernels) {
    static const char *const names[] = { "nothing", "f32", "bf16", "f32 or bf16", "f16",
        "f32 or f16", "bf16 or f16", "f32, bf16 or f16" };
    unsigned dtypes = kernels->weight_dtypes;
    return names[(dtypes >> DTYPE_F32 & 1) | (dtypes >> DTYPE_BF16 & 1) << 1 |
                 (dtypes >> DTYPE_F16 & 1) << 2];
}

/* Checks what linear and convolution weights have in common; `bias` may be NULL. */
static bool is_packable(const struct kernels *kernels, const char *name,
    const struct tensor *weight, const struct tensor *bias, enum dtype dtype, struct error *err) {
    if (!(kernels->weight_dtypes >> dtype & 1))
        return error_field(err, name, dtype_name(dtype), "%s packs weights as %s", kernels->name,
            kernels_dtype_names(kernels));
    if (!is_float(weight->dtype))
        return refuse(name, weight, err, "a weight is f32, f16 or bf16");
    if (!sizes_are_positive(weight))
        return refuse(name, weight, err, "every size of a weight is at least 1");
    if (!bias)
        return true;
    char text[112];
    if (bias->rank != 1 || bias->shape[0] != weight->shape[0] || !is_float(bias->dtype))
        return error_field(err, name, tensor_describe(bias, text, sizeof(text)),
            "its bias is f32, f16 or bf16 [%lld]", (long long)weight->shape[0]);
    return true;
}

/* Sets the owner and a new serial number. `last` is atomic because any thread may pack. */
static void sign(struct packed *packed, const struct kernels *kernels) {
    static _Atomic uint64_t last;
    packed->owner = kernels;
    packed->serial = ++last;
}

bool linear_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, bool geglu, enum dtype dtype, struct packed **out,
    struct error *err) {
    *out = NULL;
    bool flat = weight->rank == 2;
    if (weight->rank == 4)
        flat = weight->shape[2] == 1 && weight->shape[3] == 1;
    if (!flat)
        return refuse(name, weight, err, "a linear weight is [n][k] or [n][k][1][1]");
    if (!is_packable(kernels, name, weight, bias, dtype, err))
        return false;
    if (geglu && weight->shape[0] % 2 != 0)
        return refuse(name, weight, err, "a GEGLU weight has an even number of outputs");
    struct tensor matrix = tensor_view_2d(weight, weight->shape[0], weight->shape[1]);
    if (!kernels->linear_pack(&matrix, bias, geglu, dtype, out, err))
        return error_prefix(err, "%s", name);
    sign(*out, kernels);
    return true;
}

bool conv2d_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, enum conv_kind kind, enum dtype dtype, struct packed **out,
    struct error *err) {
    *out = NULL;
    int64_t size = kind == CONV_1X1 ? 1 : 3;
    if (weight->rank != 4 || weight->shape[2] != size || weight->shape[3] != size)
        return refuse(name, weight, err,
            size == 1 ? "this convolution's weight is [c_out][c_in][1][1]"
                      : "this convolution's weight is [c_out][c_in][3][3]");
    if (!is_packable(kernels, name, weight, bias, dtype, err))
        return false;
    if (!kernels->conv2d_pack(weight, bias, kind, dtype, out, err))
        return error_prefix(err, "%s", name);
    sign(*out, kernels);
    return true;
}

bool packed_unpack(const struct packed *packed, float *weight, float *bias, struct error *err) {
    return packed->owner->unpack(packed, weight, bias, err);
}

bool packed_rewrite(
    struct packed *packed, const float *weight, const float *bias, struct error *err) {
    return packed->owner->rewrite(packed, weight, bias, err);
}

void packed_destroy(struct packed *packed) {
    if (packed)
        packed->owner->packed_destroy(packed);
}
