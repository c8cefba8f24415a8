/* Helpers shared by the emulator's tests of kernels: launches and arrays on the device. */
#ifndef TESTS_CUDA_EMULATOR_TESTS_KERNEL_TEST_H
#define TESTS_CUDA_EMULATOR_TESTS_KERNEL_TEST_H

#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"

#include <stdlib.h>

/* Runs the kernel to its end, in clusters of `cluster` blocks along x. */
template <class... P, class... A>
static void launch_clusters(
    dim3 grid, dim3 block, size_t shared, unsigned cluster, void (*kernel)(P...), A... arguments) {
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared;
    config.attrs = &attribute;
    config.numAttrs = cluster > 1;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
    CHECK(cudaLaunchKernelEx(&config, kernel, arguments...) == cudaSuccess, "launch");
    CHECK(cudaDeviceSynchronize() == cudaSuccess, "synchronize");
}

template <class... P, class... A>
static void launch(dim3 grid, dim3 block, size_t shared, void (*kernel)(P...), A... arguments) {
    launch_clusters(grid, block, shared, 1, kernel, arguments...);
}

/* To be freed with cudaFree. */
template <class T> static T *device_array(size_t count) {
    T *p = NULL;
    CHECK(cudaMalloc(&p, count * sizeof(T)) == cudaSuccess, "cudaMalloc");
    return p;
}

#endif
