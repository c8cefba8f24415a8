/* Inside kernels/cuda/: how every kernel is launched, on the engine's stream.
 *
 *   struct launch_shape shape = { dim3(blocks), dim3(128), shared_bytes };
 *   return launch_kernel(&shape, "layer_norm", err, layer_norm<T>, x, gamma, beta, ...);
 */
#ifndef KERNELS_CUDA_LAUNCH_CUH
#define KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/device.h"

#include <cuda_runtime.h>

struct launch_shape {
    dim3 grid, block;
    size_t shared_bytes; /* dynamic, at most what the device has */
    dim3 cluster;        /* blocks of the grid in one cluster (sm_90); 1 x 1 x 1: none */
    bool overlap; /* may start while the previous kernel is ending, if cuda_may_overlap allows it;
                     the kernel must then call griddepcontrol_wait() before it touches what the
                     previous one wrote */
};

/* Queues kernel(arguments...) on cuda_stream(). Returns false with an error that names the kernel
 * if the launch was refused. A fault while the kernel runs is reported by a later call. */
template <class... Parameters, class... Arguments>
static inline bool launch_kernel(const struct launch_shape *shape, const char *name,
    struct error *err, void (*kernel)(Parameters...), Arguments... arguments) {
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = {};
    config.gridDim = shape->grid;
    config.blockDim = shape->block;
    config.dynamicSmemBytes = shape->shared_bytes;
    config.stream = cuda_stream();
    config.attrs = attributes;
    if (shape->cluster.x * shape->cluster.y * shape->cluster.z > 1) {
        cudaLaunchAttribute *a = &attributes[config.numAttrs++];
        a->id = cudaLaunchAttributeClusterDimension;
        a->val.clusterDim.x = shape->cluster.x;
        a->val.clusterDim.y = shape->cluster.y;
        a->val.clusterDim.z = shape->cluster.z;
    }
    /* A cluster that not every chip supports needs an explicit permission. */
    if (shape->cluster.x * shape->cluster.y * shape->cluster.z > CUDA_PORTABLE_CLUSTER &&
        !cuda_ok(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
            name, err))
        return false;
    if (cuda_may_overlap(shape->overlap)) {
        cudaLaunchAttribute *a = &attributes[config.numAttrs++];
        a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a->val.programmaticStreamSerializationAllowed = 1;
    }
    /* More than 48 KiB needs an explicit permission, once per kernel. Asking again costs little. */
    if (shape->shared_bytes > 48 << 10 &&
        !cuda_ok(cudaFuncSetAttribute(
                     kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shape->shared_bytes),
            name, err))
        return false;
#ifndef __CUDACC__
    emulator_name_kernel(name);
#endif
    return cuda_ok(cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...), name, err);
}

#endif
