/* Inside kernels/cuda/: NVIDIA's cuBLASLt as one more path for plain products, y = x W^T + bias +
 * residual, of linear layers and 1x1 convolutions.
 *
 * The library is half a gigabyte and need not be installed. Nothing is linked against it. It is
 * loaded when its algorithms are first listed (by the tuner), or when one of them was chosen
 * before. Without it there are no candidates of this path, which is logged once.
 *
 * A row's bits must not depend on the batch. An algorithm is therefore used only if it neither
 * splits k nor asks for scratch memory (through which blocks would exchange parts of a sum), and if
 * the library accepts it for any number of rows. It then computes the shape for every batch; in
 * addition, the tuner compares the bits. One thing differs from our own kernels: cuBLASLt takes the
 * bias in the activations' dtype, rounded.
 */
#ifndef KERNELS_CUDA_CUBLASLT_H
#define KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUBLASLT_MAX_ALGORITHMS 8

/* Lists the library's algorithms for this shape, the one it expects to be fastest first. Returns
 * their number. `tile` of a candidate is a number that is valid in this process only; its name is
 * lasting. */
int cublaslt_candidates(
    const struct gemm_shape *shape, struct gemm_candidate out[CUBLASLT_MAX_ALGORITHMS]);
/* Whether algorithm number `tile` was listed or restored for this shape. */
bool cublaslt_has(int tile, const struct gemm_shape *shape);

/* Writes "cublaslt VERSION WORDS": the library's version, and its algorithm as 64-bit words in
 * hexadecimal without the zero words at the end. */
void cublaslt_name(int tile, char *text, size_t size);
bool cublaslt_is_name(const char *name);
/* Finds the candidate with this name for this shape. Returns false without the library, with
 * another version of it, or if it does not accept the algorithm (any more). */
bool cublaslt_restore(const struct gemm_shape *shape, const char *name, struct gemm_candidate *out);

/* Launches g, which may hold any number of the batch's rows. */
bool cublaslt_run(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err);

#ifdef __cplusplus
}
#endif

#endif
