/* Inside kernels/cuda/: NVIDIA's cuBLASLt as one more path for plain products, y = x W^T + bias +
 * residual, of linear layers and 1x1 convolutions.
 *
 * The library is half a gigabyte and need not be installed: it is loaded when its algorithms are
 * first listed (by the tuner) or one of them was chosen before, and nothing is linked against it.
 * Without it there are none of its candidates, which is logged once.
 *
 * A row's bits must not depend on the batch. So an algorithm is only taken if it neither splits k
 * nor asks for scratch memory (through which blocks would hand over parts of a sum), if the library
 * accepts it for any number of rows, and then it computes the shape whatever the batch; the tuner
 * compares the bits besides. One thing differs from our own kernels: cuBLASLt takes the bias in the
 * activations' dtype, rounded.
 */
#ifndef KERNELS_CUDA_CUBLASLT_H
#define KERNELS_CUDA_CUBLASLT_H

#include "kernels/cuda/gemm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUBLASLT_MAX_ALGORITHMS 8

/* What the library offers for this shape, the one it expects to be the fastest first; returns how
 * many. `tile` of a candidate is a number of this process; what lasts is its name. */
int cublaslt_candidates(
    const struct gemm_shape *shape, struct gemm_candidate out[CUBLASLT_MAX_ALGORITHMS]);
/* Whether algorithm number `tile` was offered, or restored, for this shape. */
bool cublaslt_has(int tile, const struct gemm_shape *shape);

/* "cublaslt VERSION WORDS": the library's version and its algorithm, 64-bit words in hexadecimal,
 * those at the end that are zero left out. */
void cublaslt_name(int tile, char *text, size_t size);
bool cublaslt_is_name(const char *name);
/* The candidate of that name for this shape. False without the library, with another version of it,
 * or if it does not accept the algorithm (any more). */
bool cublaslt_restore(const struct gemm_shape *shape, const char *name, struct gemm_candidate *out);

/* Launches g, a part of the batch with any number of rows. */
bool cublaslt_run(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err);

#ifdef __cplusplus
}
#endif

#endif
