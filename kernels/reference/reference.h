/* Internal to kernels/reference/: the declarations that its files share.
 *
 * Every entry reads its inputs as f32 arrays, computes each output element alone with double
 * accumulators, and rounds once, when it stores. It is slow and obvious on purpose: every other
 * implementation is compared with it.
 */
#ifndef KERNELS_REFERENCE_REFERENCE_H
#define KERNELS_REFERENCE_REFERENCE_H

#include "kernels/backward.h"

/* A tensor's elements as f32: the tensor's own memory if it is f32, else a converted copy. */
struct floats {
    const float *data;
    float *copy; /* owned, or NULL */
};

/* A NULL tensor gives NULL data. */
bool floats_init(struct floats *f, const struct tensor *t, struct error *err)
    __attribute__((warn_unused_result));
void floats_finish(struct floats *f);

/* The output as f32: the tensor's own memory if it is f32, else a buffer that float_output_store
 * rounds into the tensor. */
struct float_output {
    float *data;
    float *buffer; /* owned, or NULL */
    struct tensor *y;
};

bool float_output_init(struct float_output *o, struct tensor *y, struct error *err)
    __attribute__((warn_unused_result));
/* Rounds the buffer into the tensor. Always returns true, so that an entry can end with "return
 * float_output_store(...)". */
bool float_output_store(struct float_output *o);
void float_output_finish(struct float_output *o);

/* t[i] = x, or t[i] += x if `accumulate`; rounded once. */
void reference_store(struct tensor *t, int64_t i, double x, bool accumulate);
/* Adds a finished gradient of a parameter: g is rounded to f32, then added in f32 (backward.h). */
static inline void reference_add_gradient(float *parameter, double g) {
    *parameter += (float)g;
}

double reference_activation(enum activation activation, double x);
/* activation'(x) */
double reference_derivative(enum activation activation, double x);
/* sum of a[i] b[i], i = 0..n-1 */
double reference_dot(const float *a, const float *b, int64_t n);

/* The moments of `count` runs of `width` adjacent elements; the runs are `step` elements apart. */
struct reference_moments {
    double mean, scale; /* scale = 1 / sqrt(biased variance + eps) */
};

struct reference_moments reference_moments(
    const float *x, int64_t count, int64_t step, int64_t width, float eps);

/* How a convolution walks over its input. For output pixel o, tap t of a line reads pixel o *
 * stride + t - before of an image: the input, enlarged `scale` times by repetition, with zeros
 * outside. */
struct reference_walk {
    int64_t taps, stride, before, scale;
};

struct reference_walk reference_walk(enum conv_kind kind);
/* The input coordinate for one output coordinate and tap, or -1 for padding. `size` is the size of
 * the input, `out_size` that of the output. */
int64_t reference_source(
    const struct reference_walk *w, int64_t out, int64_t tap, int64_t size, int64_t out_size);

/* A packed weight: f32 values, rounded first if `dtype` is f16 or bf16. Linear [n][k], convolution
 * [c_out][kh][kw][c_in]. */
struct reference_packed {
    struct packed base;
    float *weight; /* owned */
    float *bias;   /* owned, or NULL */
    enum dtype dtype;
};

bool reference_linear_pack(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype dtype, struct packed **out, struct error *err);
bool reference_conv2d_pack(const struct tensor *weight, const struct tensor *bias,
    enum conv_kind kind, enum dtype dtype, struct packed **out, struct error *err);
void reference_packed_destroy(struct packed *packed);
bool reference_unpack(const struct packed *packed, float *weight, float *bias, struct error *err);
bool reference_rewrite(
    struct packed *packed, const float *weight, const float *bias, struct error *err);

/* bool reference_NAME(const struct NAME_args *args, struct error *err) for each operation. */
#define ENTRY(name) bool reference_##name(const struct name##_args *args, struct error *err);
ALL_OPERATIONS(ENTRY)
#undef ENTRY

#endif
