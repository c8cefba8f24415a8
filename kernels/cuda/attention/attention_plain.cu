/* attention in f32 multiply-adds: for f32, for causal masks (the text encoder's 77 tokens, where a
 * product with a masked value must not even be computed: 0 * inf), and for everything that the
 * kernels on tensor cores do not support. Supports every head size, stride and alignment.
 *
 * A block computes 32 queries, four per warp, and goes through the keys 32 at a time. Lane j
 * computes the scores of key j; then it adds to output channels j, j + 32, ... of the warp's
 * queries. Channels pass through shared memory 64 at a time, so that its size does not depend on
 * the head size. Heads with more than 512 channels are cut into slices of 512 output channels; each
 * slice has its own blocks, which compute the scores again.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/reduce.cuh"

#define WARPS 8
#define THREADS (32 * WARPS)
#define QUERIES 4 /* of a warp */
#define BLOCK_QUERIES (WARPS * QUERIES)
#define KEYS 32
#define CHUNK 64
#define PITCH (CHUNK + 1) /* lane j reads line j: no bank conflicts */

struct plain_shared {
    float q[BLOCK_QUERIES][CHUNK];
    float line[KEYS][PITCH]; /* first of keys, then of values */
    float4 weights[WARPS][KEYS];
};

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* to[lines][pitch] = channels first .. first + CHUNK of `there` tokens; zeros after the last token
 * and the last channel. */
template <class T>
__device__ __forceinline__ void load_chunk(float *to, int lines, int pitch, const T *from,
    int64_t step, int there, int first, int channels) {
    for (int i = (int)threadIdx.x; i < lines * CHUNK; i += THREADS) {
        const int line = i / CHUNK, c = i % CHUNK;
        to[line * pitch + c] = line < there && first + c < channels
                                   ? to_float(from[line * step + first + c])
                                   : 0.0f;
    }
}

/* scores[i] += q[query i of the warp] . k[lane] over one chunk. */
__device__ __forceinline__ void score_chunk(
    const struct plain_shared *s, int warp, int lane, float *scores) {
#pragma unroll 4
    for (int c = 0; c < CHUNK; c += 4) {
        const float *k = &s->line[lane][c];
        const float k0 = k[0], k1 = k[1], k2 = k[2], k3 = k[3];
#pragma unroll
        for (int i = 0; i < QUERIES; i++) {
            const float4 q = *(const float4 *)&s->q[warp * QUERIES + i][c];
            scores[i] = fmaf(q.x, k0, scores[i]);
            scores[i] = fmaf(q.y, k1, scores[i]);
            scores[i] = fmaf(q.z, k2, scores[i]);
            scores[i] = fmaf(q.w, k3, scores[i]);
        }
    }
}

/* Grid: x tiles of queries, y heads * slices, z rows. CHUNKS: chunks per slice of the output
 * channels. */
template <class T, int CHUNKS>
__global__ void __launch_bounds__(THREADS, 1)
    attention_plain(const struct attention a, int slices) {
    DYNAMIC_SHARED(struct plain_shared, s);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int head = (int)blockIdx.y / slices, slice = (int)blockIdx.y % slices;
    const int first_query = (int)blockIdx.x * BLOCK_QUERIES;
    const int mine = first_query + warp * QUERIES;
    const T *q = (const T *)a.q + ((int64_t)blockIdx.z * a.tq + first_query) * a.q_step +
                 (int64_t)head * a.d;
    const T *k = (const T *)a.k + (int64_t)blockIdx.z * a.tk * a.k_step + (int64_t)head * a.d;
    const T *v = (const T *)a.v + (int64_t)blockIdx.z * a.tk * a.v_step + (int64_t)head * a.d;
    const int queries = min(BLOCK_QUERIES, a.tq - first_query);
    const int chunks = (a.d + CHUNK - 1) / CHUNK, first_out = slice * CHUNKS * CHUNK;
    float sums[QUERIES][2 * CHUNKS] = {}, largest[QUERIES], total[QUERIES];
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        largest[i] = MINUS_INFINITY;
        total[i] = 0.0f;
    }
    griddepcontrol_wait();
    griddepcontrol_launch();
    int keys = keys_of(a, (int)blockIdx.z);
    if (keys == 0)
        return;
    /* Causal: no query of this block sees a key after the block's last query. */
    if (a.causal)
        keys = min(keys, first_query + queries);
    for (int first = 0; first < keys; first += KEYS) {
        const int here = min(KEYS, keys - first);
        float scores[QUERIES] = {}, weights[QUERIES];
        int visible[QUERIES];
        for (int c = 0; c < chunks; c++) {
            __syncthreads(); /* no thread reads the old contents any more */
            if (chunks > 1 || first == 0)
                load_chunk(&s->q[0][0], BLOCK_QUERIES, CHUNK, q, a.q_step, queries, c * CHUNK, a.d);
            load_chunk(&s->line[0][0], KEYS, PITCH, k + (int64_t)first * a.k_step, a.k_step, here,
                c * CHUNK, a.d);
            __syncthreads();
            score_chunk(s, warp, lane, scores);
        }
#pragma unroll
        for (int i = 0; i < QUERIES; i++) {
            visible[i] = a.causal ? min(here, mine + i + 1 - first) : here;
            const float score = lane < visible[i] ? scores[i] * a.scale : MINUS_INFINITY;
            const float now = fmaxf(largest[i], warp_max(score));
            /* If all scores so far are -inf, any finite number can be the base. */
            const float base = now == MINUS_INFINITY ? 0.0f : now;
            const float shrink = expf(largest[i] - base);
            weights[i] = lane < visible[i] ? expf(score - base) : 0.0f;
            total[i] = total[i] * shrink + warp_sum(weights[i]);
            largest[i] = now;
#pragma unroll
            for (int c = 0; c < 2 * CHUNKS; c++)
                sums[i][c] *= shrink;
        }
        s->weights[warp][lane] = make_float4(weights[0], weights[1], weights[2], weights[3]);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            __syncthreads();
            load_chunk(&s->line[0][0], KEYS, PITCH, v + (int64_t)first * a.v_step, a.v_step, here,
                first_out + c * CHUNK, a.d);
            __syncthreads();
            for (int j = 0; j < here; j++) {
                const float4 w = s->weights[warp][j];
                const float v0 = s->line[j][lane], v1 = s->line[j][lane + 32];
                const float by_query[QUERIES] = { w.x, w.y, w.z, w.w };
#pragma unroll
                for (int i = 0; i < QUERIES; i++)
                    if (j < visible[i]) {
                        sums[i][2 * c] = fmaf(by_query[i], v0, sums[i][2 * c]);
                        sums[i][2 * c + 1] = fmaf(by_query[i], v1, sums[i][2 * c + 1]);
                    }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < QUERIES; i++) {
        if (mine + i >= a.tq)
            continue;
        T *y = (T *)a.y + ((int64_t)blockIdx.z * a.tq + mine + i) * a.heads * a.d +
               (int64_t)head * a.d;
#pragma unroll
        for (int c = 0; c < 2 * CHUNKS; c++) {
            const int at = first_out + c * 32 + lane;
            if (at < a.d)
                y[at] = from_float<T>(sums[i][c] / total[i]);
        }
    }
}

template <class T> static bool run(const struct attention *a, struct error *err) {
    void (*kernel)(const struct attention, int) = a->d <= 64    ? attention_plain<T, 1>
                                                  : a->d <= 128 ? attention_plain<T, 2>
                                                  : a->d <= 192 ? attention_plain<T, 3>
                                                  : a->d <= 256 ? attention_plain<T, 4>
                                                                : attention_plain<T, 8>;
    const int slices = (a->d + 511) / 512;
    const dim3 grid((unsigned)((a->tq + BLOCK_QUERIES - 1) / BLOCK_QUERIES),
        (unsigned)(a->heads * slices), (unsigned)a->rows);
    return launch(
        kernel, grid, THREADS, sizeof(struct plain_shared), "attention_plain", err, *a, slices);
}

extern "C" bool attention_plain_run(
    const struct attention *a, enum dtype dtype, struct error *err) {
    return CALL_FOR_DTYPE(dtype, run, a, err);
}
