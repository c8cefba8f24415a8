/* For a build whose CUDA toolkit has no cublasLt.h: there are no candidates of cuBLASLt. */
#include "kernels/cuda/cublaslt.h"

int cublaslt_candidates(const struct gemm_shape *, struct gemm_candidate *) {
    return 0;
}

bool cublaslt_has(int, const struct gemm_shape *) {
    return false;
}

void cublaslt_name(int, char *text, size_t size) {
    if (size)
        text[0] = 0;
}

bool cublaslt_is_name(const char *) {
    return false;
}

bool cublaslt_restore(const struct gemm_shape *, const char *, struct gemm_candidate *) {
    return false;
}

bool cublaslt_run(
    const struct gemm_candidate *, const struct gemm *, enum dtype, struct error *err) {
    return error_set(err, ERROR_UNSUPPORTED, "this build has no cuBLASLt");
}
