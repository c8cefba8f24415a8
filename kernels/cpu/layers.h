/* Linear layers and convolutions of the CPU back end. An engine packs weights its own way and
 * multiplies them with activations. layers.c chooses the engine of each weight and holds the
 * entries of the table.
 *
 *  - panels: our own f32 arithmetic (matmul.h), weights kept as f32 or bf16, activations f32 or
 *    bf16. Computes everything, on every processor.
 *  - oneDNN: products of bf16 weights and bf16 activations, where the processor has them.
 *  - phases: upsampling, as four of oneDNN's convolutions.
 *
 * level.h says which engine a level uses for which layer.
 */
#ifndef KERNELS_CPU_LAYERS_H
#define KERNELS_CPU_LAYERS_H

#include "kernels/backward.h"
#include "kernels/cpu/level.h"
#include "kernels/kernels.h"

struct layer_engine;

/* Every engine's weight starts with this member. */
struct layer {
    struct packed packed;
    const struct layer_engine *engine;
    enum dtype activation_dtype;
};

/* The functions of an engine. Callers have checked all arguments. */
struct layer_engine {
    /* kind is meaningful if is_conv. weight: [n][k] or [n][k][s][s]. */
    bool (*pack)(const struct tensor *weight, const struct tensor *bias, bool is_conv,
        enum conv_kind kind, bool geglu, enum dtype dtype, struct layer **out, struct error *err);
    void (*destroy)(struct layer *layer);
    /* The same as unpack and rewrite of struct kernels. */
    bool (*unpack)(struct layer *layer, float *weight, float *bias, struct error *err);
    bool (*rewrite)(struct layer *layer, const float *weight, const float *bias, struct error *err);
    bool (*linear)(struct layer *layer, const struct linear_args *args, struct error *err);
    bool (*conv2d)(struct layer *layer, const struct conv2d_args *args, struct error *err);
    /* Compute dx only; args->dx is not NULL. */
    bool (*linear_dx)(
        struct layer *layer, const struct linear_backward_args *args, struct error *err);
    bool (*conv2d_dx)(
        struct layer *layer, const struct conv2d_backward_args *args, struct error *err);
};

/* Returns the code that multiplies a weight [n][k...] on the level in use. kind is meaningful if
 * is_conv. */
enum layer_code layers_code(
    bool is_conv, enum conv_kind kind, int64_t n, int64_t k, enum dtype activation_dtype);

extern const struct layer_engine panels_engine;

/* Whether the panels engine uses Winograd's form for a convolution of k input channels. */
bool panels_take_winograd(enum conv_kind kind, int64_t k);

extern const struct layer_engine dnnl_engine; /* not CONV_3X3_UP; x and weight of one dtype */

/* CONV_3X3_UP of bf16 as four 2x2 convolutions by oneDNN (phases.c). */
extern const struct layer_engine phases_engine;

struct dnnl_question {
    enum conv_kind kind; /* CONV_1X1: a product of h tokens */
    int phase;           /* for CONV_3X3_UP: 0 to 3 */
    int64_t n, k, h, w;
    bool residual;
    bool back; /* ask about dx; `residual`: the call adds to dx */
};

/* Writes the name of oneDNN's implementation of a bf16 layer ("brgconv:avx512_core_bf16"). A test
 * uses it to check that no shape of SD-1.5 falls back to oneDNN's reference code. */
bool dnnl_implementation(
    const struct dnnl_question *question, char *out, size_t size, struct error *err);

/* Packs a convolution that has no `enum conv_kind` for the oneDNN engine: h x w to h x w pixels,
 * 2x2, stride 1. It is padded with `top` rows of zeros above and 1 - `top` below, and with `left`
 * columns of zeros on the left and 1 - `left` on the right. weight: [n][k][2][2]. The layer runs
 * through dnnl_engine. */
bool dnnl_pack_2x2(const struct tensor *weight, const struct tensor *bias, int top, int left,
    enum dtype dtype, struct layer **out, struct error *err);

#endif
