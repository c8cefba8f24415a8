#include "kernels/cpu/matmul.h"
#include "kernels/cpu/cpu.h"

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
#if defined(__x86_64__)
    return all + cpu_isa();
#else
    return all;
#endif
}

const struct matmul *matmul_best(void) {
    return *matmul_tables();
}
