/* cuBLASLt's algorithms as candidates, on the emulator's fake of the library: what is asked for and
 * accepted, that the tuner refuses what is wrong or depends on the batch, that a choice survives in
 * its name, and a matmul in a graph. */
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/tuner.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

extern "C" {
#include "kernels/compute.h"
#include "kernels/pack.h"
}

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct gemm_shape linear_shape(enum dtype dtype, int64_t tokens, int64_t n, int64_t k) {
    struct gemm_shape s = {};
    s.dtype = dtype;
    s.plain = true;
    s.n = n;
    s.k = k;
    s.h = s.h_out = 1;
    s.w = s.w_out = tokens;
    return s;
}

/* In a process that has not loaded it. */
static void without_the_library_there_are_none() {
    int ends[2];
    char said[4096] = "";
    CHECK(pipe(ends) == 0, "-");
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        struct error err = {};
        struct gemm_candidate all[GEMM_MAX_CANDIDATES], c;
        const struct gemm_shape s = linear_shape(DTYPE_F16, 6, 72, 136);
        dup2(ends[1], STDERR_FILENO);
        emulator_set_cublaslt(EMULATOR_CUBLASLT_ABSENT);
        bool ok = cuda_open(0, &err) && cublaslt_candidates(&s, all) == 0 &&
                  !cublaslt_restore(&s, "cublaslt 130100 15.20.1", &c);
        const int count = gemm_candidates(&s, 2, all);
        for (int i = 0; i < count; i++)
            ok = ok && all[i].path != GEMM_CUBLASLT;
        _exit(ok && count > 2 ? 0 : 1);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got; (got = read(ends[0], said + used, sizeof(said) - 1 - used)) > 0;)
        used += (size_t)got;
    close(ends[0]);
    int status = 1;
    waitpid(child, &status, 0);
    printf("absent: %s", said);
    CHECK(status == 0, "status %d", status);
    CHECK_CONTAINS(said, "no algorithms of cuBLASLt");
    CHECK_CONTAINS(said, "cannot open shared object file");
    const char *newline = strchr(said, '\n');
    CHECK(newline && !newline[1], "said more than once");
}

static void plain_products_have_algorithms() {
    struct gemm_candidate c[CUBLASLT_MAX_ALGORITHMS], all[GEMM_MAX_CANDIDATES];
    const enum dtype dtypes[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F32 };
    for (enum dtype dtype : dtypes) {
        const struct gemm_shape s = linear_shape(dtype, 6, 72, 136);
        const int count = cublaslt_candidates(&s, c);
        /* The library's third splits k. */
        CHECK(count == 2, "%s: %d", dtype_name(dtype), count);
        for (int i = 0; i < count; i++) {
            char name[TUNER_NAME_BYTES];
            printf("%s: %s\n", dtype_name(dtype), gemm_candidate_name(&c[i], name, sizeof(name)));
            CHECK(gemm_can(&s, &c[i]), "-");
        }
        const int listed = gemm_candidates(&s, 2, all);
        CHECK(all[0].path != GEMM_CUBLASLT && all[1].path == GEMM_CUBLASLT &&
                  all[2].path == GEMM_CUBLASLT && all[3].path != GEMM_CUBLASLT &&
                  all[listed - 1].path == GEMM_SIMT,
            "%d listed", listed);
    }
    struct gemm_shape s = linear_shape(DTYPE_F16, 6, 72, 136);
    s.is_conv = true;
    s.kind = CONV_1X1;
    s.h = s.h_out = 2;
    s.w = s.w_out = 3;
    CHECK(cublaslt_candidates(&s, c) == 2, "a 1x1 convolution is the same product");
    s.plain = false;
    CHECK(cublaslt_candidates(&s, c) == 0, "something follows the sum");
    s = linear_shape(DTYPE_F16, 6, 76, 136);
    CHECK(cublaslt_candidates(&s, c) == 0, "lines of 76 halves");
    s = linear_shape(DTYPE_F32, 6, 76, 140);
    CHECK(cublaslt_candidates(&s, c) == 2, "lines of 76 floats");
    s = linear_shape(DTYPE_F16, 1, 72, 136);
    CHECK(cublaslt_candidates(&s, c) == 0, "one token a row");
}

static void what_breaks_the_rule_for_rows_is_not_offered() {
    static const struct {
        enum emulator_cublaslt kind;
        const char *what;
    } cases[] = { { EMULATOR_CUBLASLT_SPLIT, "k split, which was not asked for" },
        { EMULATOR_CUBLASLT_SCRATCH, "scratch memory" },
        { EMULATOR_CUBLASLT_FEW, "few rows only" } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct gemm_candidate c[CUBLASLT_MAX_ALGORITHMS];
        const struct gemm_shape s = linear_shape(DTYPE_F16, 6, 64, 64 + 8 * (int64_t)i);
        emulator_set_cublaslt(cases[i].kind);
        const int count = cublaslt_candidates(&s, c);
        printf("%s: %d of 2 offered\n", cases[i].what, count);
        CHECK(count == 1, "%s", cases[i].what);
    }
    emulator_set_cublaslt(EMULATOR_CUBLASLT_RIGHT);
}

static bool is_right(const struct tuner_result *r) {
    return r->verdict == TUNER_RIGHT;
}

/* Tries the library's candidates; results of the first and the second. */
static void tune(const struct gemm_shape *s, struct tuner_result results[2]) {
    const int problem = cuda_tuner.problem_count();
    CHECK(!tuner_note(&tunable_gemm, s), "nothing is chosen yet");
    int found = 0;
    for (int i = 0, count = cuda_tuner.candidate_count(problem); i < count; i++) {
        char name[TUNER_NAME_BYTES];
        struct error err = {};
        cuda_tuner.candidate_name(problem, i, name);
        if (!cublaslt_is_name(name) || found == 2)
            continue;
        CHECK(cuda_tuner.try_candidate(problem, i, &results[found], &err), "%s", err.message);
        printf("%s: %s %s, error %.3g\n", name,
            is_right(&results[found]) ? "right" : "wrong:", results[found].why,
            results[found].error);
        found++;
    }
    CHECK(found == 2, "%d of cuBLASLt's", found);
}

static void the_tuner_tries_them() {
    struct tuner_result r[2];
    const enum dtype dtypes[] = { DTYPE_F16, DTYPE_BF16, DTYPE_F32 };
    for (enum dtype dtype : dtypes) {
        const struct gemm_shape s = linear_shape(dtype, 5, 40, 200);
        tune(&s, r);
        CHECK(is_right(&r[0]) && is_right(&r[1]) && r[0].us > 0, "%s", dtype_name(dtype));
    }
    struct gemm_shape s = linear_shape(DTYPE_F16, 6, 48, 208);
    s.is_conv = true;
    s.kind = CONV_1X1;
    s.h = s.h_out = 3;
    s.w = s.w_out = 2;
    tune(&s, r);
    CHECK(is_right(&r[0]) && is_right(&r[1]), "a 1x1 convolution");
    emulator_set_cublaslt(EMULATOR_CUBLASLT_WRONG);
    s = linear_shape(DTYPE_F16, 5, 40, 208);
    tune(&s, r);
    CHECK(is_right(&r[0]) && !is_right(&r[1]), "the wrong one");
    CHECK_CONTAINS(r[1].why, "error");
    emulator_set_cublaslt(EMULATOR_CUBLASLT_ROWS);
    /* In f32: of so few elements rounding to 16 bits may leave every one the same. */
    s = linear_shape(DTYPE_F32, 5, 40, 216);
    tune(&s, r);
    CHECK(is_right(&r[0]) && !is_right(&r[1]), "the one that depends on the batch");
    CHECK_CONTAINS(r[1].why, "depend on the batch");
    emulator_set_cublaslt(EMULATOR_CUBLASLT_RIGHT);
    cuda_tuner.end();
}

static void a_choice_lives_in_its_name() {
    struct gemm_candidate c[CUBLASLT_MAX_ALGORITHMS], restored, none;
    char name[TUNER_NAME_BYTES], key[TUNER_KEY_BYTES];
    const struct gemm_shape s = linear_shape(DTYPE_F16, 6, 72, 136);
    const struct gemm_shape later = linear_shape(DTYPE_F16, 6, 72, 144);
    CHECK(cublaslt_candidates(&s, c) == 2, "-");
    cublaslt_name(c[1].tile, name, sizeof(name));
    CHECK_STRING(name, "cublaslt 130100 16.18.1");
    CHECK(cublaslt_restore(&s, name, &restored) && restored.tile == c[1].tile, "the same number");
    static const char *const wrong[] = { "cublaslt 130000 16.18.1", "cublaslt 130100",
        "cublaslt 130100 ", "cublaslt 130100 16.18.x", "cublaslt 130100 16..1",
        "cublaslt 130100 1.2.3.4.5.6.7.8.9", "cublaslt 130100 63.18.1", "mma 128x160x32 split 1" };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        CHECK(!cublaslt_restore(&s, wrong[i], &none), "%s", wrong[i]);
    /* A shape that comes up after the cache was read. */
    tunable_gemm.describe(&later, key, sizeof(key));
    char whole[TUNER_KEY_BYTES + 8];
    snprintf(whole, sizeof(whole), "gemm %s", key);
    CHECK(cuda_tuner.choose(whole, name), "-");
    for (int64_t rows = 1; rows < 20; rows += 6) {
        const struct gemm_candidate picked = gemm_pick(&later, rows);
        CHECK(picked.path == GEMM_CUBLASLT && picked.split == 1, "%lld rows: path %d",
            (long long)rows, picked.path);
        CHECK_STRING(gemm_candidate_name(&picked, key, sizeof(key)), name);
    }
}

/* Device memory and a weight for y [rows][6][72] = x [rows][6][144] W^T + bias + residual. */
struct call {
    struct tensor x, residual, y;
    struct packed *weight;
};

static void call_init(struct call *c, const struct kernels *table) {
    static float weight[72 * 144], bias[72];
    struct error err = {};
    for (size_t i = 0; i < 72 * 144; i++)
        weight[i] = (float)(i * 7919 % 1000) / 4000 - 0.125f;
    for (int i = 0; i < 72; i++)
        bias[i] = (float)i / 64;
    struct tensor w = tensor_2d(weight, DTYPE_F32, 72, 144), b = tensor_1d(bias, DTYPE_F32, 72);
    CHECK(linear_pack(table, "w", &w, &b, false, DTYPE_F16, &c->weight, &err), "%s", err.message);
    c->x = tensor_3d(NULL, DTYPE_F16, 2, 6, 144);
    c->residual = c->y = tensor_3d(NULL, DTYPE_F16, 2, 6, 72);
    struct tensor *all[] = { &c->x, &c->residual, &c->y };
    for (struct tensor *t : all) {
        const size_t bytes = tensor_bytes(t);
        uint16_t *host = (uint16_t *)malloc(bytes);
        for (size_t i = 0; i < bytes / 2; i++)
            host[i] = f32_to_f16((float)(i * 104729 % 2000) / 1000 - 1);
        t->device = DEVICE_CUDA;
        CHECK(table->memory->alloc(MEMORY_ACTIVATIONS, bytes, &t->data, &err) &&
                  table->memory->upload(t->data, host, bytes, &err),
            "%s", err.message);
        free(host);
    }
}

static void call_finish(struct call *c, const struct kernels *table) {
    struct tensor *all[] = { &c->x, &c->residual, &c->y };
    for (struct tensor *t : all)
        table->memory->release(MEMORY_ACTIVATIONS, t->data, tensor_bytes(t));
    packed_destroy(c->weight);
}

/* The layer that a_choice_lives_in_its_name gave to the library, recorded and replayed. */
static void a_step_is_recorded(struct call *c, const struct kernels *table) {
    struct error err = {};
    struct recording *recording = NULL;
    const size_t bytes = tensor_bytes(&c->y);
    struct linear_args args = {};
    args.x = &c->x;
    args.weight = c->weight;
    args.residual = &c->residual;
    args.y = &c->y;
    void *first = malloc(bytes);
    CHECK(table->linear(&args, &err), "%s", err.message);
    const size_t allocations = emulator_allocations();
    const void *seen = table->memory->view(c->y.data, bytes, &err);
    CHECK(seen, "%s", err.message);
    memcpy(first, seen, bytes);
    CHECK(cuda_ok(cudaMemsetAsync(c->y.data, 0, bytes, cuda_stream()), "clearing", &err), "-");
    CHECK(table->recorder->begin(&err) && table->linear(&args, &err) &&
              table->recorder->end(&recording, &err),
        "%s", err.message);
    CHECK(table->recorder->launches(recording) == 1, "%d", table->recorder->launches(recording));
    CHECK(table->recorder->replay(recording, &err), "%s", err.message);
    seen = table->memory->view(c->y.data, bytes, &err);
    CHECK(seen && memcmp(seen, first, bytes) == 0, "other bits in a graph");
    CHECK(emulator_allocations() == allocations, "a step allocates");
    table->recorder->destroy(recording);
    free(first);
}

static void other_calls_are_refused(struct call *c) {
    struct gemm_candidate candidate;
    struct error err = {};
    const struct gemm_shape s = linear_shape(DTYPE_F16, 6, 72, 144);
    CHECK(cublaslt_restore(&s, "cublaslt 130100 16.18.1", &candidate), "-");
    struct linear_args args = {};
    args.x = &c->x;
    args.weight = c->weight;
    args.activation = ACTIVATION_SILU;
    args.y = &c->y;
    CHECK(!gemm_linear_with(&candidate, &args, &err), "an activation");
    CHECK_CONTAINS(err.message, "not the product");
    struct tensor shifted = tensor_rows(&c->x, 0, 1), y = tensor_rows(&c->y, 0, 1);
    shifted.data = (char *)shifted.data + 2;
    args.activation = ACTIVATION_NONE;
    args.x = &shifted;
    args.y = &y;
    CHECK(!gemm_linear_with(&candidate, &args, &err), "off the grid");
    CHECK_CONTAINS(err.message, "grid");
    /* A device that is lost shows at the library, too; the last thing this process does with it. */
    args.x = &c->x;
    args.y = &c->y;
    emulator_fail("cublasLtMatmul", 1, cudaErrorIllegalAddress, true);
    CHECK(!gemm_linear_with(&candidate, &args, &err) && err.code == ERROR_DEVICE_LOST, "%d: %s",
        err.code, err.message);
    printf("lost: %s\n", err.message);
    emulator_fail_nothing();
}

int main() {
    struct error err = {};
    struct call call = {};
    emulator_set_capability(80);
    without_the_library_there_are_none();
    const struct kernels *table = kernels_cuda(0, &err);
    CHECK(table, "%s", err.message);
    if (!table)
        return check_done();
    plain_products_have_algorithms();
    what_breaks_the_rule_for_rows_is_not_offered();
    the_tuner_tries_them();
    a_choice_lives_in_its_name();
    call_init(&call, table);
    a_step_is_recorded(&call, table);
    other_calls_are_refused(&call);
    call_finish(&call, table);
    return check_done();
}
