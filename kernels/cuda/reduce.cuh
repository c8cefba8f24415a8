/* Sums over the threads of a warp and of a block. The order is fixed, so every thread gets the same
 * bits in every run. */
#ifndef KERNELS_CUDA_REDUCE_CUH
#define KERNELS_CUDA_REDUCE_CUH

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Returns the sum over the block to every thread. The block must consist of whole warps, at most
 * 32. `scratch` [32] is shared memory. */
__device__ __forceinline__ float block_sum(float x, float *scratch) {
    x = warp_sum(x);
    if (threadIdx.x % 32 == 0)
        scratch[threadIdx.x / 32] = x;
    __syncthreads();
    x = warp_sum(threadIdx.x % 32 < blockDim.x / 32 ? scratch[threadIdx.x % 32] : 0.0f);
    __syncthreads();
    return x;
}

#endif
