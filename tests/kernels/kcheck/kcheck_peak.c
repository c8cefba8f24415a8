/* Measures the peak of one core: independent fused multiply-adds. */
#include "kernels/cpu/level.h"
#include "tests/kernels/kcheck/kcheck.h"

#define CHAINS 12
#define ROUNDS 4000000

/* Computes `lanes * CHAINS * 2 * ROUNDS` operations. Returns the sum so that the compiler keeps all
 * of them. */
#define DEFINE_CHAINS(name, lanes, flags)                                                          \
    typedef float vector_##name __attribute__((vector_size(4 * (lanes))));                         \
    flags static float chains_##name(float x) {                                                    \
        vector_##name sum[CHAINS], factor = x - (vector_##name){ 0 };                              \
        for (int i = 0; i < CHAINS; i++)                                                           \
            sum[i] = factor + (float)i;                                                            \
        for (int round = 0; round < ROUNDS; round++) {                                             \
            _Pragma("GCC unroll 12") for (int i = 0; i < CHAINS; i++)                              \
                sum[i] = sum[i] * factor + factor;                                                 \
        }                                                                                          \
        float total = 0;                                                                           \
        for (int i = 0; i < CHAINS; i++)                                                           \
            total += sum[i][0];                                                                    \
        return total;                                                                              \
    }

DEFINE_CHAINS(portable, 4, )
#if defined(__x86_64__)
DEFINE_CHAINS(avx2, 8, __attribute__((target("avx2,fma"))))
DEFINE_CHAINS(avx512, 16, __attribute__((target("avx512f,fma"))))
#endif

double measure_cpu_peak(void) {
    int lanes = 4;
    float (*chains)(float) = chains_portable;
#if defined(__x86_64__)
    float (*const all[])(float) = { chains_avx512, chains_avx2, chains_portable };
    const int narrower = cpu_level()->matmul->width == 32   ? 0
                         : cpu_level()->matmul->width == 16 ? 1
                                                            : 2;
    chains = all[narrower];
    lanes = 16 >> narrower;
#endif
    double best = 0;
    volatile float keep = 0;
    for (int i = 0; i < 16; i++) {
        double start = seconds_busy();
        keep = keep + chains(0.999f);
        double rate = lanes * CHAINS * 2.0 * ROUNDS / (seconds_busy() - start);
        best = rate > best ? rate : best;
    }
    return best;
}
