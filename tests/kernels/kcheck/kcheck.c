/* kcheck [--device D] [--seed N] [--filter TEXT] [--operation NAME] [--quick|--channels]
 * [--kernel NAME] [--names] [--bench]: see kcheck.h. The environment variable
 * LATENTD_CPU=portable|avx2|avx512|avx512_bf16|amx chooses the CPU's instruction set. */
#include "tests/kernels/kcheck/kcheck.h"
#include "kernels/devices.h"
#include "tests/check.h"
#include "tests/kernels/cpu/level.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static int usage(void) {
    printf("usage: kcheck [--device reference|cpu|cuda[:N]] [--seed N] [--filter TEXT] "
           "[--quick|--channels]\n"
           "              [--operation NAME] [--kernel NAME] [--names] [--bench]\n"
           "       kcheck --list\n"
           "  --device D     whose operations (default: cpu); reference: compared with itself\n"
           "  --seed N       the same random numbers again (default: from the clock)\n"
           "  --filter TEXT  only what has TEXT in \"operation shape\"\n"
           "  --operation NAME  this operation alone\n"
           "  --names        say which subject comes before it runs\n"
           "  --list         the operations' names, and end\n"
           "  --facts        what the device says of itself, and end\n"
           "  --quick        small shapes only\n"
           "  --channels     and real channel counts on small images\n"
           "  --kernel NAME  where a kernel's name begins so, that one (\"hopper\", \"mma\")\n"
           "  --bench        measure real shapes instead of checking; with --quick small ones\n"
           "LATENTD_CPU=portable|avx2|avx512|avx512_bf16|amx chooses the instruction set.\n");
    return 2;
}

/* Operations that the CPU leaves to the reference: copies, sums with the same bits, a few sines,
 * and parts of training that are still plain C. check_entry fails if an operation falls back
 * without being listed here, or is listed without falling back. */
static const char *const left_to_reference[] = { "timestep_embedding", "concat", "combine", "blend",
    "noise", "embedding_backward", "dropout", "mse", NULL };

/* Operations that CUDA does not compute; check_absence verifies this list. */
static const char *const absent_on_cuda[] = { NULL };

static bool is_in(const char *const *list, const char *op) {
    while (*list && strcmp(op, *list) != 0)
        list++;
    return *list != NULL;
}

static void check_entry(struct kcheck *k, const char *op) {
    const bool own = k->table->device != DEVICE_CPU || k->table == kernels_reference() ||
                     !is_in(left_to_reference, op);
    if (entry_differs(k, op) == own)
        return;
    printf("FAIL %s: on %s it %s the reference's, expected was %s\n", op, k->table->name,
        own ? "is" : "is not", own ? "one of its own" : "the reference's");
    k->failed++;
}

static int list_operations(void) {
#define LIST_OPERATION(name) puts(#name);
    ALL_OPERATIONS(LIST_OPERATION)
#undef LIST_OPERATION
    return 0;
}

static bool is_absent(const struct kcheck *k, const char *op) {
    return k->table->device == DEVICE_CUDA && is_in(absent_on_cuda, op);
}

/* Called after an operation's subjects. Fails if the table's answer does not match
 * absent_on_cuda. */
static void check_absence(struct kcheck *k, const char *op, int checked, int absent) {
    if (!(is_absent(k, op) ? checked : absent))
        return;
    printf("FAIL %s: %s %s it, expected was the contrary\n", op, k->table->name,
        absent ? "does not compute" : "computes");
    k->failed++;
}

int main(int argc, char **argv) {
    struct kcheck k = { .seed = (uint64_t)time(NULL) };
    struct device_choice device = { .kind = DEVICE_CPU };
    struct error err = { 0 };
    bool facts = false, reference = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            k.seed = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--filter") == 0 && i + 1 < argc)
            k.filter = argv[++i];
        else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc &&
                 strcmp(argv[i + 1], "reference") == 0) {
            reference = true;
            i++;
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc &&
                   device_choice_parse(argv[i + 1], &device))
            i++;
        else if (strcmp(argv[i], "--quick") == 0)
            k.quick = true;
        else if (strcmp(argv[i], "--channels") == 0)
            k.channels = true;
        else if (strcmp(argv[i], "--kernel") == 0 && i + 1 < argc)
            k.kernel = argv[++i];
        else if (strcmp(argv[i], "--operation") == 0 && i + 1 < argc)
            k.operation = argv[++i];
        else if (strcmp(argv[i], "--names") == 0)
            k.names = true;
        else if (strcmp(argv[i], "--list") == 0)
            return list_operations();
        else if (strcmp(argv[i], "--facts") == 0)
            facts = true;
        else if (strcmp(argv[i], "--bench") == 0)
            k.bench = true;
        else
            return usage();
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* keeps the output if the program dies */
    if (level_is_missing())
        return 77; /* skipped */
    k.table = reference ? kernels_reference() : devices_open(&device, &err);
    if (!k.table)
        return check_no_device(err.message);
    printf("kcheck: %s against %s, level %s, seed %llu\n", k.table->name, kernels_reference()->name,
        cpu_level()->name, (unsigned long long)k.seed);
    if (k.kernel && !k.table->tuner) {
        printf("kcheck: on the %s there are no kernels to choose between\n", k.table->name);
        return 2;
    }
    if (facts) {
        if (k.table->tuner)
            k.table->tuner->print_facts(stdout);
        return 0;
    }
    if (k.kernel)
        (void)k.table->tuner->prefer(k.kernel);
    if (k.bench)
        measure_peaks(&k);
#define CHECK_OPERATION(name)                                                                      \
    if (!k.operation || strcmp(k.operation, #name) == 0) {                                         \
        const int checked = k.checked, absent = k.absent;                                          \
        check_entry(&k, #name);                                                                    \
        if (!k.bench || !is_absent(&k, #name))                                                     \
            check_##name(&k);                                                                      \
        check_absence(&k, #name, k.checked - checked, k.absent - absent);                          \
    }
    ALL_OPERATIONS(CHECK_OPERATION)
#undef CHECK_OPERATION
    if (!k.checked) {
        printf("FAIL: no subject of %s that %s computes itself has \"%s\" in its name\n",
            k.operation ? k.operation : "any operation", k.table->name, k.filter ? k.filter : "");
        return 1;
    }
    if (k.bench)
        return k.failed ? 1 : 0;
    printf("%d subjects checked, %d failed; %d gradients of parameters added to other numbers\n",
        k.checked, k.failed, k.added);
    if (k.kernel) {
        const int used = k.table->tuner->prefer(NULL);
        printf("%d shapes by \"%s\"\n", used, k.kernel);
        k.failed += used == 0; /* fails if the kernel was never used */
    }
    return k.failed ? 1 : 0;
}
