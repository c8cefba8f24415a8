/* Inside kernels/cuda/: how a warp's sums of wgmma leave.
 *
 * A warp has 16 GEMM rows by FRAGMENTS fragments of 8 columns, laid out like wgmma's sums: the four
 * lanes of a quad share a row `lane / 4` and the one 8 below. Memory wants whole 16-byte pieces of a
 * row, so the lanes of a quad exchange what they hold, four pieces at a time. Nothing of it touches
 * shared memory, which stays free for what loads.
 */
#ifndef KERNELS_CUDA_GEMM_END_CUH
#define KERNELS_CUDA_GEMM_END_CUH

#include "kernels/cuda/gemm.cuh"

/* sums += bias, unless gemm_reduce adds it. Behind the last product: wgmma wants its registers to
 * itself. */
template <int FRAGMENTS>
__device__ __forceinline__ void gemm_add_bias(const struct gemm &g, int n_first, float *sums) {
    if (!g.bias || g.split > 1)
        return;
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++) {
        const int n = n_first + 8 * j + (int)threadIdx.x % 4 * 2;
        float2 b = make_float2(0.0f, 0.0f);
        if (n + 1 < g.n)
            b = *(const float2 *)(g.bias + n);
        else if (n < g.n)
            b.x = g.bias[n];
        sums[4 * j] += b.x, sums[4 * j + 1] += b.y;
        sums[4 * j + 2] += b.x, sums[4 * j + 3] += b.y;
    }
}

/* Each lane has its part of units 0 to 3 in e[0] to e[3]; then lane s of the quad has in e[0] to
 * e[3] what lanes 0 to 3 had of unit s. */
__device__ __forceinline__ void quad_exchange(float2 *e) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        const float2 mine = odd ? e[i] : e[i + 1];
        const float2 other = make_float2(
            __shfl_xor_sync(0xffffffffu, mine.x, 1), __shfl_xor_sync(0xffffffffu, mine.y, 1));
        e[i] = odd ? other : e[i];
        e[i + 1] = odd ? e[i + 1] : other;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float2 mine = high ? e[i] : e[i + 2];
        const float2 other = make_float2(
            __shfl_xor_sync(0xffffffffu, mine.x, 2), __shfl_xor_sync(0xffffffffu, mine.y, 2));
        e[i] = high ? other : e[i];
        e[i + 2] = high ? e[i + 2] : other;
    }
}

/* Pieces of 8 outputs, in groups of four: a quad's lane q finishes one of each group. With PIECES a
 * multiple of 4, a group is 4 pieces side by side of one of the two rows, else 2 of each. */
template <int PIECES> struct gemm_groups {
    static constexpr bool WIDE = PIECES % 4 == 0;
    static constexpr int OF_ROW = WIDE ? PIECES / 4 : 1;
    static constexpr int COUNT = WIDE ? 2 * OF_ROW : (PIECES + 1) / 2;

    static __device__ __forceinline__ int row(int group, int q) {
        return WIDE ? group / OF_ROW : q >> 1;
    }
    static __device__ __forceinline__ int piece(int group, int q) {
        return WIDE ? group % OF_ROW * 4 + q : 2 * group + (q & 1);
    }
};

/* This lane's part of one piece. GEGLU: fragments 2 piece and 2 piece + 1, an output of each. */
template <bool GEGLU>
__device__ __forceinline__ float2 gemm_unit(const float *sums, int row, int piece) {
    if constexpr (GEGLU) {
        const float *a = sums + 8 * piece + 2 * row, *b = a + 4;
        return make_float2(a[0] * gelu(a[1]), b[0] * gelu(b[1]));
    } else {
        const float *a = sums + 4 * piece + 2 * row;
        return make_float2(a[0], a[1]);
    }
}

template <class T, int FRAGMENTS, int AHEAD, bool GEGLU>
__device__ __forceinline__ void gemm_end_as(
    const struct gemm &g, int phase, int part, const int *rows, int n_first, const float *sums) {
    constexpr int PIECES = GEGLU ? FRAGMENTS / 2 : FRAGMENTS, WIDTH = GEGLU ? 16 : 8;
    typedef gemm_groups<PIECES> groups;
    const int q = (int)threadIdx.x % 4;
    const struct gemm_place places[2] = { gemm_place_of(g, phase, max(rows[0], 0)),
        gemm_place_of(g, phase, max(rows[1], 0)) };
#pragma unroll
    for (int first = 0; first < groups::COUNT; first += AHEAD) {
        struct gemm_addends<T> addends[AHEAD] = {};
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int row = groups::row(first + i, q), piece = groups::piece(first + i, q);
            const int n = n_first + piece * WIDTH;
            if (g.split == 1 && first + i < groups::COUNT && piece < PIECES && n < g.n &&
                (row ? rows[1] : rows[0]) >= 0)
                addends[i].load(g, row ? places[1] : places[0], n * 8 / WIDTH);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const int group = first + i;
            if (group >= groups::COUNT)
                break;
            float2 e[4];
#pragma unroll
            for (int u = 0; u < 4; u++)
                e[u] = groups::piece(group, u) < PIECES
                           ? gemm_unit<GEGLU>(sums, groups::row(group, u), groups::piece(group, u))
                           : make_float2(0.0f, 0.0f);
            quad_exchange(e);
            const int row = groups::row(group, q), piece = groups::piece(group, q);
            const int m = row ? rows[1] : rows[0], n = n_first + piece * WIDTH;
            if (m < 0 || piece >= PIECES)
                continue;
            float v[8];
#pragma unroll
            for (int s = 0; s < 4; s++) {
                v[GEGLU ? s : 2 * s] = e[s].x;
                v[GEGLU ? s + 4 : 2 * s + 1] = e[s].y;
            }
            if (g.split > 1 && n < g.n_partial)
                store_8(gemm_partial(g, phase, part, m, n), v);
            else if (g.split == 1 && n < g.n)
                gemm_write(g, row ? places[1] : places[0], n * 8 / WIDTH, addends[i], v);
        }
    }
}

/* rows: the GEMM rows of this lane's two rows, or -1. n_first: the warp's first column. What is
 * added to AHEAD groups is on their way at a time: more hide more of their latency and take
 * registers. */
template <class T, int FRAGMENTS, int AHEAD>
__device__ __forceinline__ void gemm_end(
    const struct gemm &g, int phase, int part, const int *rows, int n_first, const float *sums) {
    if constexpr (FRAGMENTS % 2 == 0)
        if (g.geglu && g.split == 1) {
            gemm_end_as<T, FRAGMENTS, AHEAD, true>(g, phase, part, rows, n_first, sums);
            return;
        }
    gemm_end_as<T, FRAGMENTS, AHEAD, false>(g, phase, part, rows, n_first, sums);
}

#endif
