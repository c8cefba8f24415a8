/* group_norm, NHWC, with SiLU: y = silu(gamma (x - mean) / sqrt(var + eps) + beta).
 *
 * Two ways. Where one group of one row fits a block's shared memory (all of the UNet up to 64 x 64
 * x 640 in 16 bits), a block reads it once, finds its moments there and writes it: one launch, one
 * read. Elsewhere a first kernel leaves the moments of pieces of the image (some 32,768 elements: a
 * function of the row's shape) in the workspace; every block of the second merges them in order and
 * normalises its piece.
 *
 * Both move words of up to 16 bytes that lie within one group: 10 channels in 16 bits are five
 * words of 4 bytes. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/norm_candidates.h"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/selections.cuh"

#include <stdio.h>
#include <string.h>

#define THREADS 512
#define PIECE_ELEMENTS 32768
#define MAX_PIECES 256

struct group_norm {
    const void *x;
    const float *gamma, *beta;
    void *y;
    struct moments *parts;               /* [row][piece][group] */
    int pixels, channels, groups, width; /* width: channels of a group */
    int piece, pieces;                   /* pixels of a piece (the last has fewer), and how many */
    int together;                        /* groups that one block takes */
    float eps;
    bool silu;
};

__device__ __forceinline__ float finish(
    float x, struct moments m, float scale, float gamma, float beta, bool silu) {
    const float y = fmaf(((x - m.shift) - m.mean) * scale, gamma, beta);
    return silu ? y / (1.0f + expf(-y)) : y;
}

/* ---- one block a group ---- */

/* Block x is a group, y a row. x may be y: a block reads all that it will write first, and nobody
 * else touches it. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS) group_norm_shared(const struct group_norm g) {
    DYNAMIC_SHARED(float, shared); /* [32], then the group's T [pixels][width] */
    T *kept = (T *)(shared + 32);
    const int words = g.width / V, all = g.pixels * words;
    const int first_channel = (int)blockIdx.x * g.width;
    const int64_t base = (int64_t)blockIdx.y * g.pixels * g.channels + first_channel;
    const T *x = (const T *)g.x + base;
    T *y = (T *)g.y + base;
    griddepcontrol_wait();
    const float shift = to_float(x[0]);
    float sum = 0.0f;
    for (int i = (int)threadIdx.x; i < all; i += (int)blockDim.x) {
        const int pixel = i / words, at = (i - pixel * words) * V;
        float v[V];
        load_word<T, V>(x + (int64_t)pixel * g.channels + at, v);
        store_word<T, V>(kept + i * V, v);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum += v[j] - shift;
    }
    griddepcontrol_launch();
    /* Nobody writes y before everybody has read x: block_sum waits for all. */
    const float count = (float)g.pixels * (float)g.width;
    struct moments m = { count, shift, block_sum(sum, shared) / count, 0.0f };
    float squares = 0.0f;
    for (int i = (int)threadIdx.x; i < all; i += (int)blockDim.x) {
        float v[V];
        load_word<T, V>(kept + i * V, v);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const float d = (v[j] - shift) - m.mean;
            squares = fmaf(d, d, squares);
        }
    }
    m.squares = block_sum(squares, shared);
    const float scale = moments_scale(m, g.eps);
    for (int i = (int)threadIdx.x; i < all; i += (int)blockDim.x) {
        const int pixel = i / words, at = (i - pixel * words) * V;
        float v[V];
        load_word<T, V>(kept + i * V, v);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[j] = finish(v[j], m, scale, g.gamma[first_channel + at + j],
                g.beta[first_channel + at + j], g.silu);
        store_word<T, V>(y + (int64_t)pixel * g.channels + at, v);
    }
}

/* ---- in pieces ---- */

/* Which words of its piece a thread takes: every `step`th. With several groups in a block the step
 * is a whole number of lines, so that a thread stays in one group. */
struct walk {
    int words, step, active; /* words of a line; active: threads that take part */
};

__device__ __forceinline__ struct walk walk_of(const struct group_norm &g, int groups, int v) {
    struct walk w;
    w.words = groups * g.width / v;
    w.active = groups == 1 ? THREADS : THREADS / w.words * w.words;
    w.step = w.active;
    return w;
}

/* Block x counts [groups by `together`][piece], y rows. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS) group_norm_parts(const struct group_norm g) {
    DYNAMIC_SHARED(struct moments, mine); /* [THREADS] */
    const int piece = (int)blockIdx.x % g.pieces;
    const int first_group = (int)blockIdx.x / g.pieces * g.together;
    const int groups = min(g.together, g.groups - first_group);
    const int first_pixel = piece * g.piece, pixels = min(g.piece, g.pixels - first_pixel);
    const struct walk w = walk_of(g, groups, V);
    const T *x = (const T *)g.x + ((int64_t)blockIdx.y * g.pixels + first_pixel) * g.channels +
                 first_group * g.width;
    const int all = pixels * w.words, thread = (int)threadIdx.x;
    griddepcontrol_wait();
    griddepcontrol_launch();
    struct moments m = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (thread < w.active && thread < all) {
        float sum = 0.0f, squares = 0.0f, shift = 0.0f;
        int taken = 0;
        for (int i = thread; i < all; i += w.step, taken++) {
            const int pixel = i / w.words, at = (i - pixel * w.words) * V;
            float v[V];
            load_word<T, V>(x + (int64_t)pixel * g.channels + at, v);
            if (taken == 0)
                shift = v[0];
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float d = v[j] - shift;
                sum += d;
                squares = fmaf(d, d, squares);
            }
        }
        m = moments_of((float)(taken * V), shift, sum, squares);
    }
    mine[thread] = m;
    __syncthreads();
    /* A warp merges a group: its threads are those whose word of a line lies in it. */
    const int of_group = g.width / V, warp = thread / 32, lane = thread % 32;
    const int lines = w.active / w.words;
    for (int group = warp; group < groups; group += THREADS / 32) {
        struct moments sum = { 0.0f, 0.0f, 0.0f, 0.0f };
        if (groups == 1) {
            for (int i = lane; i < w.active; i += 32)
                sum = moments_merge(sum, mine[i]);
        } else {
            for (int i = lane; i < lines * of_group; i += 32)
                sum = moments_merge(
                    sum, mine[i / of_group * w.words + group * of_group + i % of_group]);
        }
        sum = moments_of_warp(sum);
        if (lane == 0)
            g.parts[((int64_t)blockIdx.y * g.pieces + piece) * g.groups + first_group + group] =
                sum;
    }
}

/* The same grid; x may be y. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, 1) group_norm_apply(const struct group_norm g) {
    DYNAMIC_SHARED(struct moments, whole); /* [together], then the scales */
    float *scales = (float *)(whole + g.together);
    const int piece = (int)blockIdx.x % g.pieces;
    const int first_group = (int)blockIdx.x / g.pieces * g.together;
    const int groups = min(g.together, g.groups - first_group);
    const int first_pixel = piece * g.piece, pixels = min(g.piece, g.pixels - first_pixel);
    const int first_channel = first_group * g.width, words = groups * g.width / V;
    const int64_t base = ((int64_t)blockIdx.y * g.pixels + first_pixel) * g.channels +
                         first_channel;
    const T *x = (const T *)g.x + base;
    T *y = (T *)g.y + base;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int group = warp; group < groups; group += THREADS / 32) {
        const struct moments *parts = g.parts + (int64_t)blockIdx.y * g.pieces * g.groups +
                                      first_group + group;
        struct moments sum = { 0.0f, 0.0f, 0.0f, 0.0f };
        for (int i = lane; i < g.pieces; i += 32)
            sum = moments_merge(sum, parts[(int64_t)i * g.groups]);
        sum = moments_of_warp(sum);
        if (lane == 0) {
            whole[group] = sum;
            scales[group] = moments_scale(sum, g.eps);
        }
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < pixels * words; i += THREADS) {
        const int pixel = i / words, at = (i - pixel * words) * V, group = at / g.width;
        const int64_t element = (int64_t)pixel * g.channels + at;
        const struct moments m = whole[group];
        const float scale = scales[group];
        float v[V];
        load_word<T, V>(x + element, v);
#pragma unroll
        for (int j = 0; j < V; j++)
            v[j] = finish(v[j], m, scale, g.gamma[first_channel + at + j],
                g.beta[first_channel + at + j], g.silu);
        store_word<T, V>(y + element, v);
    }
}

/* ---- the host's side ---- */

static struct selections<struct group_norm_shape, struct group_norm_candidate> selected;

extern "C" struct group_norm_shape group_norm_shape_of(const struct group_norm_args *args) {
    const int64_t *s = args->x->shape;
    struct group_norm_shape shape;
    memset(&shape, 0, sizeof(shape)); /* compared as bytes */
    shape.dtype = args->x->dtype;
    shape.pixels = s[1] * s[2];
    shape.channels = s[3];
    shape.groups = args->groups;
    return shape;
}

static size_t kept_bytes(const struct group_norm_shape *s) {
    return 32 * sizeof(float) +
           (size_t)(s->pixels * (s->channels / s->groups)) * dtype_size(s->dtype);
}

extern "C" int group_norm_candidates(const struct group_norm_shape *shape,
    struct group_norm_candidate out[GROUP_NORM_MAX_CANDIDATES]) {
    int count = 0;
    if (kept_bytes(shape) <= cuda_get_properties()->shared_bytes_per_block)
        out[count++].path = GROUP_NORM_SHARED;
    out[count++].path = GROUP_NORM_PARTS;
    return count;
}

extern "C" const char *group_norm_candidate_name(
    const struct group_norm_candidate *candidate, char *text, size_t size) {
    snprintf(text, size, "%s", candidate->path == GROUP_NORM_SHARED ? "shared" : "parts");
    return text;
}

extern "C" bool group_norm_select(
    const struct group_norm_shape *shape, const struct group_norm_candidate *candidate) {
    return selected.put(shape, candidate);
}

extern "C" void group_norm_select_none(void) {
    selected.clear();
}

/* Elements of the widest word that divides a group and stays aligned. */
static int word_of(const struct group_norm *g, size_t size) {
    const uint64_t bits = (uint64_t)g->width * size | (uint64_t)g->channels * size |
                          (uintptr_t)g->x | (uintptr_t)g->y;
    size_t bytes = 16;
    while (bytes > size && bits % bytes != 0)
        bytes /= 2;
    return (int)(bytes / size);
}

static int64_t divided(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

template <class T, int V>
static bool run(const struct group_norm_candidate *candidate, struct group_norm *g, int64_t rows,
    struct error *err) {
    if (candidate->path == GROUP_NORM_SHARED) {
        const size_t bytes = 32 * sizeof(float) + (size_t)g->pixels * (size_t)g->width * sizeof(T);
        /* Whole warps, and none without work. */
        const int64_t words = (int64_t)g->pixels * (g->width / V);
        const int threads = words < THREADS ? (int)divided(words, 32) * 32 : THREADS;
        return launch(group_norm_shared<T, V>, dim3((unsigned)g->groups, (unsigned)rows), threads,
            bytes, "group_norm", err, *g);
    }
    g->together = THREADS / (g->width / V);
    g->together = g->together < 1 ? 1 : g->together < g->groups ? g->together : g->groups;
    const dim3 grid((unsigned)(divided(g->groups, g->together) * g->pieces), (unsigned)rows);
    return launch(group_norm_parts<T, V>, grid, THREADS, THREADS * sizeof(struct moments),
               "group_norm", err, *g) &&
           launch(group_norm_apply<T, V>, grid, THREADS,
               (size_t)g->together * (sizeof(struct moments) + sizeof(float)), "group_norm", err,
               *g);
}

template <class T>
static bool run_dtype(const struct group_norm_candidate *candidate, struct group_norm *g,
    int64_t rows, struct error *err) {
    constexpr int MOST = 16 / (int)sizeof(T);
    const int word = word_of(g, sizeof(T));
    return word == MOST       ? run<T, MOST>(candidate, g, rows, err)
           : word == MOST / 2 ? run<T, MOST / 2>(candidate, g, rows, err)
           : word == 2        ? run<T, 2>(candidate, g, rows, err)
                              : run<T, 1>(candidate, g, rows, err);
}

extern "C" bool group_norm_with(const struct group_norm_candidate *candidate,
    const struct group_norm_args *args, struct error *err) {
    const int64_t *s = args->x->shape;
    struct group_norm g = {};
    g.x = args->x->data;
    g.y = args->y->data;
    g.gamma = (const float *)args->gamma->data;
    g.beta = (const float *)args->beta->data;
    g.pixels = (int)(s[1] * s[2]);
    g.channels = (int)s[3];
    g.groups = args->groups;
    g.width = g.channels / g.groups;
    g.eps = args->eps;
    g.silu = args->silu;
    const int64_t least = divided(g.pixels, MAX_PIECES), wanted = PIECE_ELEMENTS / g.channels;
    g.piece = (int)(wanted > least ? wanted : least);
    g.pieces = (int)divided(g.pixels, g.piece);
    /* As many rows at a time as the workspace has room for the moments of. */
    const int64_t row_bytes = (int64_t)sizeof(struct moments) * g.pieces * g.groups;
    const int64_t together = CUDA_WORKSPACE_BYTES / row_bytes, rows = s[0];
    g.parts = (struct moments *)cuda_workspace(row_bytes);
    if (!g.parts)
        return error_set(err, ERROR_UNSUPPORTED, "group_norm: %d groups are too many", g.groups);
    const int64_t skip = (int64_t)g.pixels * g.channels * (int64_t)dtype_size(args->x->dtype);
    for (int64_t first = 0; first < rows; first += together) {
        const int64_t here = rows - first < together ? rows - first : together;
        if (!CALL_FOR_DTYPE(args->x->dtype, run_dtype, candidate, &g, here, err))
            return false;
        g.x = (const char *)g.x + here * skip;
        g.y = (char *)g.y + here * skip;
    }
    return true;
}

extern "C" bool cuda_group_norm(const struct group_norm_args *args, struct error *err) {
    const struct group_norm_shape shape = group_norm_shape_of(args);
    const struct group_norm_candidate *candidate = selected.find(&shape, &tunable_group_norm);
    if (candidate)
        return group_norm_with(candidate, args, err);
    struct group_norm_candidate candidates[GROUP_NORM_MAX_CANDIDATES];
    group_norm_candidates(&shape, candidates);
    return group_norm_with(&candidates[0], args, err);
}
