/* Inside kernels/cuda/: adding the parts of a split sum in the shared memory of a cluster.
 *
 * The blocks that hold the parts of one tile form a cluster (GEMM_PARTS_MEET). Each block puts its
 * sums into its own shared memory, as a tile of f32. When all blocks have done so, each block
 * finishes its share of the tile: it reads every part of these outputs and adds the parts in order.
 * gemm_reduce adds in the same order and gives the same bits. This needs no scratch memory and
 * no second kernel.
 */
#ifndef KERNELS_CUDA_GEMM_GEMM_PARTS_CUH
#define KERNELS_CUDA_GEMM_GEMM_PARTS_CUH

#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/ptx_hopper.cuh"

#ifdef __CUDA_ARCH__
#define GEMM_PARTS_CODE GEMM_PARTS_MEET(__CUDA_ARCH__ / 10)
#else
#define GEMM_PARTS_CODE true
#endif

/* A tile of sums. Its lines are whole 32-byte pieces and begin in different banks. */
template <int BM, int BN> struct gemm_parts_tile {
    static constexpr int LINE = BN + 8, BYTES = BM * LINE * 4;
};

/* Stores one fragment of a warp's sums, 16 rows by 8 columns, from `at` on. */
template <int LINE>
__device__ __forceinline__ void gemm_lay_fragment(float *at, const float *sums) {
    const int lane = (int)threadIdx.x % 32;
    float *to = at + lane / 4 * LINE + lane % 4 * 2;
    *(float2 *)to = make_float2(sums[0], sums[1]);
    *(float2 *)(to + 8 * LINE) = make_float2(sums[2], sums[3]);
}

/* v[8] = the sum of all parts' values, read in each block at the same place as `own`. Part s is
 * block first + s * apart of the cluster. Up to four parts are read together. */
__device__ __forceinline__ void gemm_add_parts(
    const float *own, int parts, unsigned first, unsigned apart, float *v) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        v[i] = 0.0f;
    for (int s = 0; s < parts; s += 4) {
        float4 low[4], high[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const unsigned rank = first + (unsigned)min(s + i, parts - 1) * apart;
            low[i] = cluster_read((const float4 *)own, rank, s + i < parts);
            high[i] = cluster_read((const float4 *)own + 1, rank, s + i < parts);
        }
        /* A missing part adds 0, which changes no bit because the sum is never -0. */
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[0] += low[i].x, v[1] += low[i].y, v[2] += low[i].z, v[3] += low[i].w;
            v[4] += high[i].x, v[5] += high[i].y, v[6] += high[i].z, v[7] += high[i].w;
        }
    }
}

/* Writes this part's share of the tile, with THREADS threads. Each part's sums are at `tile` in its
 * block, and must stay there until all blocks are done. row_of(i): the GEMM row of the tile's row
 * i, or -1. */
template <class T, int BM, int BN, int THREADS, class ROWS>
__device__ __forceinline__ void gemm_end_parts(const struct gemm &g, int phase, int part,
    unsigned first_rank, unsigned ranks_apart, ROWS row_of, int n_first, const float *tile) {
    constexpr int LINE = gemm_parts_tile<BM, BN>::LINE;
    const int width = g.geglu ? 16 : 8, pieces = BN / width;
    for (int i = part * THREADS + (int)threadIdx.x; i < BM * pieces; i += g.split * THREADS) {
        const int row = i / pieces, column = i % pieces * width;
        const int m = row_of(row), n = n_first + column;
        if (m < 0 || n >= g.n)
            continue;
        const int j = g.geglu ? n / 2 : n;
        const float *own = tile + row * LINE + column;
        const struct gemm_place place = gemm_place_of(g, phase, m);
        struct gemm_addends<T> addends = {};
        float v[16];
        addends.load(g, place, j);
        gemm_add_parts(own, g.split, first_rank, ranks_apart, v);
        if (g.geglu)
            gemm_add_parts(own + 8, g.split, first_rank, ranks_apart, v + 8);
        gemm_store_with<T, false>(g, place, j, addends, v);
    }
}

#endif
