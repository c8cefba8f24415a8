/* attention on tensor cores through mma.sync, one head size per kernel: 40, 64, 80, 160 channels.
 *
 * A warp owns 16 or 32 queries, keeps their q in registers, and walks over the keys in blocks. Keys
 * and values pass through shared memory: values are loaded while scores are computed, and the next
 * keys while values are summed. Scores become weights in place: a fragment of q k^T is the left
 * operand of the product with v. A line of shared memory is an odd number of 16-byte chunks, so
 * that the 8 lines of an ldmatrix lie in different banks. Heads of 40 need no padding for that; the
 * second half of their third K step is zeros in registers.
 *
 * WHOLE: all keys (77 of a prompt) fit one block of keys. They are loaded once, and the block then
 * takes one tile of queries after the other, without a barrier.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/launch_simple.cuh"

template <int D_, int MF_, int WARPS_, int BK_, bool WHOLE_> struct flash_tile {
    static constexpr int D = D_, MF = MF_, WARPS = WARPS_, BK = BK_;
    static constexpr bool WHOLE = WHOLE_;
    static constexpr int THREADS = 32 * WARPS, BQ = 16 * MF * WARPS;
    static constexpr int CHUNKS = D / 8, PITCH = (CHUNKS | 1) * 8; /* elements per line */
    static constexpr int STEPS = (D + 15) / 16;                    /* of q k^T */
    static constexpr bool HALF = D % 16 != 0;     /* the last step has 8 channels only */
    static constexpr int KF = BK / 8, DF = D / 8; /* fragments of keys and of v */
    static constexpr int SHARED = 2 * BK * PITCH * 2;
    static_assert(D % 8 == 0 && BK % 16 == 0, "");
};

/* Starts the copies of keys first .. first + BK; zeros after the last key. */
template <class T, class TILE>
__device__ __forceinline__ void load_keys(T *to, const T *from, int64_t step, int first, int keys) {
    for (int i = (int)threadIdx.x; i < TILE::BK * TILE::CHUNKS; i += TILE::THREADS) {
        const int line = i / TILE::CHUNKS, chunk = i % TILE::CHUNKS;
        const bool there = first + line < keys;
        cp_async_16(to + line * TILE::PITCH + chunk * 8,
            from + (there ? (first + line) * step + chunk * 8 : 0), there ? 16 : 0);
    }
}

/* The state of a warp, which computes 16 * MF queries. */
template <class T, class TILE> struct flash_warp {
    uint32_t q[TILE::MF][TILE::STEPS][4];
    float sums[TILE::MF][TILE::DF][4];
    float largest[TILE::MF][2], total[TILE::MF][2];

    /* Loads q of the queries from `first` on; zeros after the last query. */
    __device__ __forceinline__ void start(const T *from, int64_t step, int first, int queries) {
        const int lane = (int)threadIdx.x % 32, group = lane / 4, pair = lane % 4;
#pragma unroll
        for (int i = 0; i < TILE::MF; i++) {
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const int query = first + i * 16 + r * 8 + group;
                const bool there = query < queries;
                const T *line = from + (there ? query * step : 0) + 2 * pair;
#pragma unroll
                for (int s = 0; s < TILE::STEPS; s++) {
                    q[i][s][r] = there ? *(const uint32_t *)(line + s * 16) : 0u;
                    const bool second = there && !(TILE::HALF && s == TILE::STEPS - 1);
                    q[i][s][r + 2] = second ? *(const uint32_t *)(line + s * 16 + 8) : 0u;
                }
                largest[i][r] = MINUS_INFINITY;
                total[i][r] = 0.0f;
            }
            clear_fragments<TILE::DF>(sums[i]);
        }
    }

    /* scores = q k^T for one block of keys. */
    template <bool SM75>
    __device__ __forceinline__ void score(const T *k, float (*scores)[TILE::KF][4]) const {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < TILE::MF; i++)
            clear_fragments<TILE::KF>(scores[i]);
#pragma unroll
        for (int s = 0; s < TILE::STEPS; s++) {
            const bool half = TILE::HALF && s == TILE::STEPS - 1;
#pragma unroll
            for (int j = 0; j < TILE::KF; j += 2) {
                uint32_t b[4] = {};
                if (half) { /* lanes 0 to 15: 16 keys, one chunk of channels */
                    uint32_t two[2];
                    ldmatrix_x2(two, k + (j * 8 + lane % 16) * TILE::PITCH + s * 16);
                    b[0] = two[0], b[2] = two[1];
                } else {
                    ldmatrix_x4(b, k + (j * 8 + lane / 16 * 8 + lane % 8) * TILE::PITCH + s * 16 +
                                       lane / 8 % 2 * 8);
                }
#pragma unroll
                for (int i = 0; i < TILE::MF; i++) {
                    multiply<T, SM75>(scores[i][j], q[i][s], b, half);
                    multiply<T, SM75>(scores[i][j + 1], q[i][s], b + 2, half);
                }
            }
        }
    }

    /* Turns the scores into weights. `keys`: the number of keys from this block on. */
    __device__ __forceinline__ void soften_all(float (*scores)[TILE::KF][4], float c, int keys) {
#pragma unroll
        for (int i = 0; i < TILE::MF; i++) {
            float shrink[2];
            if (keys < TILE::BK)
                hide_keys<TILE::KF>(scores[i], keys, keys);
            soften<TILE::KF, TILE::WHOLE>(scores[i], c, largest[i], total[i], shrink);
            if constexpr (!TILE::WHOLE)
                shrink_sums<TILE::DF>(sums[i], shrink);
        }
    }

    /* sums += weights v for one block of keys. */
    template <bool SM75>
    __device__ __forceinline__ void gather(const T *v, const float (*weights)[TILE::KF][4]) {
        const int lane = (int)threadIdx.x % 32;
#pragma unroll
        for (int t = 0; t < TILE::BK / 16; t++) {
            const T *line = v + (t * 16 + lane % 16) * TILE::PITCH;
            uint32_t a[TILE::MF][4];
#pragma unroll
            for (int i = 0; i < TILE::MF; i++)
                pack_weights<T>(weights[i] + 2 * t, a[i]);
#pragma unroll
            for (int j = 0; j < TILE::DF; j += 2) {
                uint32_t b[4];
                if (j + 1 < TILE::DF)
                    ldmatrix_x4_trans(b, line + j * 8 + lane / 16 * 8);
                else
                    ldmatrix_x2_trans(b, line + j * 8);
#pragma unroll
                for (int i = 0; i < TILE::MF; i++) {
                    multiply<T, SM75>(sums[i][j], a[i], b);
                    if (j + 1 < TILE::DF)
                        multiply<T, SM75>(sums[i][j + 1], a[i], b + 2);
                }
            }
        }
    }

    __device__ __forceinline__ void finish(T *y, int64_t step, int first, int queries) const {
#pragma unroll
        for (int i = 0; i < TILE::MF; i++)
            write_queries<T, TILE::DF>(sums[i], total[i], y, step, first + i * 16, queries);
    }
};

/* The addresses of one head of one row. The grid's y is the head, its z the row. */
template <class T> struct flash_place {
    const T *q, *k, *v;
    T *y;
    int64_t y_step;

    __device__ __forceinline__ explicit flash_place(const struct attention &a) {
        const int64_t row = blockIdx.z, channel = (int64_t)blockIdx.y * a.d;
        y_step = (int64_t)a.heads * a.d;
        q = (const T *)a.q + row * a.tq * a.q_step + channel;
        k = (const T *)a.k + row * a.tk * a.k_step + channel;
        v = (const T *)a.v + row * a.tk * a.v_step + channel;
        y = (T *)a.y + row * a.tq * y_step + channel;
    }
};

template <class T, class TILE, bool SM75>
__device__ __forceinline__ void flash(const struct attention &a, int tk, T *keys, T *values) {
    const flash_place<T> at(a);
    const int first = (int)blockIdx.x * TILE::BQ + (int)threadIdx.x / 32 * 16 * TILE::MF;
    const float c = a.scale * 1.4426950408889634f; /* log2 e */
    flash_warp<T, TILE> w;
    load_keys<T, TILE>(keys, at.k, a.k_step, 0, tk);
    cp_async_commit();
    w.start(at.q, a.q_step, first, a.tq);
    for (int block = 0; block * TILE::BK < tk; block++) {
        float scores[TILE::MF][TILE::KF][4];
        cp_async_wait<0>();
        __syncthreads(); /* all threads see these keys and no longer read the last values */
        load_keys<T, TILE>(values, at.v, a.v_step, block * TILE::BK, tk);
        cp_async_commit();
        w.template score<SM75>(keys, scores);
        w.soften_all(scores, c, tk - block * TILE::BK);
        cp_async_wait<0>();
        __syncthreads(); /* all threads see these values and no longer read these keys */
        if ((block + 1) * TILE::BK < tk)
            load_keys<T, TILE>(keys, at.k, a.k_step, (block + 1) * TILE::BK, tk);
        cp_async_commit();
        w.template gather<SM75>(values, scores);
    }
    w.finish(at.y, at.y_step, first, a.tq);
}

template <class T, class TILE, bool SM75>
__device__ __forceinline__ void whole(const struct attention &a, int tk, T *keys, T *values) {
    const flash_place<T> at(a);
    const int mine = (int)threadIdx.x / 32 * 16 * TILE::MF;
    const float c = a.scale * 1.4426950408889634f;
    flash_warp<T, TILE> w;
    load_keys<T, TILE>(keys, at.k, a.k_step, 0, tk);
    load_keys<T, TILE>(values, at.v, a.v_step, 0, tk);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    for (int tile = (int)blockIdx.x; tile * TILE::BQ < a.tq; tile += (int)gridDim.x) {
        float scores[TILE::MF][TILE::KF][4];
        const int first = tile * TILE::BQ + mine;
        w.start(at.q, a.q_step, first, a.tq);
        w.template score<SM75>(keys, scores);
        w.soften_all(scores, c, tk);
        w.template gather<SM75>(values, scores);
        w.finish(at.y, at.y_step, first, a.tq);
    }
}

template <class T, class TILE, bool SM75>
__global__ void __launch_bounds__(TILE::THREADS, 1) attention_flash(const struct attention a) {
    DYNAMIC_SHARED(T, keys);
    T *const values = keys + TILE::BK * TILE::PITCH;
    griddepcontrol_wait();
    const int tk = keys_of(a, (int)blockIdx.z);
    if (tk == 0)
        return;
    if constexpr (TILE::WHOLE)
        whole<T, TILE, SM75>(a, tk, keys, values);
    else
        flash<T, TILE, SM75>(a, tk, keys, values);
    griddepcontrol_launch();
}

/* Columns: head_dim, fragments of queries per warp, warps, keys per block, WHOLE. For each
 * head_dim, the tile that is expected to be fastest comes first. */
#define FLASH_TILES(X)                                                                             \
    X(40, 2, 4, 64, false)                                                                         \
    X(40, 1, 4, 64, false)                                                                         \
    X(40, 1, 8, 64, false)                                                                         \
    X(64, 2, 4, 64, false)                                                                         \
    X(64, 1, 4, 64, false)                                                                         \
    X(80, 1, 4, 64, false)                                                                         \
    X(80, 2, 4, 32, false)                                                                         \
    X(160, 1, 4, 32, false)                                                                        \
    X(160, 1, 4, 64, false)
#define WHOLE_TILES(X)                                                                             \
    X(40, 1, 4, 80, true)                                                                          \
    X(40, 2, 4, 80, true)                                                                          \
    X(64, 1, 4, 80, true)                                                                          \
    X(80, 1, 4, 80, true)                                                                          \
    X(160, 1, 4, 80, true)

#define TILE_OF(d, mf, warps, keys, whole) flash_tile<d, mf, warps, keys, whole>
#define TILE(d, mf, warps, keys, whole)                                                            \
    { "d" #d " " #mf "x16x" #warps " by " #keys, d, TILE_OF(d, mf, warps, keys, whole)::BQ, keys,  \
        32 * warps, true, whole, (size_t)TILE_OF(d, mf, warps, keys, whole)::SHARED },
#define ENTRY(d, mf, warps, keys, whole)                                                           \
    { attention_flash<__half, TILE_OF(d, mf, warps, keys, whole), false>,                          \
        attention_flash<__nv_bfloat16, TILE_OF(d, mf, warps, keys, whole), false>,                 \
        attention_flash<__half, TILE_OF(d, mf, warps, keys, whole), true> },

static const struct attention_tile flash_tiles[] = { FLASH_TILES(TILE) };
static const struct attention_tile whole_tiles[] = { WHOLE_TILES(TILE) };
static const struct attention_kernels flash_kernels[] = { FLASH_TILES(ENTRY) };
static const struct attention_kernels whole_kernels[] = { WHOLE_TILES(ENTRY) };

extern "C" const struct attention_tile *attention_flash_tiles(int *count) {
    *count = (int)(sizeof(flash_tiles) / sizeof(flash_tiles[0]));
    return flash_tiles;
}

extern "C" const struct attention_tile *attention_whole_tiles(int *count) {
    *count = (int)(sizeof(whole_tiles) / sizeof(whole_tiles[0]));
    return whole_tiles;
}

/* Returns the number of blocks. With WHOLE, each multiprocessor gets only a few, so that keys
 * and values are loaded as rarely as possible. How queries are distributed does not change their
 * bits. */
static int blocks_of(const struct attention *a, const struct attention_tile *tile, bool whole) {
    const int tiles = attention_query_tiles(a, tile);
    const int others = a->heads * a->rows;
    const int wanted = 4 * cuda_get_properties()->multiprocessors;
    const int fewer = (wanted + others - 1) / others;
    return whole && fewer < tiles ? fewer : tiles;
}

extern "C" bool attention_flash_run(const struct attention_candidate *candidate,
    const struct attention *a, enum dtype dtype, struct error *err) {
    const bool whole = candidate->path == ATTENTION_WHOLE;
    const struct attention_tile *tile = (whole ? whole_tiles : flash_tiles) + candidate->tile;
    const struct attention_kernels *kernels = (whole ? whole_kernels : flash_kernels) +
                                              candidate->tile;
    return launch(attention_kernel_for(kernels, dtype),
        attention_grid(a, blocks_of(a, tile, whole)), tile->threads, tile->shared_bytes,
        whole ? "attention_whole" : "attention_flash", err, *a);
}
