/* Inside kernels/cuda/: how a warp writes its sums of wgmma.
 *
 * A warp has 16 GEMM rows by FRAGMENTS fragments of 8 columns, laid out like wgmma's sums: the four
 * lanes of a quad share row `lane / 4` and the row 8 below it. Rows should be written in whole
 * 16-byte pieces, so the lanes of a quad exchange their values, four pieces at a time. What follows
 * the sums (bias, activation, residual) is called the end. Ends that a model rarely needs go
 * through shared memory in a loop, which keeps their code small.
 */
#ifndef KERNELS_CUDA_GEMM_GEMM_END_CUH
#define KERNELS_CUDA_GEMM_GEMM_END_CUH

#include "kernels/cuda/gemm/gemm.cuh"

/* The end of a call: what follows its sums. The host chooses the end, because each end is compiled
 * into a kernel of its own. */
enum gemm_end {
    GEMM_END_PLAIN, /* bias, row_add and residual; 16-byte pieces */
    GEMM_END_GEGLU, /* bias and GEGLU; 16-byte pieces */
    GEMM_END_ANY,   /* the rest: activations, single elements, parts for scratch memory */
    GEMM_END_PARTS, /* any end, if a cluster adds the parts of a split sum */
    GEMM_ENDS,
};

static inline enum gemm_end gemm_end_of(const struct gemm *g) {
    if (g->clustered)
        return GEMM_END_PARTS;
    if (!g->vectors || g->split > 1 || g->activation != ACTIVATION_NONE)
        return GEMM_END_ANY;
    if (!g->geglu)
        return GEMM_END_PLAIN;
    return g->residual || g->row_add ? GEMM_END_ANY : GEMM_END_GEGLU;
}

/* Adds from[column] to the sums of this lane's upper row, lower row, or both. All loads are issued
 * before the first addition, with no condition between them. Columns are whole fragments (n is a
 * multiple of 8). Columns beyond n read values from inside n, but their sums are never written. */
template <int FRAGMENTS, bool UPPER, bool LOWER, class V>
__device__ __forceinline__ void gemm_add_columns(const V *from, int n_first, int n, float *sums) {
    float v[FRAGMENTS][2];
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++)
        load_word<V, 2>(from + min(n_first + 8 * j, n - 8) + threadIdx.x % 4 * 2, v[j]);
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++) {
        if (UPPER)
            sums[4 * j] += v[j][0], sums[4 * j + 1] += v[j][1];
        if (LOWER)
            sums[4 * j + 2] += v[j][0], sums[4 * j + 3] += v[j][1];
    }
}

/* sums += row_add of the batch rows that this lane's two rows belong to. */
template <int FRAGMENTS, class V>
__device__ __forceinline__ void gemm_add_rows(
    const struct gemm &g, const struct gemm_place *places, int n_first, float *sums) {
    const V *from = (const V *)g.row_add;
    gemm_add_columns<FRAGMENTS, true, false>(
        from + (int64_t)places[0].row * g.row_add_step, n_first, g.n, sums);
    gemm_add_columns<FRAGMENTS, false, true>(
        from + (int64_t)places[1].row * g.row_add_step, n_first, g.n, sums);
}

/* Transposes within a quad. Before, e[0] to e[3] are this lane's parts of units 0 to 3. After, e[0]
 * to e[3] of lane s of the quad are the parts of unit s that lanes 0 to 3 had. */
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

/* Divides the pieces of 8 outputs into groups of four. Lane q of a quad finishes one piece of each
 * group. If PIECES is a multiple of 4, a group is 4 adjacent pieces of one of the two rows,
 * otherwise 2 pieces of each row. */
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

/* Returns this lane's part of one piece. With GEGLU, this is one output from each of the fragments
 * 2 piece and 2 piece + 1. */
template <bool GEGLU>
__device__ __forceinline__ float2 gemm_unit(const float *sums, int row, int piece) {
    if constexpr (GEGLU) {
        const float *a = sums + 8 * piece + 2 * row, *b = a + 4;
        return make_float2(a[0] * short_gelu(a[1]), b[0] * short_gelu(b[1]));
    } else {
        const float *a = sums + 4 * piece + 2 * row;
        return make_float2(a[0], a[1]);
    }
}

/* Exchanges the group's four units within the quad, so that v[8] are the channels of this lane's
 * piece. */
template <int PIECES, bool GEGLU>
__device__ __forceinline__ void gemm_piece(const float *sums, int group, float *v) {
    typedef gemm_groups<PIECES> groups;
    float2 e[4];
#pragma unroll
    for (int u = 0; u < 4; u++)
        e[u] = groups::piece(group, u) < PIECES
                   ? gemm_unit<GEGLU>(sums, groups::row(group, u), groups::piece(group, u))
                   : make_float2(0.0f, 0.0f);
    quad_exchange(e);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        v[GEGLU ? s : 2 * s] = e[s].x;
        v[GEGLU ? s + 4 : 2 * s + 1] = e[s].y;
    }
}

/* Copies the bias of a warp's columns to `to` while the warp waits for its first operands. Only
 * packing writes a bias, so the previous kernel need not have ended (cuda_may_overlap). `to`:
 * shared memory, the warp's own 8 * FRAGMENTS floats. */
template <int FRAGMENTS>
__device__ __forceinline__ void gemm_keep_bias(const struct gemm &g, int n_first, float *to) {
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8 * FRAGMENTS; i += 32)
        if (i + lane < 8 * FRAGMENTS)
            to[i + lane] = g.bias ? g.bias[min(n_first + i + lane, g.n - 1)] : 0.0f;
}

/* The end for GEMM_END_PLAIN and GEMM_END_GEGLU. rows: the GEMM rows of this lane's two rows, or
 * -1. n_first: the warp's first column. bias: the copy made by gemm_keep_bias. */
template <class T, int FRAGMENTS, bool GEGLU>
__device__ __forceinline__ void gemm_end_pieces(
    const struct gemm &g, int phase, const int *rows, int n_first, const float *bias, float *sums) {
    constexpr int PIECES = GEGLU ? FRAGMENTS / 2 : FRAGMENTS;
    typedef gemm_groups<PIECES> groups;
    const int q = (int)threadIdx.x % 4, first = GEGLU ? n_first / 2 : n_first;
    const struct gemm_place places[2] = { gemm_place_of(g, phase, max(rows[0], 0)),
        gemm_place_of(g, phase, max(rows[1], 0)) };
    gemm_add_columns<FRAGMENTS, true, true>(bias, 0, 8 * FRAGMENTS, sums);
    if (!GEGLU && g.row_add && g.row_add_is_f32)
        gemm_add_rows<FRAGMENTS, float>(g, places, n_first, sums);
    else if (!GEGLU && g.row_add)
        gemm_add_rows<FRAGMENTS, T>(g, places, n_first, sums);
    uint4 residual[groups::COUNT];
    if (!GEGLU && g.residual)
#pragma unroll
        for (int i = 0; i < groups::COUNT; i++) {
            const int n = min(first + groups::piece(i, q) * 8, g.n_out - 8);
            const int64_t at = groups::row(i, q) ? places[1].at : places[0].at;
            residual[i] = *(const uint4 *)((const T *)g.residual + at + n);
        }
#pragma unroll
    for (int i = 0; i < groups::COUNT; i++) {
        float v[8], more[8];
        gemm_piece<PIECES, GEGLU>(sums, i, v);
        if (!GEGLU && g.residual) {
            load_8((const T *)&residual[i], more);
#pragma unroll
            for (int c = 0; c < 8; c++)
                v[c] += more[c];
        }
        const int row = groups::row(i, q), piece = groups::piece(i, q), n = first + piece * 8;
        if ((row ? rows[1] : rows[0]) >= 0 && piece < PIECES && n < g.n_out)
            store_8((T *)g.y + (row ? places[1].at : places[0].at) + n, v);
    }
}

/* Floats of shared memory that a warp needs for GEMM_END_ANY, in lines that begin in different
 * banks. */
template <int FRAGMENTS> struct gemm_staging {
    static constexpr int LINE = 8 * FRAGMENTS + 4, FLOATS = 16 * LINE;
};

/* The end for GEMM_END_ANY, through the warp's own `staging`. row_of(i): the GEMM row of the warp's
 * row i, or -1. */
template <class T, int FRAGMENTS, class ROWS>
__device__ __forceinline__ void gemm_end_any(const struct gemm &g, int phase, int part, ROWS row_of,
    int n_first, const float *sums, float *staging) {
    constexpr int LINE = gemm_staging<FRAGMENTS>::LINE;
    const int lane = (int)threadIdx.x % 32, width = g.geglu ? 16 : 8;
    const int pieces = 8 * FRAGMENTS / width;
#pragma unroll
    for (int j = 0; j < FRAGMENTS; j++) {
        float *to = staging + lane / 4 * LINE + 8 * j + lane % 4 * 2;
        *(float2 *)to = make_float2(sums[4 * j], sums[4 * j + 1]);
        *(float2 *)(to + 8 * LINE) = make_float2(sums[4 * j + 2], sums[4 * j + 3]);
    }
    __syncwarp();
    for (int i = lane; i < 16 * pieces; i += 32) {
        const int row = i / pieces, column = i % pieces * width;
        const int m = row_of(row), n = n_first + column;
        if (m < 0 || n >= g.n)
            continue;
        float v[16];
#pragma unroll
        for (int e = 0; e < 16; e++)
            v[e] = e < width ? staging[row * LINE + column + e] : 0.0f;
        gemm_finish<T>(g, phase, part, m, n, v);
    }
}

#endif
