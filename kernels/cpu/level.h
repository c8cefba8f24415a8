/* Which code computes what on which processor: one table (level.c).
 *
 * A level is a set of instructions. The process uses the best level that the processor runs fast
 * (avx512_bf16 only on AMD's processors). The environment variable LATENTD_CPU selects another
 * level by name, for tests and measurements. The level also limits the instructions that oneDNN
 * uses. A name that is unknown, or of a level that the processor does not have, changes nothing and
 * is logged. Nothing is measured at run time, so the bits of a result depend on the kind of
 * processor alone.
 */
#ifndef KERNELS_CPU_LEVEL_H
#define KERNELS_CPU_LEVEL_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/matmul.h"

/* How a layer of bf16 weights is multiplied. */
enum layer_code {
    LAYER_F32,      /* our own f32 products (panels.c) */
    LAYER_WINOGRAD, /* our own f32 products, in Winograd's form */
    LAYER_ONEDNN,   /* oneDNN's bf16 products */
    LAYER_PHASES,   /* upsampling as four of oneDNN's 2x2 convolutions (phases.c) */
};

/* An attention in bf16 that uses instructions of this level only. */
struct own_attention {
    const char *name; /* for messages */
    bool (*takes)(const struct attention_args *args);
    bool (*compute)(
        const struct attention_args *args, struct error *err); /* call only if `takes` is true */
};

struct cpu_level {
    const char *name;
    const struct simd *simd;     /* norms, f32 attention, elementwise operations */
    const struct matmul *matmul; /* products in f32 */
    bool multiplies_bf16;        /* bf16 weights are multiplied with bf16 activations */
    enum layer_code linear;      /* also 1x1, stride 2, and 3x3 of few input channels */
    enum layer_code conv3x3;     /* stride 1, to fewer than LEVEL_DEEP channels */
    enum layer_code conv3x3_deep;
    enum layer_code conv3x3_up;
    const struct own_attention *attention; /* NULL: `simd` computes bf16 too */
    int dnnl_isa;                          /* oneDNN's limit, a dnnl_cpu_isa_t */
};

/* From this many output channels on, Winograd's form is slower: a 3x3 convolution then has so few
 * pixels that transforming its filters costs more than it saves. */
#define LEVEL_DEEP 1280

/* The level in use. */
const struct cpu_level *cpu_level(void);

/* The levels that this processor has, best first, ended by NULL. */
const struct cpu_level *const *cpu_levels(void);

/* The code's name, for messages. */
const char *layer_code_name(enum layer_code code);

#endif
