/* Inside kernels/cuda/: the entries of the CUDA table, bool cuda_NAME(const struct NAME_args *args,
 * struct error *err) for each operation. Each entry is defined in the file that is named after the
 * operation or its kind. */
#ifndef KERNELS_CUDA_CUDA_H
#define KERNELS_CUDA_CUDA_H

#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

#define ENTRY(name) bool cuda_##name(const struct name##_args *args, struct error *err);
ALL_OPERATIONS(ENTRY)
#undef ENTRY

#ifdef __cplusplus
}
#endif

#endif
