#include "kernels/cuda/gemm/tensor_map.h"

bool tensor_map_encode(CUtensorMap *map, enum dtype dtype, int rank, const void *data,
    const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, struct error *err) {
    static void *function; /* the driver's function, looked up once */
    if (!function) {
        cudaDriverEntryPointQueryResult found;
        if (!cuda_ok(cudaGetDriverEntryPointByVersion(
                         "cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
                "looking up cuTensorMapEncodeTiled", err))
            return false;
        if (!function)
            return error_set(
                err, ERROR_UNSUPPORTED, "this driver has no cuTensorMapEncodeTiled: too old");
    }
    const CUresult result = ((decltype(&cuTensorMapEncodeTiled))function)(map,
        dtype == DTYPE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        (cuuint32_t)rank, (void *)data, sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        return error_set(err, ERROR_DEVICE,
            "cuTensorMapEncodeTiled refuses %d dimensions of %llu x %llu x %llu (%d)", rank,
            (unsigned long long)sizes[0], (unsigned long long)sizes[1],
            (unsigned long long)sizes[2], (int)result);
    return true;
}
