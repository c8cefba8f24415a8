#include "kernels/cpu/level.h"

#include "base/log.h"
#include "kernels/cpu/attention/amx.h"
#include "kernels/cpu/attention/attention_pairs.h"

#include <oneapi/dnnl/dnnl.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern const struct simd simd_table_portable;
extern const struct matmul matmul_table_portable;
#if defined(__x86_64__)
extern const struct simd simd_table_avx2, simd_table_avx512;
extern const struct matmul matmul_table_avx2, matmul_table_avx512;

static const struct own_attention pairs = { "bf16 pairs", attention_pairs_takes, attention_pairs };
static const struct own_attention tiles = { "AMX tiles", attention_tiles_takes, attention_tiles };
#endif

/* Two test programs have additional levels, which test the code for processors that the machine
 * does not have (kernels/meson.build). */
#if defined(TWINS) /* attention on plain-C twins of the instructions */
static const struct own_attention pairs_twin = { "bf16 pairs' twin", attention_pairs_takes,
    attention_pairs_twin };
static const struct own_attention tiles_twin = { "AMX tiles' twin", attention_tiles_takes,
    attention_tiles_twin };
#endif
#if defined(NARROWED) /* the AVX-512 code, in AVX2 instructions */
extern const struct simd simd_table_wide;
extern const struct matmul matmul_table_wide;
#endif

/* clang-format off */

/* Best first. Levels for tests come last, so that they are used only if asked for by name. The
 * measurements behind this table are in docs/performance-log.md. */
static const struct cpu_level all[] = {
/*    name                vectors               f32 products            bf16?  linear        3x3             3x3 deep        3x3 up          attention    oneDNN at most */
#if defined(__x86_64__)
    { "amx",              &simd_table_avx512,   &matmul_table_avx512,   true,  LAYER_ONEDNN, LAYER_ONEDNN,   LAYER_ONEDNN,   LAYER_PHASES,   &tiles,      0 /* no limit */ },
    { "avx512_bf16",      &simd_table_avx512,   &matmul_table_avx512,   true,  LAYER_ONEDNN, LAYER_WINOGRAD, LAYER_ONEDNN,   LAYER_PHASES,   &pairs,      dnnl_cpu_isa_avx512_core_bf16 },
    { "avx512",           &simd_table_avx512,   &matmul_table_avx512,   false, LAYER_F32,    LAYER_WINOGRAD, LAYER_WINOGRAD, LAYER_WINOGRAD, NULL,        dnnl_cpu_isa_avx512_core },
    { "avx2",             &simd_table_avx2,     &matmul_table_avx2,     false, LAYER_F32,    LAYER_WINOGRAD, LAYER_WINOGRAD, LAYER_WINOGRAD, NULL,        dnnl_cpu_isa_avx2 },
#endif
    { "portable",         &simd_table_portable, &matmul_table_portable, false, LAYER_F32,    LAYER_WINOGRAD, LAYER_WINOGRAD, LAYER_WINOGRAD, NULL,        dnnl_cpu_isa_sse41 },
#if defined(TWINS)
    { "amx_twin",         &simd_table_portable, &matmul_table_portable, false, LAYER_F32,    LAYER_WINOGRAD, LAYER_WINOGRAD, LAYER_WINOGRAD, &tiles_twin, dnnl_cpu_isa_sse41 },
    { "avx512_bf16_twin", &simd_table_portable, &matmul_table_portable, false, LAYER_F32,    LAYER_WINOGRAD, LAYER_WINOGRAD, LAYER_WINOGRAD, &pairs_twin, dnnl_cpu_isa_sse41 },
#endif
#if defined(NARROWED)
    { "avx512_narrow",    &simd_table_wide,     &matmul_table_wide,     false, LAYER_F32,    LAYER_WINOGRAD, LAYER_WINOGRAD, LAYER_WINOGRAD, NULL,        dnnl_cpu_isa_avx2 },
#endif
};

/* clang-format on */

#define COUNT ((int)(sizeof(all) / sizeof(all[0])))

static const struct cpu_level *present[COUNT + 1];
static int present_count;
static const struct cpu_level *chosen;

/* *can: whether the processor has the level. *fast: whether the level is also fast on it.
 * AVX512_BF16 is twice as fast as f32 on AMD's processors and half as fast on Intel's. */
static void processor_has(const char *name, bool *can, bool *fast) {
    *can = *fast = true;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (strcmp(name, "avx2") == 0)
        *can = *fast = avx2;
#if defined(NARROWED)
    if (strcmp(name, "avx512_narrow") == 0)
        *can = *fast = avx2;
#endif
    if (strcmp(name, "avx512") == 0)
        *can = *fast = avx512;
    if (strcmp(name, "avx512_bf16") == 0) {
        *can = avx512 && __builtin_cpu_supports("avx512bf16");
        *fast = *can && __builtin_cpu_is("amd");
    }
    if (strcmp(name, "amx") == 0)
        *can = *fast = avx512 && amx_permitted();
#else
    (void)name;
#endif
}

static void choose(void) {
    char names[128] = "";
    const char *wish = getenv("LATENTD_CPU");
    const struct cpu_level *best = NULL, *wished = NULL;
    for (int i = 0; i < COUNT; i++) {
        bool can, fast;
        processor_has(all[i].name, &can, &fast);
        if (!can)
            continue;
        present[present_count++] = &all[i];
        if (fast && !best)
            best = &all[i];
        if (wish && strcmp(wish, all[i].name) == 0)
            wished = &all[i];
        size_t used = strlen(names);
        snprintf(names + used, sizeof(names) - used, "%s%s", used ? ", " : "", all[i].name);
    }
    chosen = wished ? wished : best;
    if (wish && *wish && !wished)
        log_warning("LATENTD_CPU: %.32s is not one of the levels that this processor has (%s); "
                    "using %s",
            wish, names, chosen->name);
}

static void choose_once(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose);
}

const struct cpu_level *cpu_level(void) {
    choose_once();
    return chosen;
}

const struct cpu_level *const *cpu_levels(void) {
    choose_once();
    return present;
}

const char *layer_code_name(enum layer_code code) {
    static const char *const names[] = { "f32", "f32, Winograd's form", "oneDNN, bf16",
        "oneDNN, bf16, four phases" };
    return names[code];
}
