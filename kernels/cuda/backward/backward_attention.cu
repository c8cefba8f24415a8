/* The backward of attention, in f32. With p = softmax(scale q k^T + mask) and, for each query i,
 * mean[i] = sum over j of p[i][j] (dy[i] . v[j]):
 *   ds[i][j] = scale p[i][j] (dy[i] . v[j] - mean[i]);
 *   dq[i] = sum over j of ds[i][j] k[j];  dk[j] = sum over i of ds[i][j] q[i];
 *   dv[j] = sum over i of p[i][j] dy[i].
 *
 * Work is divided into tiles of SIDE queries by SIDE keys, one pair per thread. A block of the
 * first kernel has SIDE queries and walks over the keys twice: first for the denominator of p and
 * the mean, which it writes to the workspace, then for dq. A block of the second kernel has SIDE
 * keys and walks over the queries, for dk and dv.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#include <math.h>

#define SIDE 16
#define THREADS (SIDE * SIDE)
#define PAIRS (SIDE * (SIDE + 1)) /* floats of a tile, in lines that start in different banks */

struct query {
    float log_total, mean; /* p[j] = exp(score[j] - log_total) */
};

struct attention {
    const void *q, *k, *v, *dy; /* at channel 0 of head 0 */
    void *dq, *dk, *dv;         /* like q, k and v; dk and dv may be NULL */
    const int *lengths;         /* or NULL */
    struct query *queries;      /* [rows][heads][tq] */
    int tq, tk, heads, d;
    int step_q, step_k, step_v, step_dy; /* elements from one token to the next */
    float scale;
    bool causal, accumulate;
};

/* The part of the work that a block does: [row][head][SIDE tokens]. */
struct place {
    int64_t row;
    int head, first, length; /* length: the row's keys */
};

__device__ __forceinline__ struct place place_of(const struct attention &a, int tokens) {
    const int groups = (tokens + SIDE - 1) / SIDE;
    struct place p;
    p.first = (int)(blockIdx.x % groups) * SIDE;
    p.head = (int)(blockIdx.x / groups % a.heads);
    p.row = blockIdx.x / groups / a.heads;
    p.length = a.lengths ? a.lengths[p.row] : a.tk;
    return p;
}

/* The memory of a block: lines of d + 1 floats. */
struct tiles {
    float *q, *dy, *k, *v, *weights, *slopes; /* weights, slopes: [query][SIDE + 1] */
};

__device__ __forceinline__ struct tiles tiles_of(float *shared, int d) {
    const int size = SIDE * (d + 1);
    struct tiles t = { shared, shared + size, shared + 2 * size, shared + 3 * size,
        shared + 4 * size, shared + 4 * size + PAIRS };
    return t;
}

static size_t shared_bytes(int d) {
    return (size_t)(4 * SIDE * (d + 1) + 2 * PAIRS) * sizeof(float);
}

/* to[SIDE][d + 1] = tokens first .. of one head; zeros for tokens from `end` on, which are not
 * read. */
template <class T>
__device__ __forceinline__ void load(const void *from, int64_t row, int tokens, int step, int head,
    int first, int end, int d, float *to) {
    const T *at = (const T *)from + row * tokens * step + head * d;
    for (int e = (int)threadIdx.x; e < SIDE * d; e += THREADS) {
        const int token = e / d, c = e % d;
        to[token * (d + 1) + c] = first + token < end
                                      ? to_float(at[(int64_t)(first + token) * step + c])
                                      : 0.0f;
    }
}

__device__ __forceinline__ float dot(const float *a, const float *b, int d) {
    float sum = 0.0f;
    for (int c = 0; c < d; c++)
        sum = fmaf(a[c], b[c], sum);
    return sum;
}

/* Returns the score of this thread's pair. *slope = dy . v. */
__device__ __forceinline__ float score_of(
    const struct attention &a, const struct tiles &t, float *slope) {
    const int i = (int)threadIdx.x / SIDE * (a.d + 1), j = (int)threadIdx.x % SIDE * (a.d + 1);
    *slope = dot(t.dy + i, t.v + j, a.d);
    return a.scale * dot(t.q + i, t.k + j, a.d);
}

template <class T> __device__ __forceinline__ void put(T *at, float x, bool accumulate) {
    *at = from_float<T>(accumulate ? to_float(*at) + x : x);
}

/* Computes `queries` and dq. PER: elements of the SIDE x d outputs that one thread sums. */
template <class T, int PER>
__global__ void __launch_bounds__(THREADS, 2) queries(const struct attention a) {
    DYNAMIC_SHARED(float, shared);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const struct tiles t = tiles_of(shared, a.d);
    const struct place at = place_of(a, a.tq);
    const int thread = (int)threadIdx.x, i = thread / SIDE, j = thread % SIDE;
    const int mine = a.causal ? min(at.first + i + 1, at.length) : at.length;
    const int end = a.causal ? min(at.first + SIDE, at.length) : at.length;
    struct query *kept = a.queries + (at.row * a.heads + at.head) * a.tq + at.first;
    load<T>(a.q, at.row, a.tq, a.step_q, at.head, at.first, a.tq, a.d, t.q);
    load<T>(a.dy, at.row, a.tq, a.step_dy, at.head, at.first, a.tq, a.d, t.dy);
    /* For query `thread`, if `thread` < SIDE: its largest score so far, and sums relative to that
     * score. */
    float largest = -INFINITY, total = 0.0f, mean = 0.0f, slope;
    for (int first = 0; first < end; first += SIDE) {
        load<T>(a.k, at.row, a.tk, a.step_k, at.head, first, at.length, a.d, t.k);
        load<T>(a.v, at.row, a.tk, a.step_v, at.head, first, at.length, a.d, t.v);
        __syncthreads();
        t.weights[i * (SIDE + 1) + j] = score_of(a, t, &slope);
        t.slopes[i * (SIDE + 1) + j] = slope;
        __syncthreads();
        if (thread < SIDE) {
            const int seen = a.causal ? min(at.first + thread + 1, at.length) : at.length;
            for (int l = 0; l < SIDE && first + l < seen; l++) {
                const float score = t.weights[thread * (SIDE + 1) + l];
                const float more = fmaxf(largest, score);
                const float before = largest == more ? 1.0f : expf(largest - more);
                const float weight = expf(score - more);
                total = fmaf(total, before, weight);
                mean = fmaf(weight, t.slopes[thread * (SIDE + 1) + l], mean * before);
                largest = more;
            }
        }
        __syncthreads();
    }
    if (thread < SIDE && at.first + thread < a.tq) {
        const struct query found = { largest + logf(total), mean / total };
        kept[thread] = found;
    }
    __syncthreads();
    const struct query own = at.first + i < a.tq ? kept[i] : query{ 0.0f, 0.0f };
    float sums[PER] = {};
    for (int first = 0; first < end; first += SIDE) {
        load<T>(a.k, at.row, a.tk, a.step_k, at.head, first, at.length, a.d, t.k);
        load<T>(a.v, at.row, a.tk, a.step_v, at.head, first, at.length, a.d, t.v);
        __syncthreads();
        const float score = score_of(a, t, &slope);
        t.slopes[i * (SIDE + 1) + j] =
            first + j < mine ? a.scale * expf(score - own.log_total) * (slope - own.mean) : 0.0f;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int e = thread + THREADS * p;
            for (int l = 0; e < SIDE * a.d && l < SIDE && first + l < at.length; l++)
                sums[p] = fmaf(
                    t.slopes[e / a.d * (SIDE + 1) + l], t.k[l * (a.d + 1) + e % a.d], sums[p]);
        }
        __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < PER; p++) {
        const int e = thread + THREADS * p, token = at.first + e / a.d;
        if (e < SIDE * a.d && token < a.tq)
            put((T *)a.dq + (at.row * a.tq + token) * a.step_q + at.head * a.d + e % a.d, sums[p],
                a.accumulate);
    }
}

template <class T, int PER>
__global__ void __launch_bounds__(THREADS) keys(const struct attention a) {
    DYNAMIC_SHARED(float, shared);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const struct tiles t = tiles_of(shared, a.d);
    const struct place at = place_of(a, a.tk);
    const int thread = (int)threadIdx.x, i = thread / SIDE, j = thread % SIDE;
    const struct query *kept = a.queries + (at.row * a.heads + at.head) * a.tq;
    float dk[PER] = {}, dv[PER] = {};
    load<T>(a.k, at.row, a.tk, a.step_k, at.head, at.first, at.length, a.d, t.k);
    load<T>(a.v, at.row, a.tk, a.step_v, at.head, at.first, at.length, a.d, t.v);
    /* With a causal mask, no query before a key sees that key. Keys beyond the row's length are
     * seen by no query. */
    const int end = at.first < at.length ? a.tq : 0;
    for (int first = a.causal ? at.first : 0; first < end; first += SIDE) {
        load<T>(a.q, at.row, a.tq, a.step_q, at.head, first, a.tq, a.d, t.q);
        load<T>(a.dy, at.row, a.tq, a.step_dy, at.head, first, a.tq, a.d, t.dy);
        __syncthreads();
        float weight = 0.0f, ds = 0.0f, slope;
        const float score = score_of(a, t, &slope);
        const int query = first + i, key = at.first + j;
        if (query < a.tq && key < at.length && (!a.causal || key <= query)) {
            weight = expf(score - kept[query].log_total);
            ds = a.scale * weight * (slope - kept[query].mean);
        }
        t.weights[i * (SIDE + 1) + j] = weight;
        t.slopes[i * (SIDE + 1) + j] = ds;
        __syncthreads();
#pragma unroll
        for (int p = 0; p < PER; p++) {
            const int e = thread + THREADS * p;
            for (int l = 0; e < SIDE * a.d && l < SIDE; l++) {
                const int pair = l * (SIDE + 1) + e / a.d, x = l * (a.d + 1) + e % a.d;
                dk[p] = fmaf(t.slopes[pair], t.q[x], dk[p]);
                dv[p] = fmaf(t.weights[pair], t.dy[x], dv[p]);
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int p = 0; p < PER; p++) {
        const int e = thread + THREADS * p, token = at.first + e / a.d;
        if (e >= SIDE * a.d || token >= (a.accumulate ? at.length : a.tk))
            continue;
        const int64_t row = at.row * a.tk + token;
        put((T *)a.dk + row * a.step_k + at.head * a.d + e % a.d, dk[p], a.accumulate);
        put((T *)a.dv + row * a.step_v + at.head * a.d + e % a.d, dv[p], a.accumulate);
    }
}

template <class T, int PER>
static bool run_kernels(const struct attention *a, int64_t rows, struct error *err) {
    const char *name = "attention_backward";
    const int64_t heads = rows * a->heads;
    const unsigned q_blocks = (unsigned)(heads * ((a->tq + SIDE - 1) / SIDE));
    const unsigned k_blocks = (unsigned)(heads * ((a->tk + SIDE - 1) / SIDE));
    return launch(queries<T, PER>, dim3(q_blocks), THREADS, shared_bytes(a->d), name, err, *a) &&
           (!a->dk ||
               launch(keys<T, PER>, dim3(k_blocks), THREADS, shared_bytes(a->d), name, err, *a));
}

template <class T> static bool run(const struct attention *a, int64_t rows, struct error *err) {
    return a->d <= 64    ? run_kernels<T, 4>(a, rows, err)
           : a->d <= 160 ? run_kernels<T, 10>(a, rows, err)
                         : run_kernels<T, 32>(a, rows, err);
}

static void *part(const struct tensor *t, int64_t offset) {
    return t ? (char *)t->data + (size_t)offset * dtype_size(t->dtype) : NULL;
}

extern "C" bool cuda_attention_backward(
    const struct attention_backward_args *args, struct error *err) {
    const int64_t rows = args->dy->shape[0];
    struct attention a = {};
    a.q = part(args->q, args->q_offset);
    a.k = part(args->k, args->k_offset);
    a.v = part(args->v, args->v_offset);
    a.dy = args->dy->data;
    a.dq = part(args->dq, args->q_offset);
    a.dk = part(args->dk, args->k_offset);
    a.dv = part(args->dv, args->v_offset);
    a.lengths = args->lengths ? (const int *)args->lengths->data : NULL;
    a.tq = (int)args->q->shape[1];
    a.tk = (int)args->k->shape[1];
    a.heads = args->heads;
    a.d = args->head_dim;
    a.step_q = (int)args->q->shape[2];
    a.step_k = (int)args->k->shape[2];
    a.step_v = (int)args->v->shape[2];
    a.step_dy = a.heads * a.d;
    a.scale = args->scale;
    a.causal = args->causal;
    a.accumulate = args->accumulate;
    a.queries = (struct query *)cuda_workspace(
        (size_t)(rows * a.heads * a.tq) * sizeof(*a.queries));
    if (!a.queries || a.d > 512 ||
        shared_bytes(a.d) > cuda_get_properties()->shared_bytes_per_block)
        return error_set(err, ERROR_UNSUPPORTED,
            "%lld rows of %d queries, %d heads of %d, are more than this device takes at once",
            (long long)rows, a.tq, a.heads, a.d);
    return CALL_FOR_DTYPE(args->dy->dtype, run, &a, rows, err);
}
