/* The product on tensor cores through mma.sync: sm_75 (f16 only) and later.
 *
 * A block computes a BM x BN tile in steps of BK along k. Stages of both operands' slices lie in
 * shared memory, filled by cp.async while earlier ones are multiplied. Rows of A are gathered from
 * the image, 16 bytes (8 channels) at a time; pixels outside become zeros on the way. Rows of a
 * slice are BK elements; their 16-byte chunks are permuted (swizzle) so that the 8 rows an ldmatrix
 * reads lie in different banks. Each warp owns WM x WN of the tile.
 */
#include "kernels/cuda/gemm/gemm_parts.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

/* Multiplies a 16 x 16 fragment by a 16 x 8 fragment; sm_75 does it in two halves of k. */
template <class T, bool SM75>
__device__ __forceinline__ void multiply(float *c, const uint32_t *a, const uint32_t *b) {
    if constexpr (SM75) {
        mma_m16n8k8_f16(c, a, b[0]);
        mma_m16n8k8_f16(c, a + 2, b[1]);
    } else {
        mma_m16n8k16<T>(c, a, b);
    }
}

template <int BM_, int BN_, int BK_, int WARPS_M_, int WARPS_N_, int STAGES_> struct mma_tile {
    static constexpr int BM = BM_, BN = BN_, BK = BK_, STAGES = STAGES_;
    static constexpr int WARPS_M = WARPS_M_, WARPS_N = WARPS_N_;
    static constexpr int THREADS = 32 * WARPS_M * WARPS_N;
    static constexpr int WM = BM / WARPS_M, WN = BN / WARPS_N;
    static constexpr int CHUNKS = BK / 8;         /* 16-byte chunks of a row */
    static constexpr int ROWS = THREADS / CHUNKS; /* rows that all threads load at once */
    static constexpr int A_LOADS = BM / ROWS, B_LOADS = (BN + ROWS - 1) / ROWS;
    static constexpr int STAGE = (BM + BN) * BK; /* elements */
    static constexpr int STAGING = WN + 8;       /* floats per staged row; no bank conflicts */
    static constexpr int LOOP_BYTES = STAGES * STAGE * 2;
    static constexpr int END_BYTES = WARPS_M * WARPS_N * 16 * STAGING * 4;
    static constexpr int SHARED = LOOP_BYTES > END_BYTES ? LOOP_BYTES : END_BYTES;
    static constexpr int PARTS_BYTES = gemm_parts_tile<BM, BN>::BYTES;
    static constexpr int CLUSTERED_BYTES = SHARED > PARTS_BYTES ? SHARED : PARTS_BYTES;
    static_assert(PARTS_BYTES <= 99 << 10, "what every chip that has clusters has");
    static_assert(BM % ROWS == 0 && WM % 16 == 0 && WN % 8 == 0 && GEMM_K_UNIT % BK == 0, "");
};

/* Element offset of a 16-byte chunk in a slice. */
template <int BK> __device__ __forceinline__ int swizzled(int row, int chunk) {
    if constexpr (BK == 64)
        return row * BK + ((chunk ^ (row & 7)) << 3);
    else
        return row * BK + ((chunk ^ ((row >> 1) & 3)) << 3);
}

/* A thread loads the same 16-byte chunk of every ROWS-th row. */
template <class T, class TILE> using mma_lines = struct gemm_lines<T, TILE::A_LOADS, TILE::ROWS>;

/* Starts the copies of the next slices into `stage`. */
template <class T, class TILE>
__device__ __forceinline__ void mma_load(
    const struct gemm &g, mma_lines<T, TILE> *lines, T *stage) {
    const int chunk = (int)threadIdx.x % TILE::CHUNKS;
    const bool inside = lines->k < lines->k_end;
#pragma unroll
    for (int i = 0; i < TILE::A_LOADS; i++) {
        int64_t element = 0;
        const bool there = inside &&
                           gemm_source(g, lines->pixels[i], lines->at.ky, lines->at.kx, &element);
        const T *from = (const T *)g.x + (there ? element + lines->at.c : 0);
        cp_async_16(
            stage + swizzled<TILE::BK>(lines->first + i * TILE::ROWS, chunk), from, there ? 16 : 0);
    }
    T *b = stage + TILE::BM * TILE::BK;
#pragma unroll
    for (int i = 0; i < TILE::B_LOADS; i++) {
        const int row = lines->first + i * TILE::ROWS, n = lines->n_first + row;
        if (TILE::BN % TILE::ROWS != 0 && row >= TILE::BN)
            break;
        const bool there = inside && n < g.n;
        const T *from = lines->weight + (there ? (int64_t)n * g.k + lines->k : 0);
        cp_async_16(b + swizzled<TILE::BK>(row, chunk), from, there ? 16 : 0);
    }
    lines->advance(g, TILE::BK);
}

/* sums[WM / 16][WN / 8][4] += this warp's part of the slices in `stage`. */
template <class T, class TILE, bool SM75>
__device__ __forceinline__ void mma_slice(
    const T *stage, int warp_m, int warp_n, float (*sums)[TILE::WN / 8][4]) {
    constexpr int MF = TILE::WM / 16, NF = TILE::WN / 8;
    const int lane = (int)threadIdx.x % 32;
    const T *a_slice = stage, *b_slice = stage + TILE::BM * TILE::BK;
#pragma unroll
    for (int kk = 0; kk < TILE::BK / 16; kk++) {
        uint32_t a[MF][4], b[NF][2];
#pragma unroll
        for (int i = 0; i < MF; i++)
            ldmatrix_x4(a[i], a_slice + swizzled<TILE::BK>(warp_m * TILE::WM + i * 16 + lane % 16,
                                            kk * 2 + lane / 16));
#pragma unroll
        for (int j = 0; j + 1 < NF; j += 2) {
            uint32_t r[4];
            const int row = warp_n * TILE::WN + j * 8 + lane / 16 * 8 + lane % 8;
            ldmatrix_x4(r, b_slice + swizzled<TILE::BK>(row, kk * 2 + lane / 8 % 2));
            b[j][0] = r[0], b[j][1] = r[1], b[j + 1][0] = r[2], b[j + 1][1] = r[3];
        }
        if constexpr (NF % 2 == 1) {
            const int row = warp_n * TILE::WN + (NF - 1) * 8 + lane % 8;
            ldmatrix_x2(b[NF - 1], b_slice + swizzled<TILE::BK>(row, kk * 2 + lane / 8 % 2));
        }
#pragma unroll
        for (int i = 0; i < MF; i++)
#pragma unroll
            for (int j = 0; j < NF; j++)
                multiply<T, SM75>(sums[i][j], a[i], b[j]);
    }
}

/* Writes a warp's sums through the warp's own piece of shared memory, 16 rows at a time. This way
 * outputs are written, and the residual is read, in whole 16-byte pieces of a row. */
template <class T, class TILE>
__device__ __forceinline__ void mma_end(const struct gemm &g, int phase, int part, int m_first,
    int n_first, float *staging, float (*sums)[TILE::WN / 8][4]) {
    constexpr int NF = TILE::WN / 8;
    const int lane = (int)threadIdx.x % 32, width = g.geglu ? 16 : 8;
    const int pieces = TILE::WN / width;
#pragma unroll
    for (int i = 0; i < TILE::WM / 16; i++) {
#pragma unroll
        for (int j = 0; j < NF; j++) {
            float *to = staging + lane / 4 * TILE::STAGING + j * 8 + lane % 4 * 2;
            *(float2 *)to = make_float2(sums[i][j][0], sums[i][j][1]);
            *(float2 *)(to + 8 * TILE::STAGING) = make_float2(sums[i][j][2], sums[i][j][3]);
        }
        __syncwarp();
        for (int p = lane; p < 16 * pieces; p += 32) {
            const int row = p / pieces, column = p % pieces * width;
            const int m = m_first + i * 16 + row, n = n_first + column;
            if (m >= g.m || n >= g.n)
                continue;
            float v[16];
#pragma unroll
            for (int e = 0; e < 16; e++)
                v[e] = e < width ? staging[row * TILE::STAGING + column + e] : 0.0f;
            gemm_finish<T>(g, phase, part, m, n, v);
        }
        __syncwarp();
    }
}

/* Does what mma_end does if a cluster adds the parts of a split sum. The blocks of the cluster are
 * the parts. */
template <class T, class TILE>
__device__ __forceinline__ void mma_end_parts(const struct gemm &g, int phase, int part,
    int m_first, int n_first, float *tile, float (*sums)[TILE::WN / 8][4]) {
    constexpr int LINE = gemm_parts_tile<TILE::BM, TILE::BN>::LINE;
    const int warp = (int)threadIdx.x / 32;
    float *own = tile + warp / TILE::WARPS_N * TILE::WM * LINE + warp % TILE::WARPS_N * TILE::WN;
#pragma unroll
    for (int i = 0; i < TILE::WM / 16; i++)
#pragma unroll
        for (int j = 0; j < TILE::WN / 8; j++)
            gemm_lay_fragment<LINE>(own + i * 16 * LINE + j * 8, sums[i][j]);
    cluster_sync();
    gemm_end_parts<T, TILE::BM, TILE::BN, TILE::THREADS>(
        g, phase, part, 0, 1, [&](int i) { return m_first + i < g.m ? m_first + i : -1; }, n_first,
        tile);
    cluster_sync(); /* the others no longer read this block's memory */
}

/* Grid: y counts [phases][split], x [tiles of m][tiles of n].
 *
 * The second launch bound is given because otherwise ptxas chooses how many blocks share a
 * multiprocessor. For the small tiles it then spills a word or two to fit one block more.
 */
template <class T, class TILE, bool SM75>
__global__ void __launch_bounds__(TILE::THREADS, SM75 || TILE::THREADS <= 128 ? 1 : 0)
    gemm_mma(const struct gemm g) {
    if (!SM75 && !AMPERE_CODE)
        return;
    DYNAMIC_SHARED(T, shared);
    const int phase = (int)blockIdx.y / g.split, part = (int)blockIdx.y % g.split;
    const int tiles_n = (g.n + TILE::BN - 1) / TILE::BN;
    const int m_first = (int)blockIdx.x / tiles_n * TILE::BM;
    const int n_first = (int)blockIdx.x % tiles_n * TILE::BN;
    const int warp = (int)threadIdx.x / 32;
    const int warp_m = warp / TILE::WARPS_N, warp_n = warp % TILE::WARPS_N;
    int k_begin, k_end;
    gemm_part(g, part, &k_begin, &k_end);
    const int steps = (k_end - k_begin + TILE::BK - 1) / TILE::BK;
    griddepcontrol_wait();
    mma_lines<T, TILE> lines(g, phase, m_first, n_first, (int)threadIdx.x / TILE::CHUNKS,
        k_begin + (int)threadIdx.x % TILE::CHUNKS * 8, k_end);
#pragma unroll
    for (int s = 0; s < TILE::STAGES - 1; s++) {
        if (s < steps)
            mma_load<T, TILE>(g, &lines, shared + s * TILE::STAGE);
        cp_async_commit();
    }
    float sums[TILE::WM / 16][TILE::WN / 8][4] = {};
    int reading = 0, writing = TILE::STAGES - 1;
    for (int step = 0; step < steps; step++) {
        cp_async_wait<TILE::STAGES - 2>();
        /* All threads see slice `step` and no longer read the slice before it. */
        __syncthreads();
        if (step + TILE::STAGES - 1 < steps)
            mma_load<T, TILE>(g, &lines, shared + writing * TILE::STAGE);
        cp_async_commit();
        mma_slice<T, TILE, SM75>(shared + reading * TILE::STAGE, warp_m, warp_n, sums);
        reading = reading + 1 == TILE::STAGES ? 0 : reading + 1;
        writing = writing + 1 == TILE::STAGES ? 0 : writing + 1;
    }
    griddepcontrol_launch();
    cp_async_wait<0>();
    __syncthreads();
    if (!SM75 && GEMM_PARTS_CODE && g.clustered) {
        mma_end_parts<T, TILE>(g, phase, part, m_first, n_first, (float *)shared, sums);
        return;
    }
    mma_end<T, TILE>(g, phase, part, m_first + warp_m * TILE::WM, n_first + warp_n * TILE::WN,
        (float *)shared + warp * 16 * TILE::STAGING, sums);
}

/* Columns: M, N and K step of the block, warps along M and N, stages, the static model's rate
 * (gemm_tile), and whether sm_75 has the tile too (64 KiB of shared memory). */
#define TILES(X)                                                                                   \
    X(128, 160, 32, 4, 2, 4, 1.00, 0)                                                              \
    X(128, 160, 64, 4, 2, 3, 1.02, 0)                                                              \
    X(128, 128, 32, 2, 4, 4, 0.97, 1)                                                              \
    X(128, 128, 64, 2, 4, 3, 0.98, 0)                                                              \
    X(128, 80, 64, 4, 1, 3, 0.80, 0)                                                               \
    X(64, 160, 32, 2, 2, 4, 0.85, 0)                                                               \
    X(64, 160, 64, 2, 2, 3, 0.85, 0)                                                               \
    X(64, 80, 64, 4, 1, 4, 0.60, 0)                                                                \
    X(64, 64, 32, 2, 2, 4, 0.60, 1)                                                                \
    X(64, 64, 64, 2, 2, 4, 0.62, 0)                                                                \
    X(32, 64, 64, 2, 2, 4, 0.38, 0)                                                                \
    X(128, 8, 64, 4, 1, 3, 0.15, 0)                                                                \
    X(64, 8, 64, 4, 1, 4, 0.13, 1)

struct mma_entry {
    void (*f16)(const struct gemm), (*bf16)(const struct gemm), (*f16_sm75)(const struct gemm);
    size_t clustered_bytes; /* shared memory if parts are added in it */
};

#define TILE_OF(m, n, k, wm, wn, s) mma_tile<m, n, k, wm, wn, s>
#define ROW(m, n, k, wm, wn, s, weight, sm75)                                                      \
    { #m "x" #n "x" #k, m, n, k, s, TILE_OF(m, n, k, wm, wn, s)::THREADS,                          \
        TILE_OF(m, n, k, wm, wn, s)::SHARED, 1, weight, 1 },
static const struct gemm_tile tiles[] = { TILES(ROW) };
#undef ROW

template <class TILE, bool SM75> struct maybe {
    static constexpr void (*kernel)(const struct gemm) = nullptr;
};
template <class TILE> struct maybe<TILE, true> {
    static constexpr void (*kernel)(const struct gemm) = gemm_mma<__half, TILE, true>;
};

#define ROW(m, n, k, wm, wn, s, weight, sm75)                                                      \
    { gemm_mma<__half, TILE_OF(m, n, k, wm, wn, s), false>,                                        \
        gemm_mma<__nv_bfloat16, TILE_OF(m, n, k, wm, wn, s), false>,                               \
        maybe<TILE_OF(m, n, k, wm, wn, s), sm75>::kernel,                                          \
        TILE_OF(m, n, k, wm, wn, s)::CLUSTERED_BYTES },
static const struct mma_entry entries[] = { TILES(ROW) };
#undef ROW

extern "C" const struct gemm_tile *gemm_mma_tiles(int *count) {
    *count = (int)(sizeof(tiles) / sizeof(tiles[0]));
    return tiles;
}

extern "C" bool gemm_mma_has(int tile, enum dtype dtype) {
    const struct cuda_properties *device = cuda_get_properties();
    if (tiles[tile].shared_bytes > device->shared_bytes_per_block)
        return false;
    if (device->capability < 80)
        return dtype == DTYPE_F16 && entries[tile].f16_sm75;
    return dtype == DTYPE_F16 || dtype == DTYPE_BF16;
}

extern "C" bool gemm_mma_run(const struct gemm_candidate *candidate, const struct gemm *g,
    enum dtype dtype, struct error *err) {
    const struct gemm_tile *tile = &tiles[candidate->tile];
    const struct mma_entry *entry = &entries[candidate->tile];
    void (*kernel)(const struct gemm) = dtype == DTYPE_BF16                      ? entry->bf16
                                        : cuda_get_properties()->capability < 80 ? entry->f16_sm75
                                                                                 : entry->f16;
    const int tiles_n = (g->n + tile->n - 1) / tile->n, tiles_m = (g->m + tile->m - 1) / tile->m;
    const dim3 grid((unsigned)(tiles_m * tiles_n), (unsigned)(g->phases * g->split));
    const struct launch_shape shape = { grid, dim3((unsigned)tile->threads),
        g->clustered ? entry->clustered_bytes : tile->shared_bytes,
        dim3(1, g->clustered ? (unsigned)g->split : 1), true };
    return launch_kernel(&shape, "gemm_mma", err, kernel, *g);
}
