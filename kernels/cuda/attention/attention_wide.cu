/* attention on tensor cores through mma.sync for heads of any multiple of 8 channels up to 512: the
 * VAE's one head of 512, the bundled checkpoint's 24 and 48.
 *
 * The warps of a block form WM rows of 16 queries and WN columns. A column computes the scores of
 * its share of a block of keys and exchanges the largest ones through shared memory. The columns
 * also exchange their weights through shared memory, and each column then sums its CPW channels of
 * the values. q stays in shared memory: 512 channels of it do not fit in registers. Values are
 * loaded while scores are computed, the next keys while values are summed. Lines are an odd number
 * of 16-byte chunks long; a head of 24 channels is followed by 8 zeros.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/launch_simple.cuh"

template <int WM_, int WN_, int CPW_, int BK_> struct wide_tile {
    static constexpr int WM = WM_, WN = WN_, CPW = CPW_, BK = BK_;
    static constexpr int THREADS = 32 * WM * WN, BQ = 16 * WM, MOST = WN * CPW;
    static constexpr int KF = BK / 8 / WN, DF = CPW / 8; /* fragments of a warp */
    static constexpr int WEIGHTS_PITCH = BK + 8;
    static_assert(KF * 8 * WN == BK && BK % 16 == 0 && BK / 8 % 2 == 0, "");
};

/* 16-byte chunks of a line that hold channels or zeros: an even number, for K steps of 16. */
__host__ __device__ __forceinline__ int wide_chunks(int d) {
    return (d / 8 + 1) / 2 * 2;
}

/* Elements from one line to the next. */
__host__ __device__ __forceinline__ int wide_pitch(int d) {
    return (wide_chunks(d) + 1) * 8;
}

template <class TILE> __host__ __device__ __forceinline__ size_t wide_bytes(int d) {
    return ((size_t)(TILE::BQ + 2 * TILE::BK) * (size_t)wide_pitch(d) +
               (size_t)(TILE::BQ * TILE::WEIGHTS_PITCH)) *
               2 +
           (size_t)(TILE::WN * TILE::BQ) * sizeof(float);
}

/* Starts the copies of `lines` tokens from `first` on; zeros after the last token and after channel
 * d. */
template <class T, class TILE>
__device__ __forceinline__ void load_lines(
    T *to, int lines, const T *from, int64_t step, int first, int tokens, int d) {
    const int chunks = wide_chunks(d), pitch = wide_pitch(d);
    for (int i = (int)threadIdx.x; i < lines * chunks; i += TILE::THREADS) {
        const int line = i / chunks, chunk = i - line * chunks;
        const bool there = first + line < tokens && chunk * 8 < d;
        cp_async_16(to + line * pitch + chunk * 8,
            from + (there ? (first + line) * step + chunk * 8 : 0), there ? 16 : 0);
    }
}

/* The state of a warp. It computes 16 queries, from line `query` of the block on: first their
 * scores for its column's keys, then the sums of its column's channels. */
template <class T, class TILE, bool SM75> struct wide_warp {
    float sums[TILE::DF][4], largest[2], total[2];
    int lane, query, column;

    __device__ __forceinline__ wide_warp() {
        const int warp = (int)threadIdx.x / 32;
        lane = (int)threadIdx.x % 32;
        query = warp / TILE::WN * 16;
        column = warp % TILE::WN;
        clear_fragments<TILE::DF>(sums);
        largest[0] = largest[1] = MINUS_INFINITY;
        total[0] = total[1] = 0.0f;
    }

    /* scores = q k^T for the column's keys; -inf for keys from `here` on. */
    __device__ __forceinline__ void score(
        const T *q, const T *k, int d, int here, float (*scores)[4]) const {
        const int pitch = wide_pitch(d), steps = wide_chunks(d) / 2;
        const T *q_line = q + (query + lane % 16) * pitch + lane / 16 * 8;
        const T *k_line = k + (column * TILE::KF * 8 + lane % 8) * pitch + lane / 8 % 2 * 8;
        clear_fragments<TILE::KF>(scores);
        for (int s = 0; s < steps; s++) {
            uint32_t a[4], b[2];
            ldmatrix_x4(a, q_line + s * 16);
#pragma unroll
            for (int j = 0; j < TILE::KF; j++) {
                ldmatrix_x2(b, k_line + j * 8 * pitch + s * 16);
                multiply<T, SM75>(scores[j], a, b);
            }
        }
        const int seen = here - column * TILE::KF * 8;
        hide_keys<TILE::KF>(scores, seen, seen);
    }

    /* Writes the largest score of each query in this column, for the other columns: [BQ] per
     * column. */
    __device__ __forceinline__ void tell(const float (*scores)[4], float *maxima) const {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float m = MINUS_INFINITY;
#pragma unroll
            for (int j = 0; j < TILE::KF; j++)
                m = fmaxf(m, fmaxf(scores[j][2 * r], scores[j][2 * r + 1]));
            m = quad_max(m);
            if (lane % 4 == 0)
                maxima[column * TILE::BQ + query + r * 8 + lane / 4] = m;
        }
    }

    /* Computes the weights [BQ][WEIGHTS_PITCH] of the column's keys and shrinks the sums so far. */
    __device__ __forceinline__ void soften(
        float (*scores)[4], const float *maxima, float c, T *weights) {
        float shrink[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int line = query + r * 8 + lane / 4;
            float now = largest[r], sum = 0.0f;
#pragma unroll
            for (int i = 0; i < TILE::WN; i++)
                now = fmaxf(now, maxima[i * TILE::BQ + line]);
            const float base = safe_max(now);
            shrink[r] = fast_exp2((largest[r] - base) * c);
            uint32_t *to = (uint32_t *)(weights + line * TILE::WEIGHTS_PITCH +
                                        column * TILE::KF * 8 + lane % 4 * 2);
#pragma unroll
            for (int j = 0; j < TILE::KF; j++) {
                const float w0 = fast_exp2((scores[j][2 * r] - base) * c);
                const float w1 = fast_exp2((scores[j][2 * r + 1] - base) * c);
                sum += w0 + w1;
                to[j * 4] = pack_2<T>(w0, w1);
            }
            total[r] = fmaf(total[r], shrink[r], sum);
            largest[r] = now;
        }
        shrink_sums<TILE::DF>(sums, shrink);
    }

    /* sums += weights v, for the column's channels. */
    __device__ __forceinline__ void gather(const T *weights, const T *v, int d) {
        const int pitch = wide_pitch(d), first = column * TILE::CPW;
        const T *line = v + lane % 16 * pitch + first + lane / 16 * 8;
        const T *w = weights + (query + lane % 16) * TILE::WEIGHTS_PITCH + lane / 16 * 8;
#pragma unroll
        for (int t = 0; t < TILE::BK / 16; t++) {
            uint32_t a[4], b[4];
            ldmatrix_x4(a, w + t * 16);
#pragma unroll
            for (int j = 0; j < TILE::DF; j += 2)
                if (first + j * 8 < d) {
                    ldmatrix_x4_trans(b, line + t * 16 * pitch + j * 8);
                    multiply<T, SM75>(sums[j], a, b);
                    multiply<T, SM75>(sums[j + 1], a, b + 2);
                }
        }
    }

    /* y = sums / total, where total is the sum of all columns' totals. */
    __device__ __forceinline__ void finish(float *totals, T *y, int64_t step, int queries, int d) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const float sum = quad_sum(total[r]);
            if (lane % 4 == 0)
                totals[column * TILE::BQ + query + r * 8 + lane / 4] = sum;
        }
        __syncthreads();
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int line = query + r * 8 + lane / 4, first = column * TILE::CPW + lane % 4 * 2;
            float all = 0.0f;
#pragma unroll
            for (int i = 0; i < TILE::WN; i++)
                all += totals[i * TILE::BQ + line];
            if (line >= queries)
                continue;
#pragma unroll
            for (int j = 0; j < TILE::DF; j++)
                if (first + j * 8 < d)
                    *(uint32_t *)(y + line * step + first + j * 8) = pack_2<T>(
                        sums[j][2 * r] / all, sums[j][2 * r + 1] / all);
        }
    }
};

/* Grid: x tiles of queries, y heads, z rows. */
template <class T, class TILE, bool SM75>
__global__ void __launch_bounds__(TILE::THREADS) attention_wide(const struct attention a) {
    if (SM75 && !SM75_CODE)
        return;
    DYNAMIC_SHARED(T, q);
    const int pitch = wide_pitch(a.d);
    T *const keys = q + TILE::BQ * pitch, *const values = keys + TILE::BK * pitch;
    T *const weights = values + TILE::BK * pitch;
    float *const maxima = (float *)(weights + TILE::BQ * TILE::WEIGHTS_PITCH);
    const int first = (int)blockIdx.x * TILE::BQ;
    const int64_t row = blockIdx.z, channel = (int64_t)blockIdx.y * a.d;
    const int64_t y_step = (int64_t)a.heads * a.d;
    const T *k = (const T *)a.k + row * a.tk * a.k_step + channel;
    const T *v = (const T *)a.v + row * a.tk * a.v_step + channel;
    const float c = a.scale * 1.4426950408889634f; /* log2 e */
    wide_warp<T, TILE, SM75> w;
    griddepcontrol_wait();
    const int tk = keys_of(a, (int)row);
    if (tk == 0)
        return;
    load_lines<T, TILE>(
        q, TILE::BQ, (const T *)a.q + row * a.tq * a.q_step + channel, a.q_step, first, a.tq, a.d);
    load_lines<T, TILE>(keys, TILE::BK, k, a.k_step, 0, tk, a.d);
    cp_async_commit();
    for (int block = 0; block * TILE::BK < tk; block++) {
        float scores[TILE::KF][4];
        cp_async_wait<0>();
        __syncthreads(); /* all threads see these keys and no longer read the last values */
        load_lines<T, TILE>(values, TILE::BK, v, a.v_step, block * TILE::BK, tk, a.d);
        cp_async_commit();
        w.score(q, keys, a.d, tk - block * TILE::BK, scores);
        w.tell(scores, maxima);
        __syncthreads();
        w.soften(scores, maxima, c, weights);
        cp_async_wait<0>();
        __syncthreads(); /* all see values and weights and no longer read these keys */
        if ((block + 1) * TILE::BK < tk)
            load_lines<T, TILE>(keys, TILE::BK, k, a.k_step, (block + 1) * TILE::BK, tk, a.d);
        cp_async_commit();
        w.gather(weights, values, a.d);
    }
    w.finish(maxima, (T *)a.y + (row * a.tq + first) * y_step + channel, y_step, a.tq - first, a.d);
    griddepcontrol_launch();
}

/* Fields: warps of queries, columns, channels per column, keys per block, and whether heads of that
 * many channels fit in sm_75's 64 KiB. Of the tiles that fit a head, the one that is expected to be
 * fastest comes first. */
#define TILES(X)                                                                                   \
    X(4, 1, 64, 64, true)                                                                          \
    X(4, 1, 128, 64, true)                                                                         \
    X(2, 2, 128, 32, true)                                                                         \
    X(2, 2, 256, 64, false)                                                                        \
    X(2, 2, 256, 32, false)                                                                        \
    X(1, 2, 256, 32, false)

struct wide_entry {
    struct attention_kernels kernels;
    size_t (*bytes)(int d);
};

#define TILE_OF(wm, wn, channels, keys) wide_tile<wm, wn, channels, keys>
#define TILE(wm, wn, channels, keys, sm75)                                                         \
    { #wm "x16 by " #keys " in " #wn "x" #channels, TILE_OF(wm, wn, channels, keys)::MOST,         \
        16 * wm, keys, 32 * wm * wn, sm75, false, 0 },
static const struct attention_tile tiles[] = { TILES(TILE) };

template <class TILE, bool SM75> struct maybe { static constexpr attention_kernel kernel = NULL; };
template <class TILE> struct maybe<TILE, true> {
    static constexpr attention_kernel kernel = attention_wide<__half, TILE, true>;
};

#define ENTRY(wm, wn, channels, keys, sm75)                                                        \
    { { attention_wide<__half, TILE_OF(wm, wn, channels, keys), false>,                            \
          attention_wide<__nv_bfloat16, TILE_OF(wm, wn, channels, keys), false>,                   \
          maybe<TILE_OF(wm, wn, channels, keys), sm75>::kernel },                                  \
        wide_bytes<TILE_OF(wm, wn, channels, keys)> },
static const struct wide_entry entries[] = { TILES(ENTRY) };

extern "C" const struct attention_tile *attention_wide_tiles(int *count) {
    *count = (int)(sizeof(tiles) / sizeof(tiles[0]));
    return tiles;
}

extern "C" size_t attention_wide_shared_bytes(int tile, int d) {
    return entries[tile].bytes(d);
}

extern "C" bool attention_wide_run(const struct attention_candidate *candidate,
    const struct attention *a, enum dtype dtype, struct error *err) {
    const struct attention_tile *tile = &tiles[candidate->tile];
    const struct wide_entry *entry = &entries[candidate->tile];
    return launch(attention_kernel_for(&entry->kernels, dtype),
        attention_grid(a, attention_query_tiles(a, tile)), tile->threads, entry->bytes(a->d),
        "attention_wide", err, *a);
}
