/* The part of the runtime for C++ only: typed launches and typed allocation. */
#ifndef TESTS_CUDA_EMULATOR_LAUNCH_H
#define TESTS_CUDA_EMULATOR_LAUNCH_H

#include "tests/cuda-emulator/cuda_runtime.h"

#include <functional>
#include <tuple>

/* Sets the next launch's name for messages. The name is borrowed and must stay valid. */
extern "C" void emulator_name_kernel(const char *name);

/* result: the memory that the kernel writes, as far as its parameters show it, or NULL. */
cudaError_t emulator_launch(const cudaLaunchConfig_t *config, const void *function, void *result,
    std::function<void()> kernel);

/* Returns the memory that a kernel can write through one parameter, or NULL. It is the parameter
 * itself if that is a pointer to non-const data; for a structure `s` it is s.y or s.g.y. */
template <class T> static inline void *emulator_written(T *pointer, int) {
    return std::is_const_v<T> ? NULL : (void *)pointer;
}
template <class T>
static inline auto emulator_written(const T &s, int) -> decltype((void *)s.y, (void *)NULL) {
    return (void *)s.y;
}
template <class T>
static inline auto emulator_written(const T &s, int) -> decltype((void *)s.g.y, (void *)NULL) {
    return (void *)s.g.y;
}
template <class T> static inline void *emulator_written(const T &, long) {
    return NULL;
}

/* The arguments are copied now, as the driver does. The kernel runs later, with its stream. */
template <class... Parameters, class... Arguments>
static inline cudaError_t cudaLaunchKernelEx(
    const cudaLaunchConfig_t *config, void (*kernel)(Parameters...), Arguments &&...arguments) {
    std::tuple<Parameters...> copies((Parameters)arguments...);
    void *result = NULL;
    std::apply(
        [&result](const Parameters &...each) {
            ((result = emulator_written(each, 0) ? emulator_written(each, 0) : result), ...);
        },
        copies);
    return emulator_launch(config, (const void *)kernel, result, [kernel, copies] {
        /* Each thread has its own copy of the parameters. */
        std::tuple<Parameters...> mine = copies;
        std::apply(kernel, mine);
    });
}

template <class T> static inline cudaError_t cudaMalloc(T **pointer, size_t bytes) {
    return cudaMalloc((void **)pointer, bytes);
}

template <class T>
static inline cudaError_t cudaMallocHost(T **pointer, size_t bytes, unsigned int flags = 0) {
    return cudaHostAlloc((void **)pointer, bytes, flags);
}

template <class T>
static inline cudaError_t cudaHostAlloc(T **pointer, size_t bytes, unsigned int flags) {
    return cudaHostAlloc((void **)pointer, bytes, flags);
}

template <class... Parameters>
static inline cudaError_t cudaFuncSetAttribute(
    void (*kernel)(Parameters...), cudaFuncAttribute attribute, int value) {
    return cudaFuncSetAttribute((const void *)kernel, attribute, value);
}

template <class... Parameters>
static inline cudaError_t cudaFuncGetAttributes(
    struct cudaFuncAttributes *attributes, void (*kernel)(Parameters...)) {
    return cudaFuncGetAttributes(attributes, (const void *)kernel);
}

template <class... Parameters>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(
    int *blocks, void (*kernel)(Parameters...), int threads, size_t dynamic_shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(
        blocks, (const void *)kernel, threads, dynamic_shared_bytes);
}

template <class... Parameters>
static inline cudaError_t cudaOccupancyMaxActiveClusters(
    int *clusters, void (*kernel)(Parameters...), const cudaLaunchConfig_t *config) {
    return cudaOccupancyMaxActiveClusters(clusters, (const void *)kernel, config);
}

#endif
