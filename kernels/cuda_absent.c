/* Replaces kernels/cuda/ in a build without CUDA. Opening a device fails with an error, so callers
 * need no #ifdef. */
#include "kernels/kernels.h"

const struct kernels *kernels_cuda(int index, struct error *err) {
    error_set(err, ERROR_UNSUPPORTED, "cuda:%d: this build has no CUDA", index);
    return NULL;
}
