/* kcheck [--device D] [--seed N] [--filter TEXT] [--quick|--channels] [--kernel NAME] [--bench]:
 * see kcheck.h. The environment variable LATENTD_CPU=portable|avx2|avx512 chooses the CPU's
 * instruction set. */
#include "tests/kernels/kcheck.h"
#include "kernels/cpu/cpu.h"
#include "kernels/devices.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int usage(void) {
    printf("usage: kcheck [--device cpu|cuda[:N]] [--seed N] [--filter TEXT] [--quick|--channels]\n"
           "              [--kernel NAME] [--bench]\n"
           "  --device D     whose operations (default: cpu)\n"
           "  --seed N       the same random numbers again (default: from the clock)\n"
           "  --filter TEXT  only what has TEXT in \"operation shape\"\n"
           "  --quick        small shapes only\n"
           "  --channels     and real channel counts on small images\n"
           "  --kernel NAME  where a kernel's name begins so, that one (\"hopper\", \"cublaslt\")\n"
           "  --bench        measure real shapes instead of checking; with --quick small ones\n"
           "LATENTD_CPU=portable|avx2|avx512 chooses the instruction set.\n");
    return 2;
}

int main(int argc, char **argv) {
    struct kcheck k = { .seed = (uint64_t)time(NULL) };
    struct device_choice device = { .kind = DEVICE_CPU };
    struct error err = { 0 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            k.seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
            k.filter = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc &&
                 device_choice_parse(argv[i + 1], &device))
            i++;
        else if (strcmp(argv[i], "--quick") == 0)
            k.quick = true;
        else if (strcmp(argv[i], "--channels") == 0)
            k.channels = true;
        else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc)
            k.kernel = argv[++i];
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
    k.table = devices_open(&device, &err);
    if (!k.table) {
        printf("kcheck: %s\n", err.message);
        return 77; /* skipped */
    }
    printf("kcheck: %s against %s, instruction set %s, seed %llu\n", k.table->name,
        kernels_reference()->name, simd_best()->name, (unsigned long long)k.seed);
    if (k.kernel && !k.table->tuner) {
        printf("kcheck: on the %s there are no kernels to choose between\n", k.table->name);
        return 2;
    }
    if (k.kernel)
        (void)k.table->tuner->prefer(k.kernel);
    if (k.bench)
        measure_peaks(&k);
    check_linear(&k);
    check_conv2d(&k);
    check_norms(&k);
    check_attention(&k);
    check_embeddings(&k);
    check_pointwise(&k);
    if (k.bench)
        return 0;
    printf("%d subjects checked, %d failed\n", k.checked, k.failed);
    if (k.kernel) {
        const int used = k.table->tuner->prefer(NULL);
        printf("%d shapes by \"%s\"\n", used, k.kernel);
        k.failed += used == 0; /* checked nothing that was meant */
    }
    return k.failed || (!k.checked && !k.filter) ? 1 : 0;
}
