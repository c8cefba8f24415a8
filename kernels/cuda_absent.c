/* In place of kernels/cuda/ where a build has none: says so, and callers need no condition. */
#include "kernels/kernels.h"

const struct kernels *kernels_cuda(int index, struct error *err) {
    error_set(err, ERROR_UNSUPPORTED, "cuda:%d: this build has no CUDA", index);
    return NULL;
}
