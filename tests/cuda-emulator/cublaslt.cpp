/* cuBLASLt as far as kernels/cuda/ asks for it: y = alpha W^T x + beta c + bias by a plain loop in
 * f32, by algorithms that differ in how they group the sum. Strict where the real one is: sizes of
 * attributes, layouts that do not fit, memory that is not the device's. */
#include "tests/cuda-emulator/cublasLt.h"
#include "tests/cuda-emulator/dlfcn.h"
#include "tests/cuda-emulator/half.h"
#include "tests/cuda-emulator/memory.h"
#include "tests/cuda-emulator/runtime.h"

#include <stdlib.h>
#include <vector>

#define VERSION 130100
#define ALIGNMENT 16

struct cublasLtContext {
    int unused;
};

/* What the words of the opaque structures mean here. */
enum { LAYOUT_TYPE, LAYOUT_ROWS, LAYOUT_COLS, LAYOUT_LD };
enum { DESC_TRANSA, DESC_TRANSB, DESC_EPILOGUE, DESC_BIAS };
enum { PREF_WORKSPACE, PREF_SCHEMES, PREF_ALIGNMENTS };
enum { ALGO_ID, ALGO_BLOCK, ALGO_SPLIT, ALGO_PLANT };

static enum emulator_cublaslt plant;
static struct cublasLtContext context;

void emulator_set_cublaslt(enum emulator_cublaslt kind) {
    plant = kind;
}

/* --- loading --- */

#undef dlopen
#undef dlsym

static bool is_absent() {
    static const char *text = getenv("CUDA_EMULATOR_CUBLASLT");
    return plant == EMULATOR_CUBLASLT_ABSENT || (text && *text == '0');
}

void *emulator_dlopen(const char *name, int flags) {
    if (!strstr(name, "libcublasLt.so"))
        return dlopen(name, flags);
    /* The system's own words for what is not there. */
    return is_absent() || strcmp(name, "libcublasLt.so.13") != 0
               ? dlopen("libcublasLt.so.emulated-as-absent", flags)
               : (void *)&context;
}

void *emulator_dlsym(void *library, const char *name) {
    static const struct {
        const char *name;
        void *function;
    } table[] = {
#define ENTRY(function) { #function, (void *)function },
        ENTRY(cublasLtCreate) ENTRY(cublasLtGetVersion) ENTRY(cublasLtGetStatusString) ENTRY(
            cublasLtMatmulDescCreate) ENTRY(cublasLtMatmulDescSetAttribute)
            ENTRY(cublasLtMatrixLayoutCreate) ENTRY(cublasLtMatrixLayoutSetAttribute) ENTRY(
                cublasLtMatmulPreferenceCreate) ENTRY(cublasLtMatmulPreferenceSetAttribute)
                ENTRY(cublasLtMatmulAlgoGetHeuristic) ENTRY(cublasLtMatmulAlgoConfigGetAttribute)
                    ENTRY(cublasLtMatmulAlgoCheck) ENTRY(cublasLtMatmul)
#undef ENTRY
    };
    if (library != (void *)&context)
        return dlsym(library, name);
    for (const auto &entry : table)
        if (strcmp(entry.name, name) == 0)
            return entry.function;
    return NULL;
}

/* --- descriptions --- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle) {
    *handle = &context;
    return emulator_enter("cublasLtCreate") == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                           : CUBLAS_STATUS_NOT_INITIALIZED;
}

size_t cublasLtGetVersion(void) {
    return VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t status) {
    switch (status) {
    case CUBLAS_STATUS_INVALID_VALUE:
        return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED:
        return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED:
        return "the GPU program failed to execute";
    default:
        return "another cuBLAS status";
    }
}

cublasStatus_t cublasLtMatmulDescCreate(
    cublasLtMatmulDesc_t *desc, cublasComputeType_t compute, cudaDataType_t scale) {
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    static cublasLtMatmulDescOpaque_t pool[16];
    static int used;
    if (used == 16)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *desc = &pool[used++];
    (*desc)->data[DESC_EPILOGUE] = CUBLASLT_EPILOGUE_DEFAULT;
    return CUBLAS_STATUS_SUCCESS;
}

/* Keeps `size` bytes, if the attribute has so many, in a word. */
static cublasStatus_t keep(uint64_t *word, const void *value, size_t size, size_t right_size) {
    if (!value || size != right_size)
        return CUBLAS_STATUS_INVALID_VALUE;
    *word = 0;
    memcpy(word, value, size);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
    cublasLtMatmulDescAttributes_t attribute, const void *value, size_t size) {
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return keep(&desc->data[DESC_TRANSA], value, size, 4);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return keep(&desc->data[DESC_TRANSB], value, size, 4);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return keep(&desc->data[DESC_EPILOGUE], value, size, 4);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return keep(&desc->data[DESC_BIAS], value, size, sizeof(void *));
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(
    cublasLtMatrixLayout_t *layout, cudaDataType type, uint64_t rows, uint64_t cols, int64_t ld) {
    static cublasLtMatrixLayoutOpaque_t pool[16];
    static int used;
    if (used == 16)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *layout = &pool[used++];
    **layout = { { (uint64_t)type, rows, cols, (uint64_t)ld } };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
    cublasLtMatrixLayoutAttribute_t attribute, const void *value, size_t size) {
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return keep(&layout->data[LAYOUT_TYPE], value, size, 4);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return keep(&layout->data[LAYOUT_ROWS], value, size, 8);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return keep(&layout->data[LAYOUT_COLS], value, size, 8);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return keep(&layout->data[LAYOUT_LD], value, size, 8);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *preference) {
    static cublasLtMatmulPreferenceOpaque_t pool[16];
    static int used;
    if (used == 16)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *preference = &pool[used++];
    **preference = { { 0, CUBLASLT_REDUCTION_SCHEME_MASK, 256, 256, 256, 256 } };
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
    cublasLtMatmulPreferenceAttributes_t attribute, const void *value, size_t size) {
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return keep(&preference->data[PREF_WORKSPACE], value, size, 8);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return keep(&preference->data[PREF_SCHEMES], value, size, 4);
    default:
        return keep(
            &preference
                 ->data[PREF_ALIGNMENTS + attribute - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
            value, size, 4);
    }
}

/* --- algorithms --- */

static size_t size_of(uint64_t type) {
    return type == CUDA_R_32F ? 4 : 2;
}

static bool lines_are_aligned(const uint64_t *layout) {
    return layout[LAYOUT_LD] * size_of(layout[LAYOUT_TYPE]) % ALIGNMENT == 0;
}

/* Whether the matrices fit each other, as W^T x = y does, and are of what is computed here. */
static bool is_product(const uint64_t *desc, const uint64_t *a, const uint64_t *b,
    const uint64_t *c, const uint64_t *d) {
    for (const uint64_t *layout : { a, b, c, d })
        if (layout[LAYOUT_LD] < layout[LAYOUT_ROWS] || !layout[LAYOUT_COLS] ||
            !layout[LAYOUT_ROWS] || layout[LAYOUT_TYPE] != a[LAYOUT_TYPE] ||
            !lines_are_aligned(layout))
            return false;
    return desc[DESC_TRANSA] == CUBLAS_OP_T && desc[DESC_TRANSB] == CUBLAS_OP_N &&
           a[LAYOUT_ROWS] == b[LAYOUT_ROWS] && a[LAYOUT_COLS] == d[LAYOUT_ROWS] &&
           b[LAYOUT_COLS] == d[LAYOUT_COLS] && memcmp(c, d, sizeof(*c) * 4) == 0 &&
           (desc[DESC_EPILOGUE] == CUBLASLT_EPILOGUE_DEFAULT ||
               (desc[DESC_EPILOGUE] == CUBLASLT_EPILOGUE_BIAS && desc[DESC_BIAS]));
}

/* Bytes of scratch that an algorithm needs. */
static size_t scratch_of(const cublasLtMatmulAlgo_t *algo, const uint64_t *d) {
    if (algo->data[ALGO_PLANT] == EMULATOR_CUBLASLT_SCRATCH)
        return 4096;
    return algo->data[ALGO_SPLIT] > 1 ? algo->data[ALGO_SPLIT] * 4 * d[LAYOUT_ROWS] * d[LAYOUT_COLS]
                                      : 0;
}

static cublasStatus_t algorithm_check(const cublasLtMatmulAlgo_t *algo, const uint64_t *d) {
    const bool known = algo->data[ALGO_ID] >= 21 && algo->data[ALGO_ID] <= 23 &&
                       algo->data[ALGO_BLOCK] && algo->data[ALGO_SPLIT] >= 1;
    if (!known)
        return CUBLAS_STATUS_INVALID_VALUE;
    return algo->data[ALGO_PLANT] == EMULATOR_CUBLASLT_FEW && d[LAYOUT_COLS] > 100
               ? CUBLAS_STATUS_NOT_SUPPORTED
               : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulHeuristicResult_t *result) {
    if (!is_product(desc->data, a->data, b->data, c->data, d->data))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *result = {};
    result->algo = *algo;
    result->workspaceSize = scratch_of(algo, d->data);
    result->state = algorithm_check(algo, d->data);
    return result->state;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t desc,
    cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
    cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int *count) {
    *count = 0;
    if (!is_product(desc->data, a->data, b->data, c->data, d->data))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        if (preference->data[PREF_ALIGNMENTS + i] < ALIGNMENT)
            return CUBLAS_STATUS_NOT_SUPPORTED;
    cublasLtMatmulAlgo_t all[] = { { { 21, 32, 1 } }, { { 22, 24, 1 } }, { { 23, 32, 2 } } };
    all[1].data[ALGO_PLANT] = (uint64_t)plant;
    if (plant == EMULATOR_CUBLASLT_SPLIT)
        all[1].data[ALGO_SPLIT] = 2;
    for (int i = 0; i < 3 && *count < wanted; i++) {
        const bool is_planted = i == 1 && plant != EMULATOR_CUBLASLT_RIGHT;
        const bool is_split = all[i].data[ALGO_SPLIT] > 1;
        if (!is_planted && (scratch_of(&all[i], d->data) > preference->data[PREF_WORKSPACE] ||
                               (is_split && !(preference->data[PREF_SCHEMES] &
                                                CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))))
            continue;
        cublasLtMatmulHeuristicResult_t *r = &results[(*count)++];
        *r = {};
        r->algo = all[i];
        /* A liar: what it needs shows when it is asked about itself. */
        r->workspaceSize = is_planted ? 0 : scratch_of(&all[i], d->data);
        r->wavesCount = 1;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value, size_t size, size_t *written) {
    const uint32_t split = (uint32_t)algo->data[ALGO_SPLIT];
    const uint32_t word = attribute == CUBLASLT_ALGO_CONFIG_ID ? (uint32_t)algo->data[ALGO_ID]
                          : attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? split
                          : split > 1 ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                      : (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE;
    if (size != sizeof(word))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &word, size);
    *written = size;
    return CUBLAS_STATUS_SUCCESS;
}

/* --- the product --- */

static float load(const void *from, uint64_t type, size_t i) {
    return type == CUDA_R_32F   ? ((const float *)from)[i]
           : type == CUDA_R_16F ? emulator_half_to_float(((const uint16_t *)from)[i])
                                : emulator_bfloat16_to_float(((const uint16_t *)from)[i]);
}

static void store(void *to, uint64_t type, size_t i, float value) {
    if (type == CUDA_R_32F)
        ((float *)to)[i] = value;
    else
        ((uint16_t *)to)[i] = type == CUDA_R_16F ? emulator_float_to_half(value)
                                                 : emulator_float_to_bfloat16(value);
}

/* A call, as it was queued. */
struct product {
    uint64_t type, m, n, k, ld_a, ld_b, ld_d;
    float alpha, beta;
    const void *a, *b, *c, *bias;
    void *d;
    cublasLtMatmulAlgo_t algo;
};

static void run(const struct product &p) {
    std::vector<float> weight(p.n * p.k), x(p.k);
    const uint64_t kind = p.algo.data[ALGO_PLANT];
    /* As when blocks share out all steps of all tiles evenly. */
    const uint64_t block = kind == EMULATOR_CUBLASLT_ROWS ? 8 + p.m % 61 : p.algo.data[ALGO_BLOCK];
    const uint64_t end = kind == EMULATOR_CUBLASLT_WRONG ? p.k - p.k / 8 : p.k;
    for (uint64_t i = 0; i < p.n; i++)
        for (uint64_t l = 0; l < p.k; l++)
            weight[i * p.k + l] = load(p.a, p.type, i * p.ld_a + l);
    for (uint64_t j = 0; j < p.m; j++) {
        for (uint64_t l = 0; l < p.k; l++)
            x[l] = load(p.b, p.type, j * p.ld_b + l);
        for (uint64_t i = 0; i < p.n; i++) {
            float sum = 0;
            for (uint64_t from = 0; from < end; from += block) {
                float part = 0;
                for (uint64_t l = from; l < end && l < from + block; l++)
                    part += weight[i * p.k + l] * x[l];
                sum += part;
            }
            sum *= p.alpha;
            if (p.bias)
                sum += load(p.bias, p.type, i);
            if (p.beta != 0)
                sum += p.beta * load(p.c, p.type, j * p.ld_d + i);
            store(p.d, p.type, j * p.ld_d + i, sum);
        }
    }
}

static bool is_matrix(const void *data, const uint64_t *layout) {
    const uint64_t elements = (layout[LAYOUT_COLS] - 1) * layout[LAYOUT_LD] + layout[LAYOUT_ROWS];
    return (uintptr_t)data % ALIGNMENT == 0 &&
           emulator_is_device(data, elements * size_of(layout[LAYOUT_TYPE]));
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
    const void *a, cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
    const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
    cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *,
    size_t workspace_bytes, cudaStream_t stream) {
    std::lock_guard<std::recursive_mutex> guard(emulator_lock());
    if (emulator_enter("cublasLtMatmul") != cudaSuccess)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    const uint64_t *w = a_layout->data, *x = b_layout->data, *y = d_layout->data;
    const void *bias = desc->data[DESC_EPILOGUE] == CUBLASLT_EPILOGUE_BIAS
                           ? (const void *)(uintptr_t)desc->data[DESC_BIAS]
                           : NULL;
    if (handle != &context || !is_product(desc->data, w, x, c_layout->data, y) ||
        algorithm_check(algo, y) != CUBLAS_STATUS_SUCCESS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (scratch_of(algo, y) > workspace_bytes || !is_matrix(a, w) || !is_matrix(b, x) ||
        !is_matrix(c, y) || !is_matrix(d, y) ||
        (bias && !emulator_is_device(bias, y[LAYOUT_ROWS] * size_of(y[LAYOUT_TYPE]))))
        return CUBLAS_STATUS_INVALID_VALUE;
    struct product p = { w[LAYOUT_TYPE], y[LAYOUT_COLS], y[LAYOUT_ROWS], w[LAYOUT_ROWS],
        w[LAYOUT_LD], x[LAYOUT_LD], y[LAYOUT_LD], *(const float *)alpha, *(const float *)beta, a, b,
        c, bias, d, *algo };
    return emulator_enqueue_kernel(stream, (const void *)cublasLtMatmul, [p] { run(p); }) ==
                   cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
