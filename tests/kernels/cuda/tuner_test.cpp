/* The tuner against planted candidates, on the emulator: one kernel that is right, and others that
 * are right for small shapes only, forget an element, write outside, mix the rows, or end the
 * process. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/tuner.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* y = 2 x + 1, x and y [rows][n] */
struct planted_shape {
    enum dtype dtype;
    int64_t n;
};

enum plant {
    PLANT_STATIC,
    PLANT_SMALL_ONLY, /* knows 256 columns */
    PLANT_ONE_OFF,    /* forgets the last element of the batch */
    PLANT_WRONG,      /* by a tenth */
    PLANT_OUTSIDE,    /* and one element more */
    PLANT_BATCH,      /* rounds otherwise when there are more rows */
    PLANT_REFUSED,    /* a launch that the device refuses */
    PLANT_DEADLY,     /* writes where nothing is */
    PLANT_PLAINEST,
    PLANT_COUNT,
};

static const char *const plant_names[] = { "static", "small only", "one off", "wrong", "outside",
    "batch", "refused", "deadly", "plainest" };

static __global__ void planted_kernel(
    const float *x, float *y, int64_t rows, int64_t n, enum plant plant) {
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float factor = plant == PLANT_WRONG               ? 2.2f
                         : plant == PLANT_BATCH && rows > 1 ? 2.000001f
                                                            : 2.0f;
    if (plant == PLANT_OUTSIDE && i == rows * n)
        y[i] = 0;
    if (plant == PLANT_DEADLY && i == 0)
        y[(int64_t)1 << 40] = 0;
    if (i >= rows * n || (plant == PLANT_SMALL_ONLY && i % n >= 256) ||
        (plant == PLANT_ONE_OFF && i == rows * n - 1))
        return;
    y[i] = factor * x[i] + 1.0f;
}

static void describe(const void *shape, char *text, size_t size) {
    snprintf(text, size, "n%lld", (long long)((const struct planted_shape *)shape)->n);
}

static int candidates(const void *) {
    return PLANT_COUNT;
}

static void candidate_name(const void *, int candidate, char name[TUNER_NAME_BYTES]) {
    snprintf(name, TUNER_NAME_BYTES, "%s", plant_names[candidate]);
}

static bool prepare(const void *shape, struct trial *trial, struct error *err) {
    const struct planted_shape *s = (const struct planted_shape *)shape;
    trial->y = tensor_2d(NULL, s->dtype, trial->rows, s->n);
    trial->flops = 2.0 * (double)(trial->rows * s->n);
    return trial_input(trial, trial->y, err);
}

static bool run(const void *shape, int candidate, const struct trial *trial, int64_t rows,
    struct tensor *y, struct error *err) {
    const struct planted_shape *s = (const struct planted_shape *)shape;
    struct launch_shape launch = {};
    launch.grid = dim3((unsigned)(rows * s->n / 128 + 1));
    launch.block = dim3(candidate == PLANT_REFUSED ? 4096 : 128);
    return launch_kernel(&launch, "planted", err, planted_kernel,
        (const float *)trial->inputs[0].data, (float *)y->data, rows, s->n, (enum plant)candidate);
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
    printf("%-12s %s %s\n", name, result.right ? "right" : "wrong:", result.why);
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
    CHECK(try_plant(0, PLANT_SMALL_ONLY).right, "right on a small shape");
    static const char *const reasons[PLANT_COUNT] = { NULL, "not written", "not written", "error",
        "outside", "batch", "", "", NULL };
    for (int c = 0; c < PLANT_COUNT; c++) {
        if (c == PLANT_DEADLY)
            continue;
        const struct tuner_result r = try_plant(1, c);
        CHECK(r.right == !reasons[c], "%s", plant_names[c]);
        if (reasons[c])
            CHECK_CONTAINS(r.why, reasons[c]);
        else
            CHECK(r.us > 0 && r.flops == 4.0 * 5000 && r.error < 1e-6, "%g us", r.us);
    }
    CHECK(cuda_memory.used(MEMORY_ACTIVATIONS) == 0 && cuda_memory.used(MEMORY_WEIGHTS) == 0,
        "trials give their memory back");
}

/* In a process of its own, as `latentd tune` tries it. */
static void a_deadly_one_takes_its_process() {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        struct tuner_result result;
        struct error err = {};
        freopen("/dev/null", "w", stderr);
        bool ok = cuda_tuner.try_candidate(1, PLANT_DEADLY, &result, &err);
        _exit(ok && result.right ? 0 : 1);
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
}

int main() {
    struct error err = {};
    emulator_set_capability(80);
    CHECK(cuda_open(0, &err), "%s", err.message);
    each_plant_is_found();
    a_deadly_one_takes_its_process();
    choices_are_used();
    return check_done();
}
