/* The tuner with planted candidates, on the emulator. One kernel is right. The others are right for
 * small shapes only, forget an element, exchange operands, mask too little, write outside of their
 * output, mix rows, or end the process. */
#include "kernels/cuda/gemm/gemm_candidates.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/tune/tuner.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* y = 2 x - x from the other end of the row, x and y [rows][n]; the last MASKED columns are 0 */
#define MASKED 3
struct planted_shape {
    enum dtype dtype;
    int64_t n;
};

enum plant {
    PLANT_STATIC,
    PLANT_SMALL_ONLY, /* is right for up to 256 columns */
    PLANT_ONE_OFF,    /* forgets the last element of the batch */
    PLANT_WRONG,      /* its results are off by a tenth */
    PLANT_SWAPPED,    /* exchanges the two operands */
    PLANT_MASK,       /* does not zero one of the masked columns */
    PLANT_OUTSIDE,    /* also writes the element after the end */
    PLANT_BATCH,      /* rounds differently when there are more rows */
    PLANT_RACE,       /* is wrong in one of seven calls */
    PLANT_REFUSED,    /* its launch is refused by the device */
    PLANT_DEADLY,     /* writes to an invalid address */
    PLANT_PLAINEST,
    PLANT_COUNT,
};

static const char *const plant_names[] = { "static", "small only", "one off", "wrong", "swapped",
    "mask", "outside", "batch", "race", "refused", "deadly", "plainest" };

template <class T>
static __global__ void planted_kernel(const T *x, T *y, int64_t rows, int64_t n, enum plant plant) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float factor = plant == PLANT_WRONG               ? 2.2f
                         : plant == PLANT_BATCH && rows > 1 ? 2.000001f
                                                            : 2.0f;
    if (plant == PLANT_OUTSIDE && i == rows * n)
        y[i] = from_float<T>(0);
    if (plant == PLANT_DEADLY && i == 0)
        y[(int64_t)1 << 40] = from_float<T>(0);
    if (i >= rows * n || (plant == PLANT_SMALL_ONLY && i % n >= 256) ||
        (plant == PLANT_ONE_OFF && i == rows * n - 1))
        return;
    const int64_t other = i / n * n + n - 1 - i % n;
    const T left = x[plant == PLANT_SWAPPED ? other : i];
    const T right = x[plant == PLANT_SWAPPED ? i : other];
    const bool masked = i % n >= n - MASKED + (plant == PLANT_MASK);
    y[i] = from_float<T>(masked ? 0.0f : factor * to_float(left) - to_float(right));
}

static void describe(const void *shape, char *text, size_t size) {
    const struct planted_shape *s = (const struct planted_shape *)shape;
    snprintf(
        text, size, "%sn%lld", s->dtype == DTYPE_F32 ? "" : dtype_name(s->dtype), (long long)s->n);
}

static int candidates(const void *) {
    return PLANT_COUNT;
}

static void candidate_name(const void *, int candidate, char name[TUNER_NAME_BYTES]) {
    snprintf(name, TUNER_NAME_BYTES, "%s", plant_names[candidate]);
}

static int prepared;      /* number of calls of prepare */
static int64_t most_rows; /* the most rows of any call of run */

static bool prepare(const void *shape, struct trial *trial, struct error *err) {
    const struct planted_shape *s = (const struct planted_shape *)shape;
    prepared++;
    trial->y = tensor_2d(NULL, s->dtype, trial->rows, s->n);
    trial->flops = 2.0 * (double)(trial->rows * s->n);
    return trial_input(trial, trial->y, err);
}

static bool run(const void *shape, int candidate, const struct trial *trial, int64_t rows,
    struct tensor *y, struct error *err) {
    const struct planted_shape *s = (const struct planted_shape *)shape;
    struct launch_shape launch = {};
    static int races;
    const enum plant plant = candidate == PLANT_RACE && ++races % 7 == 0 ? PLANT_WRONG
                                                                         : (enum plant)candidate;
    const void *x = trial->inputs[0].data;
    launch.grid = dim3((unsigned)(rows * s->n / 128 + 1));
    launch.block = dim3(candidate == PLANT_REFUSED ? 4096 : 128);
    most_rows = rows > most_rows ? rows : most_rows;
    switch (s->dtype) {
    case DTYPE_F16:
        return launch_kernel(&launch, "planted", err, planted_kernel<__half>, (const __half *)x,
            (__half *)y->data, rows, s->n, plant);
    case DTYPE_BF16:
        return launch_kernel(&launch, "planted", err, planted_kernel<__nv_bfloat16>,
            (const __nv_bfloat16 *)x, (__nv_bfloat16 *)y->data, rows, s->n, plant);
    default:
        return launch_kernel(&launch, "planted", err, planted_kernel<float>, (const float *)x,
            (float *)y->data, rows, s->n, plant);
    }
}

static int selected = -1;
static bool select_planted(const void *, int candidate) {
    selected = candidate;
    return true;
}

static const struct tunable planted = { "planted", sizeof(struct planted_shape), describe,
    candidates, candidate_name, prepare, run, select_planted };

static struct tuner_result try_plant(int problem, int candidate) {
    struct tuner_result result;
    struct error err = {};
    char name[TUNER_NAME_BYTES];
    cuda_tuner.candidate_name(problem, candidate, name);
    CHECK(cuda_tuner.try_candidate(problem, candidate, &result, &err), "%s: %s", name, err.message);
    static const char *const verdicts[] = { "right", "wrong:", "skipped:" };
    printf("%-12s %s %s\n", name, verdicts[result.verdict], result.why);
    return result;
}

static void each_plant_is_found() {
    const struct planted_shape small = { DTYPE_F32, 100 }, large = { DTYPE_F32, 5000 };
    CHECK(!tuner_note(&planted, &small) && !tuner_note(&planted, &large), "nothing is chosen yet");
    CHECK(!tuner_note(&planted, &small) && cuda_tuner.problem_count() == 2, "noted once");
    char key[TUNER_KEY_BYTES];
    cuda_tuner.problem_key(1, key);
    CHECK_STRING(key, "planted n5000");
    CHECK(cuda_tuner.candidate_count(1) == PLANT_COUNT, "-");
    CHECK(try_plant(0, PLANT_SMALL_ONLY).verdict == TUNER_RIGHT, "right on a small shape");
    prepared = 0;
    static const char *const reasons[PLANT_COUNT] = { NULL, "not written", "not written", "error",
        "error", "error", "outside", "batch", "its bits differ from call to call", "", "", NULL };
    for (int c = 0; c < PLANT_COUNT; c++) {
        if (c == PLANT_DEADLY)
            continue;
        const struct tuner_result r = try_plant(1, c);
        CHECK(r.verdict == (reasons[c] ? TUNER_WRONG : TUNER_RIGHT), "%s", plant_names[c]);
        if (reasons[c])
            CHECK_CONTAINS(r.why, reasons[c]);
        else
            CHECK(r.us > 0 && r.flops == 4.0 * 5000 && r.error < 1e-6, "%g us", r.us);
    }
    CHECK(prepared == 1, "the operands are made once, not %d times", prepared);
    cuda_tuner.end();
    CHECK(cuda_memory.used(MEMORY_ACTIVATIONS) == 0 && cuda_memory.used(MEMORY_WEIGHTS) == 0,
        "trials give their memory back");
}

static void other_dtypes_are_compared() {
    const struct planted_shape shapes[] = { { DTYPE_F16, 700 }, { DTYPE_BF16, 700 } };
    for (int i = 0; i < 2; i++) {
        const int problem = cuda_tuner.problem_count();
        (void)tuner_note(&planted, &shapes[i]);
        const struct tuner_result r = try_plant(problem, PLANT_STATIC);
        CHECK(r.verdict == TUNER_RIGHT && r.error == 0, "%g", r.error);
        CHECK(try_plant(problem, PLANT_WRONG).verdict == TUNER_WRONG, "-");
        CHECK(try_plant(problem, PLANT_SMALL_ONLY).verdict == TUNER_WRONG, "-");
        CHECK(try_plant(problem, PLANT_ONE_OFF).verdict == TUNER_WRONG, "-");
    }
    cuda_tuner.end();
}

/* Candidates are timed on the fewest and the most rows that were noted, if memory suffices. */
static void rows_and_memory() {
    const struct planted_shape shape = { DTYPE_F32, 100000 };
    const int problem = cuda_tuner.problem_count();
    tuner_note_rows(&planted, &shape, 4);
    tuner_note_rows(&planted, &shape, 2);
    tuner_note_rows(&planted, &shape, 8);
    CHECK(cuda_tuner.problem_count() == problem + 1, "one problem");
    most_rows = 0;
    struct tuner_result r = try_plant(problem, PLANT_STATIC);
    CHECK(r.verdict == TUNER_RIGHT && r.us > 0 && r.flops == 4.0 * 100000, "%g flops", r.flops);
    CHECK(most_rows == 8, "%lld rows", (long long)most_rows);
    cuda_tuner.end();
    /* x and three results take 12 MiB for 8 rows and 4.6 MiB for 3 rows; flushing the cache takes 2
     * MiB */
    emulator_set_memory(emulator_memory_used() + (13 << 20));
    most_rows = 0;
    r = try_plant(problem, PLANT_STATIC);
    CHECK(r.verdict == TUNER_RIGHT && most_rows == 3, "%lld rows", (long long)most_rows);
    cuda_tuner.end();
    emulator_set_memory(emulator_memory_used() + (6 << 20));
    r = try_plant(problem, PLANT_STATIC);
    CHECK(r.verdict == TUNER_SKIPPED, "no memory is no verdict");
    CHECK_CONTAINS(r.why, "memory is full");
    emulator_set_memory((size_t)4 << 30);
    r = try_plant(problem, PLANT_STATIC);
    CHECK(r.verdict == TUNER_RIGHT, "and it can be tried later");
    cuda_tuner.end();
    CHECK(cuda_memory.used(MEMORY_ACTIVATIONS) == 0, "%zu", cuda_memory.used(MEMORY_ACTIVATIONS));
}

/* What the tuner costs a daemon that serves: looking up every layer of a request on shapes that
 * were never seen, while the file of choices is full. It must take less than a second of processor
 * time. */
static void finding_choices_takes_no_second() {
    struct gemm_shape shape = {};
    struct gemm_candidate all[GEMM_MAX_CANDIDATES];
    char key[TUNER_KEY_BYTES], name[TUNER_NAME_BYTES];
    const int shapes = 300, first = cuda_tuner.problem_count();
    shape.dtype = DTYPE_BF16;
    shape.is_conv = true;
    shape.kind = CONV_3X3;
    shape.k = 320;
    shape.h = shape.w = shape.h_out = shape.w_out = 64;
    for (int i = 0; i < 1500; i++) {
        snprintf(key, sizeof(key), "gemm conv3x3 of another model %d", i);
        CHECK(cuda_tuner.choose(key, "simt split 1"), "-");
    }
    for (int i = 0; i < shapes; i++) {
        shape.n = 320 + 8 * i;
        const int count = gemm_candidates(&shape, 2, all);
        gemm_candidate_name(&all[count - 2], name, sizeof(name));
        snprintf(
            key, sizeof(key), "gemm conv3x3 bf16 n%lld k320 64x64 to 64x64", (long long)shape.n);
        CHECK(cuda_tuner.choose(key, name), "-");
    }
    const clock_t begun = clock();
    int found = 0;
    for (int i = 0; i < shapes; i++) {
        shape.n = 320 + 8 * i;
        found += tuner_note(&tunable_gemm, &shape);
    }
    const double seconds = (double)(clock() - begun) / CLOCKS_PER_SEC;
    printf("%d choices were found in %.3f s\n", found, seconds);
    CHECK(found == shapes && cuda_tuner.problem_count() == first + shapes, "%d", found);
    CHECK(seconds < 1, "%g s", seconds);
    gemm_select_none();
}

static int try_the_deadly_one() {
    const struct planted_shape shape = { DTYPE_F32, 5000 };
    struct tuner_result result;
    struct error err = {};
    (void)tuner_note(&planted, &shape);
    return cuda_tuner.try_candidate(0, PLANT_DEADLY, &result, &err) && result.verdict == TUNER_RIGHT
               ? 0
               : 1;
}

/* Runs in a process of its own, as `latentd tune` does. */
static void a_deadly_one_takes_its_process() {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        freopen("/dev/null", "w", stderr);
        execl("/proc/self/exe", "tuner_test", "deadly", (char *)NULL);
        _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    CHECK(status != 0, "the deadly candidate came through");
    printf("deadly       its process ended with %s %d\n", WIFSIGNALED(status) ? "signal" : "status",
        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

static void choices_are_used() {
    const struct planted_shape later = { DTYPE_F32, 777 }, other = { DTYPE_F32, 778 };
    CHECK(cuda_tuner.choose("planted n777", "plainest"), "-");
    CHECK(cuda_tuner.choose("planted n778", "a kernel of another build"), "-");
    CHECK(tuner_note(&planted, &later) && selected == PLANT_PLAINEST, "%d", selected);
    selected = -1;
    CHECK(!tuner_note(&planted, &other) && selected == -1, "an unknown name changes nothing");
    char identity[TUNER_IDENTITY_BYTES];
    cuda_tuner.identity(identity);
    printf("%s\n", identity);
    CHECK_CONTAINS(identity, "sm_80");
    CHECK_CONTAINS(identity, ", workspace of 96 KiB, no clusters, ");
    CHECK_CONTAINS(identity, ", gemm_hopper.cu ");
    CHECK(strlen(identity) < TUNER_IDENTITY_BYTES - 1, "%zu characters", strlen(identity));
}

int main(int argc, char **) {
    struct error err = {};
    emulator_set_capability(80);
    setenv("LATENTD_CUDA_WORKSPACE_KIB", "96", 1);
    setenv("LATENTD_CUDA_CLUSTERS", "0", 1);
    CHECK(cuda_open(0, &err), "%s", err.message);
    if (argc > 1)
        return try_the_deadly_one();
    each_plant_is_found();
    a_deadly_one_takes_its_process();
    other_dtypes_are_compared();
    rows_and_memory();
    choices_are_used();
    finding_choices_takes_no_second();
    return check_done();
}
