#include "kernels/cuda/cublaslt.h"

extern "C" {
#include "base/log.h"
}

#include <cublasLt.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_PREFIX "cublaslt "
#define ALGORITHMS_MAX 2048
#define SHAPES_MAX 512
/* Rows of the batch for which the library is asked: an image with guidance. */
#define NOMINAL_ROWS 2
#define ALIGNMENT_BYTES 16

#define FUNCTIONS(F)                                                                               \
    F(cublasLtCreate)                                                                              \
    F(cublasLtGetVersion)                                                                          \
    F(cublasLtGetStatusString)                                                                     \
    F(cublasLtMatmulDescCreate)                                                                    \
    F(cublasLtMatmulDescSetAttribute)                                                              \
    F(cublasLtMatrixLayoutCreate)                                                                  \
    F(cublasLtMatrixLayoutSetAttribute)                                                            \
    F(cublasLtMatmulPreferenceCreate)                                                              \
    F(cublasLtMatmulPreferenceSetAttribute)                                                        \
    F(cublasLtMatmulAlgoGetHeuristic)                                                              \
    F(cublasLtMatmulAlgoConfigGetAttribute)                                                        \
    F(cublasLtMatmulAlgoCheck)                                                                     \
    F(cublasLtMatmul)

struct functions {
#define POINTER(name) decltype(&::name) name;
    FUNCTIONS(POINTER)
#undef POINTER
};

/* What the library is asked about: a shape's product for one row of the batch. */
struct problem {
    enum dtype dtype;
    int64_t n, k, pixels;
};

struct algorithm {
    struct problem problem;
    cublasLtMatmulAlgo_t algo;
};

/* Everything is made once and changed from call to call, so a call allocates nothing. The process
 * has one device and one thread at a time that uses it, so nothing is ever freed. */
static struct {
    bool tried, usable;
    struct functions f;
    size_t version;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t weight, x, y;
    cublasLtMatmulPreference_t preference;
    struct problem asked[SHAPES_MAX];
    int asked_count;
    struct algorithm algorithms[ALGORITHMS_MAX];
    int algorithm_count;
} lt;

/* --- the library --- */

static bool check(cublasStatus_t status, const char *what, struct error *err) {
    if (status == CUBLAS_STATUS_SUCCESS)
        return true;
    if (status == CUBLAS_STATUS_ALLOC_FAILED)
        return error_set(err, ERROR_NO_MEMORY, "cuBLASLt, %s: no memory", what);
    /* A device that is lost shows here first. */
    return cuda_ok(cudaGetLastError(), what, err) &&
           error_set(
               err, ERROR_DEVICE, "cuBLASLt, %s: %s", what, lt.f.cublasLtGetStatusString(status));
}

static void *open_library(char *name, size_t size) {
    /* The library's name with its major version, which is CUDA's; then the toolkit's own folder, in
     * case the loader does not know it. */
    static const char *const folders[] = { "", "/usr/local/cuda/lib64/" };
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof(folders) / sizeof(folders[0]); i++) {
        snprintf(name, size, "%slibcublasLt.so.%d", folders[i], CUDART_VERSION / 1000);
        library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

static bool find_functions(void *library, struct error *err) {
    static const struct {
        const char *name;
        size_t at;
    } table[] = {
#define ENTRY(name) { #name, offsetof(struct functions, name) },
        FUNCTIONS(ENTRY)
#undef ENTRY
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        void *function = dlsym(library, table[i].name);
        if (!function)
            return error_set(err, ERROR_UNSUPPORTED, "it has no %s", table[i].name);
        memcpy((char *)&lt.f + table[i].at, &function, sizeof(function));
    }
    return true;
}

/* Sets what never changes: y [pixels][n] as a column-major n x pixels matrix, W^T x; f32 sums (and
 * f32 products of f32: no TF32); bias along n; only algorithms that sum k in one go and need no
 * scratch memory. */
static bool make_descriptions(struct error *err) {
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    const uint32_t no_reduction = CUBLASLT_REDUCTION_SCHEME_NONE, alignment = ALIGNMENT_BYTES;
    const uint64_t no_bytes = 0;
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
    };
    cublasLtMatrixLayout_t *layouts[] = { &lt.weight, &lt.x, &lt.y };
    bool ok = check(lt.f.cublasLtMatmulDescCreate(&lt.product, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                  "a description", err) &&
              check(lt.f.cublasLtMatmulDescSetAttribute(
                        lt.product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
                  "transposing", err) &&
              check(lt.f.cublasLtMatmulDescSetAttribute(
                        lt.product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)),
                  "adding a bias", err) &&
              check(lt.f.cublasLtMatmulPreferenceCreate(&lt.preference), "a preference", err) &&
              check(lt.f.cublasLtMatmulPreferenceSetAttribute(lt.preference,
                        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &no_bytes, sizeof(no_bytes)),
                  "a preference", err) &&
              check(lt.f.cublasLtMatmulPreferenceSetAttribute(lt.preference,
                        CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &no_reduction,
                        sizeof(no_reduction)),
                  "a preference", err);
    for (int i = 0; ok && i < 4; i++)
        ok = check(lt.f.cublasLtMatmulPreferenceSetAttribute(
                       lt.preference, alignments[i], &alignment, sizeof(alignment)),
            "a preference", err);
    for (int i = 0; ok && i < 3; i++)
        ok = check(
            lt.f.cublasLtMatrixLayoutCreate(layouts[i], CUDA_R_16F, 8, 8, 8), "a layout", err);
    return ok;
}

static bool usable() {
    char name[64];
    struct error err = {};
    if (lt.tried || cuda_is_recording()) /* loading may allocate */
        return lt.usable;
    lt.tried = true;
    void *library = open_library(name, sizeof(name));
    if (!library) {
        const char *why = dlerror();
        log_info("no algorithms of cuBLASLt to choose from: %.200s", why ? why : name);
        return false;
    }
    lt.usable = find_functions(library, &err) &&
                check(lt.f.cublasLtCreate(&lt.handle), "starting", &err) && make_descriptions(&err);
    if (!lt.usable) {
        log_info("no algorithms of cuBLASLt to choose from: %s: %s", name, err.message);
        return false;
    }
    lt.version = lt.f.cublasLtGetVersion();
    log_info("cuBLASLt %zu (%s) may be chosen for plain products", lt.version, name);
    return true;
}

/* --- one problem --- */

static bool same_problem(const struct problem *a, const struct problem *b) {
    return a->dtype == b->dtype && a->n == b->n && a->k == b->k && a->pixels == b->pixels;
}

/* Returns false if this path cannot compute the shape: something follows the sum that the library
 * does not compute, or lines do not consist of 16-byte pieces. A linear layer with one token per
 * row (timesteps) has too few rows to be worth a choice. */
static bool problem_of(const struct gemm_shape *s, struct problem *out) {
    const int64_t piece = s->dtype == DTYPE_F32 ? 4 : 8;
    *out = { s->dtype, s->n, s->k, s->h_out * s->w_out };
    return s->plain && out->pixels > 1 && s->n % piece == 0 && s->k % piece == 0 &&
           out->pixels <= INT32_MAX / 256;
}

static bool set_layout(cublasLtMatrixLayout_t layout, enum dtype dtype, int64_t lines,
    int64_t columns, struct error *err) {
    const uint32_t type = dtype == DTYPE_F32   ? CUDA_R_32F
                          : dtype == DTYPE_F16 ? CUDA_R_16F
                                               : CUDA_R_16BF;
    const uint64_t rows = (uint64_t)columns, cols = (uint64_t)lines;
    return check(lt.f.cublasLtMatrixLayoutSetAttribute(
                     layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &type, sizeof(type)),
               "a layout", err) &&
           check(lt.f.cublasLtMatrixLayoutSetAttribute(
                     layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof(rows)),
               "a layout", err) &&
           check(lt.f.cublasLtMatrixLayoutSetAttribute(
                     layout, CUBLASLT_MATRIX_LAYOUT_COLS, &cols, sizeof(cols)),
               "a layout", err) &&
           check(lt.f.cublasLtMatrixLayoutSetAttribute(
                     layout, CUBLASLT_MATRIX_LAYOUT_LD, &columns, sizeof(columns)),
               "a layout", err);
}

/* weight [n][k], x [m][k], y [m][n], bias [n]. */
static bool describe(
    enum dtype dtype, int64_t m, int64_t n, int64_t k, const void *bias, struct error *err) {
    return set_layout(lt.weight, dtype, n, k, err) && set_layout(lt.x, dtype, m, k, err) &&
           set_layout(lt.y, dtype, m, n, err) &&
           check(lt.f.cublasLtMatmulDescSetAttribute(
                     lt.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof(bias)),
               "a bias", err);
}

template <class T>
static bool config_is(const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulAlgoConfigAttributes_t attribute, T smallest, T largest) {
    T value = 0;
    size_t written = 0;
    return lt.f.cublasLtMatmulAlgoConfigGetAttribute(
               algo, attribute, &value, sizeof(value), &written) == CUBLAS_STATUS_SUCCESS &&
           value >= smallest && value <= largest;
}

/* Whether an algorithm obeys the rule for rows, as far as its attributes tell, and whether the
 * library would run it for few and for many rows. */
static bool is_acceptable(const struct problem *p, const cublasLtMatmulAlgo_t *algo) {
    static const int rows[] = { 1, 2, 3, 4, 5, 8, 16, 17, 32, 64 };
    if (!config_is<int32_t>(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 0, 1) ||
        !config_is<uint32_t>(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
            CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_NONE))
        return false;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        cublasLtMatmulHeuristicResult_t result = {};
        if (!describe(p->dtype, rows[i] * p->pixels, p->n, p->k, cuda_workspace(0), NULL) ||
            lt.f.cublasLtMatmulAlgoCheck(lt.handle, lt.product, lt.weight, lt.x, lt.y, lt.y, algo,
                &result) != CUBLAS_STATUS_SUCCESS ||
            result.workspaceSize != 0)
            return false;
    }
    return true;
}

/* The number of an acceptable algorithm, new or known; -1 if it is not acceptable. */
static int number_of(const struct problem *p, const cublasLtMatmulAlgo_t *algo) {
    for (int i = 0; i < lt.algorithm_count; i++)
        if (same_problem(&lt.algorithms[i].problem, p) &&
            memcmp(&lt.algorithms[i].algo, algo, sizeof(*algo)) == 0)
            return i;
    if (lt.algorithm_count == ALGORITHMS_MAX || !is_acceptable(p, algo))
        return -1;
    lt.algorithms[lt.algorithm_count].problem = *p;
    lt.algorithms[lt.algorithm_count].algo = *algo;
    return lt.algorithm_count++;
}

/* Asks the library for its algorithms, once. */
static void ask(const struct problem *p) {
    cublasLtMatmulHeuristicResult_t results[CUBLASLT_MAX_ALGORITHMS];
    int count = 0;
    for (int i = 0; i < lt.asked_count; i++)
        if (same_problem(&lt.asked[i], p))
            return;
    if (lt.asked_count == SHAPES_MAX)
        return;
    lt.asked[lt.asked_count++] = *p;
    memset(results, 0, sizeof(results));
    if (!describe(p->dtype, NOMINAL_ROWS * p->pixels, p->n, p->k, cuda_workspace(0), NULL) ||
        lt.f.cublasLtMatmulAlgoGetHeuristic(lt.handle, lt.product, lt.weight, lt.x, lt.y, lt.y,
            lt.preference, CUBLASLT_MAX_ALGORITHMS, results, &count) != CUBLAS_STATUS_SUCCESS)
        return; /* the library does not compute this */
    for (int i = 0; i < count && i < CUBLASLT_MAX_ALGORITHMS; i++)
        if (results[i].state == CUBLAS_STATUS_SUCCESS && results[i].workspaceSize == 0)
            (void)number_of(p, &results[i].algo);
}

/* --- candidates --- */

int cublaslt_candidates(
    const struct gemm_shape *shape, struct gemm_candidate out[CUBLASLT_MAX_ALGORITHMS]) {
    struct problem p;
    int count = 0;
    if (!problem_of(shape, &p) || !usable())
        return 0;
    ask(&p);
    for (int i = 0; i < lt.algorithm_count && count < CUBLASLT_MAX_ALGORITHMS; i++)
        if (same_problem(&lt.algorithms[i].problem, &p))
            out[count++] = { GEMM_CUBLASLT, i, 1 };
    return count;
}

bool cublaslt_has(int tile, const struct gemm_shape *shape) {
    struct problem p;
    return problem_of(shape, &p) && tile >= 0 && tile < lt.algorithm_count &&
           same_problem(&lt.algorithms[tile].problem, &p);
}

void cublaslt_name(int tile, char *text, size_t size) {
    const cublasLtMatmulAlgo_t *algo = &lt.algorithms[tile].algo;
    int words = sizeof(algo->data) / sizeof(algo->data[0]);
    int used = snprintf(text, size, NAME_PREFIX "%zu", lt.version);
    while (words > 1 && algo->data[words - 1] == 0)
        words--;
    for (int i = 0; i < words && (size_t)used < size; i++)
        used += snprintf(
            text + used, size - (size_t)used, "%c%" PRIx64, i ? '.' : ' ', (uint64_t)algo->data[i]);
}

bool cublaslt_is_name(const char *name) {
    return strncmp(name, NAME_PREFIX, strlen(NAME_PREFIX)) == 0;
}

bool cublaslt_restore(
    const struct gemm_shape *shape, const char *name, struct gemm_candidate *out) {
    struct problem p;
    cublasLtMatmulAlgo_t algo = {};
    const int words = sizeof(algo.data) / sizeof(algo.data[0]);
    if (!cublaslt_is_name(name) || !problem_of(shape, &p) || !usable())
        return false;
    char *at;
    const char *from = name + strlen(NAME_PREFIX);
    if (strtoull(from, &at, 10) != lt.version || at == from || *at != ' ')
        return false;
    for (int i = 0; *at && i < words; i++) {
        from = at + 1;
        algo.data[i] = strtoull(from, &at, 16);
        if (at == from || (*at && *at != '.'))
            return false;
    }
    const int number = *at ? -1 : number_of(&p, &algo);
    *out = { GEMM_CUBLASLT, number, 1 };
    return number >= 0;
}

static bool is_aligned(const void *p) {
    return ((uintptr_t)p & (ALIGNMENT_BYTES - 1)) == 0;
}

bool cublaslt_run(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err) {
    const struct algorithm *a = &lt.algorithms[candidate->tile];
    const float one = 1, beta = g->residual ? 1 : 0;
    if (g->geglu || g->row_add || g->activation != ACTIVATION_NONE || g->taps != 1 ||
        candidate->tile < 0 || candidate->tile >= lt.algorithm_count || a->problem.n != g->n ||
        a->problem.k != g->k || a->problem.dtype != dtype)
        return error_set(
            err, ERROR_INTERNAL, "cuBLASLt: not the product of algorithm %d", candidate->tile);
    if (!is_aligned(g->x) || !is_aligned(g->y) || !is_aligned(g->residual))
        return error_set(
            err, ERROR_INTERNAL, "cuBLASLt: operands off the %d-byte grid", ALIGNMENT_BYTES);
    cuda_forbid_overlap();
    return cuda_ok(cudaSuccess, "cublasLtMatmul", err) &&
           describe(dtype, g->m, g->n, g->k, g->rounded_bias, err) &&
           check(lt.f.cublasLtMatmul(lt.handle, lt.product, &one, g->weight, lt.weight, g->x, lt.x,
                     &beta, g->residual ? g->residual : g->y, lt.y, g->y, lt.y, &a->algo, NULL, 0,
                     cuda_stream()),
               "cublasLtMatmul", err);
}
