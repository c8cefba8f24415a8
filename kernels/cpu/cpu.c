#include "kernels/cpu/cpu.h"

#include <pthread.h>

extern const struct simd simd_table_portable;
#if defined(__x86_64__)
extern const struct simd simd_table_avx2, simd_table_avx512;
#endif

const struct simd *simd_best(void) {
#if defined(__x86_64__)
    static const struct simd *const all[] = { &simd_table_avx512, &simd_table_avx2,
        &simd_table_portable };
    return all[cpu_isa()];
#else
    return &simd_table_portable;
#endif
}

static struct kernels table;

static void fill_table(void) {
    const struct simd *simd = simd_best();
    table = *kernels_reference();
    table.name = "cpu";
    table.weight_dtypes = 1u << DTYPE_F32 | 1u << DTYPE_BF16;
    table.default_dtype = DTYPE_BF16;
    table.batch_images = 4;
    table.batch_px = 2 * 512 * 512;
#define ENTRY(name) table.name = simd->name;
    SIMD_OPERATIONS(ENTRY)
#undef ENTRY
    layers_register(&table);
}

const struct kernels *kernels_cpu(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_table);
    return &table;
}
