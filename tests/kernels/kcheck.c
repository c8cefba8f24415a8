/* kcheck [--seed N] [--filter TEXT] [--quick] [--bench]: see kcheck.h. The environment variable
 * LATENTD_CPU=portable|avx2|avx512 chooses the instruction set under test. */
#include "tests/kernels/kcheck.h"
#include "kernels/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int usage(void) {
    printf("usage: kcheck [--seed N] [--filter TEXT] [--quick] [--bench]\n"
           "  --seed N       the same random numbers again (default: from the clock)\n"
           "  --filter TEXT  only what has TEXT in \"operation shape\"\n"
           "  --quick        small shapes only\n"
           "  --bench        measure real shapes instead of checking\n"
           "LATENTD_CPU=portable|avx2|avx512 chooses the instruction set.\n");
    return 2;
}

int main(int argc, char **argv) {
    struct kcheck k = { .seed = (uint64_t)time(NULL) };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            k.seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
            k.filter = argv[++i];
        else if (strcmp(argv[i], "--quick") == 0)
            k.quick = true;
        else if (strcmp(argv[i], "--bench") == 0)
            k.bench = true;
        else
            return usage();
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was found is seen even if the program dies */
    const char *wish = getenv("LATENTD_CPU");
    if (wish && strcmp(wish, simd_best()->name) != 0) {
        printf("kcheck: this processor has no %s\n", wish);
        return 77; /* skipped */
    }
    printf("kcheck: %s against %s, instruction set %s, seed %llu\n", kernels_cpu()->name,
        kernels_reference()->name, simd_best()->name, (unsigned long long)k.seed);
    if (k.bench) {
        k.peak = measure_peak();
        printf("f32 peak of one thread, in processor time: %.1f GFLOP/s\n", k.peak);
    }
    check_linear(&k);
    check_conv2d(&k);
    check_norms(&k);
    check_attention(&k);
    check_embeddings(&k);
    check_pointwise(&k);
    if (k.bench)
        return 0;
    printf("%d subjects checked, %d failed\n", k.checked, k.failed);
    return k.failed || (!k.checked && !k.filter) ? 1 : 0;
}
