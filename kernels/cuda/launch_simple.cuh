/* Inside kernels/cuda/: launch_kernel for the usual case. */
#ifndef KERNELS_CUDA_LAUNCH_SIMPLE_CUH
#define KERNELS_CUDA_LAUNCH_SIMPLE_CUH

#include "kernels/cuda/launch.cuh"

/* Launches without a cluster and with overlap: the kernel must begin with griddepcontrol_wait(). */
template <class... Parameters, class... Arguments>
static inline bool launch(void (*kernel)(Parameters...), dim3 grid, int threads,
    size_t shared_bytes, const char *name, struct error *err, Arguments... arguments) {
    const struct launch_shape shape = { grid, dim3((unsigned)threads), shared_bytes, dim3(1),
        true };
    return launch_kernel(&shape, name, err, kernel, arguments...);
}

#endif
