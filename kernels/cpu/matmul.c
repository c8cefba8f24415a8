#include "kernels/cpu/matmul.h"

extern const struct matmul matmul_table_portable;
#if defined(__x86_64__)
extern const struct matmul matmul_table_avx2, matmul_table_avx512;
#endif

const struct matmul *const *matmul_tables(void) {
    static const struct matmul *const all[] = {
#if defined(__x86_64__)
        &matmul_table_avx512,
        &matmul_table_avx2,
#endif
        &matmul_table_portable,
        NULL,
    };
    const struct matmul *const *best = all;
#if defined(__x86_64__)
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    best += avx512 ? 0 : avx2 ? 1 : 2;
#endif
    return best;
}

const struct matmul *matmul_best(void) {
    return *matmul_tables();
}
