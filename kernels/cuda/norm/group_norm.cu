/* group_norm, NHWC, with SiLU: y = silu(gamma (x - mean) / sqrt(var + eps) + beta).
 *
 * There are two ways here. If one group of one row fits the shared memory of a block, or of a
 * cluster of CLUSTER blocks, one kernel does everything: the block or cluster reads the group once,
 * computes its moments and writes the result. Otherwise there are two kernels. The first writes the
 * moments of pieces of the image to the workspace. A piece has some 32,768 elements; its size
 * depends on the row's shape only. Every block of the second kernel merges all moments in order and
 * normalises its piece.
 *
 * x may be two tensors, one after the other along the channels (the skip connections). Each word
 * comes from one of them. The first thread that reads a word also writes it to `joined`, which
 * receives both tensors side by side.
 *
 * A third way reads whole pixels: group_norm_lines.cu. Both ways here move words of up to 16 bytes
 * that lie within one group: 10 channels in 16 bits are five words of 4 bytes. A line is the part
 * of a pixel's channels that a block takes. A thread has the same word of each of its lines, so it
 * keeps that word's scales and shifts in registers. It loads the words of several lines at a time.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/norm/group_norm.cuh"
#include "kernels/cuda/norm/norm_candidates.h"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx_hopper.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/tune/selections.cuh"

#include <stdio.h>
#include <string.h>
#include <type_traits>

#define THREADS 512
#define CLUSTER 4
#define PIECE_ELEMENTS 32768
#define MAX_PIECES 256
/* From this many pixels per row on, GROUP_NORM_LINES is the static choice. On an H100 it was
 * fastest for such sizes; for smaller ones, one block per group was. */
#define LINES_PIXELS 4096

/* ---- words ---- */

/* The words of a line that a thread takes: word `word` and, if a line has more words than a block
 * has threads, every `columns`th word after it. It takes them from every `lines`th line, from line
 * `line` on. */
struct walk {
    int words, columns, lines, word, line;
};

__device__ __forceinline__ struct walk walk_of(int words) {
    struct walk w;
    w.words = words;
    w.columns = min(words, (int)blockDim.x);
    w.lines = (int)blockDim.x / w.columns;
    w.word = (int)threadIdx.x % w.columns;
    w.line = (int)threadIdx.x / w.columns; /* w.lines or more: this thread has no work */
    return w;
}

/* Calls each(line, word) for every line of this thread below `end`. `from` points at the thread's
 * word in line 0; lines are `apart` elements apart. Each turn loads the words of LOADS lines, calls
 * loaded_all(), and only then uses the words. In the last turn, loads beyond `end` read the last
 * line again, and their words are not used. */
template <class T, int V, int LOADS, class LOADED, class EACH>
__device__ __forceinline__ void each_line(
    const T *from, int apart, struct walk w, int end, LOADED loaded_all, EACH each) {
    typedef decltype(word<T, V>::whole) whole;
    union word<T, V> loaded[LOADS];
    int i = w.line < w.lines ? w.line : end;
    for (; i + (LOADS - 1) * w.lines < end; i += LOADS * w.lines) {
#pragma unroll
        for (int j = 0; j < LOADS; j++)
            loaded[j].whole = *(const whole *)(from + (int64_t)(i + j * w.lines) * apart);
        loaded_all();
#pragma unroll
        for (int j = 0; j < LOADS; j++)
            each(i + j * w.lines, loaded[j]);
    }
    if (i >= end)
        return;
#pragma unroll
    for (int j = 0; j < LOADS - 1; j++)
        loaded[j].whole = *(const whole *)(from + (int64_t)min(i + j * w.lines, end - 1) * apart);
    loaded_all();
#pragma unroll
    for (int j = 0; j < LOADS - 1; j++)
        if (i + j * w.lines < end)
            each(i + j * w.lines, loaded[j]);
}

template <class T, int V, class EACH>
__device__ __forceinline__ void each_line(
    const T *from, int apart, struct walk w, int end, EACH each) {
    each_line<T, V, V * sizeof(T) == 16 ? 4 : 8>(
        from, apart, w, end, [] {}, each);
}

/* Returns x, but makes the compiler assume that the value has changed. Whatever depends on the
 * result is therefore computed after this call. */
template <class T> __device__ __forceinline__ T computed_here(T x) {
#ifdef __CUDACC__
    if constexpr (sizeof(T) == 4)
        asm volatile("" : "+f"(x));
    else
        asm volatile("" : "+h"(*(unsigned short *)&x));
#endif
    return x;
}

template <class T, int V> __device__ __forceinline__ void put_word(T *to, union word<T, V> v) {
    *(decltype(v.whole) *)to = v.whole;
}

/* The last step for V channels: y = fma(x - shift, scale gamma, beta - mean scale gamma), and SiLU.
 * For f32, which serves for comparisons, the mean is subtracted from x - shift instead, because in
 * the offset it would be rounded together with beta. */
template <class T, int V> struct ending {
    static constexpr bool EXACT = sizeof(T) == 4;
    float shift, mean, factor[V], offset[V];

    __device__ __forceinline__ ending(
        struct moments m, float scale, const float *gamma, const float *beta)
        : shift(m.shift), mean(m.mean) {
#pragma unroll
        for (int j = 0; j < V; j++) {
            factor[j] = scale * gamma[j];
            offset[j] = EXACT ? beta[j] : fmaf(-mean, factor[j], beta[j]);
        }
    }

    template <bool SILU> __device__ __forceinline__ void write(union word<T, V> x, T *y) const {
        float v[V];
        word_to_float(x, v);
#pragma unroll
        for (int j = 0; j < V; j++) {
            v[j] = fmaf(EXACT ? (v[j] - shift) - mean : v[j] - shift, factor[j], offset[j]);
            if constexpr (SILU && EXACT)
                v[j] = activate(v[j], ACTIVATION_SILU);
            else if constexpr (SILU && V == 1)
                v[j] = quick_silu(v[j]);
        }
        if constexpr (SILU && !EXACT && V > 1)
#pragma unroll
            for (int j = 0; j < V; j += 2)
                quick_silu_2(v + j);
        store_word<T, V>(y, v);
    }
};

/* ---- a block, or a cluster of blocks, for each group ---- */

/* Copies this thread's words from `kept` to `joined`, which holds the channels of both sources.
 * This is a separate loop that is not unrolled, so that the code stays short. */
template <class T, int V>
__device__ __forceinline__ void join(
    const T *kept, struct walk w, int pixels, T *joined, int channels) {
#pragma unroll 1
    for (int at = w.word; at < w.words && w.line < w.lines; at += w.columns)
#pragma unroll 1
        for (int i = w.line; i < pixels; i += w.lines)
            put_word<T, V>(joined + (int64_t)i * channels + at * V,
                *(const union word<T, V> *)(kept + (i * w.words + at) * V));
}

/* Reads the moments from another block of the cluster, at the same place as `own`. */
__device__ __forceinline__ struct moments cluster_moments(
    const struct moments *own, unsigned rank) {
    const float4 m = cluster_read((const float4 *)own, rank);
    return { m.x, m.y, m.z, m.w };
}

/* Block x / BLOCKS is a group, x % BLOCKS its part of the pixels, y a row. x may be y, because a
 * block reads everything that it will write before it writes, and no other block touches it. */
template <class T, int V, int BLOCKS, bool SILU>
__global__ void __launch_bounds__(THREADS, V * sizeof(T) > 4 ? 1 : 2)
    group_norm_shared(const struct group_norm g) {
    if (BLOCKS > 1 && !CLUSTER_CODE)
        return;
    /* Whether the squared deviations are summed in a pass of their own. If they are summed in the
     * same pass as the values, they lose precision when the mean is far from shift. For 40,960
     * values, the relative error of the variance is then 5e-6 at a distance of five deviations and
     * 0.002 at a hundred. In bf16 such errors do not show, so bf16 takes one pass. */
    constexpr bool TWO_PASSES = !std::is_same_v<T, __nv_bfloat16>;
    /* With 11 loads, one turn is enough for SD-1.5's 64x64 pixels: each of four blocks has 1,024
     * lines, and its threads take 102 lines at a time. */
    constexpr int FIRST_LOADS = V * sizeof(T) == 16 ? 4 : 11;
    /* [32] sums, the block's moments, then the block's part of the group, T [pixels][width] */
    DYNAMIC_SHARED(float, shared);
    struct moments *const own = (struct moments *)(shared + 32);
    T *kept = (T *)(own + 1);
    const struct walk w = walk_of(g.width / V);
    const int group = (int)blockIdx.x / BLOCKS, part = (int)blockIdx.x % BLOCKS;
    const int share = (g.pixels + BLOCKS - 1) / BLOCKS, first = min(part * share, g.pixels);
    const int pixels = min(share, g.pixels - first);
    const int row = (int)blockIdx.y * g.pixels;
    const int64_t begin = (int64_t)(row + first) * g.channels + group * g.width;
    T *y = (T *)g.y + begin;
    griddepcontrol_wait();
    const T middle = *source<T>(g, row, group * g.width).from;
    /* gamma and beta of the thread's first word (usually its only one) are loaded together with
     * x. */
    float gamma[V], beta[V], shift = 0.0f, sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int j = 0; j < V; j++) {
        gamma[j] = g.gamma[group * g.width + w.word * V + j];
        beta[j] = g.beta[group * g.width + w.word * V + j];
    }
    for (int at = w.word; at < w.words; at += w.columns) {
        const source<T> x(g, row + first, group * g.width + at * V);
        each_line<T, V, FIRST_LOADS>(
            x.from, x.apart, w, pixels, [&] { shift = to_float(computed_here(middle)); },
            [&](int i, union word<T, V> v) {
                *(union word<T, V> *)(kept + (i * w.words + at) * V) = v;
                float d[V];
                word_to_float(v, d);
#pragma unroll
                for (int j = 0; j < V; j++) {
                    d[j] -= shift;
                    sum += d[j];
                    if constexpr (!TWO_PASSES)
                        squares = fmaf(d[j], d[j], squares);
                }
            });
    }
    shift = to_float(middle); /* also for threads without a line */
    griddepcontrol_launch();
    if (g.joined)
        join<T, V>(kept, w, pixels, (T *)g.joined + begin, g.channels);
    /* No thread writes y before all threads have read x, because block_sum waits for all. */
    const float count = (float)pixels * (float)g.width;
    struct moments m = moments_of(count, shift, block_sum(sum, shared), 0.0f);
    if constexpr (TWO_PASSES) {
        for (int at = w.word; at < w.words; at += w.columns)
            each_line<T, V>(kept + at * V, g.width, w, pixels, [&](int, union word<T, V> v) {
#pragma unroll
                for (int j = 0; j < V; j++) {
                    const float d = (to_float(v.element[j]) - shift) - m.mean;
                    squares = fmaf(d, d, squares);
                }
            });
        m.squares = block_sum(squares, shared);
    } else { /* m.squares is -sum * mean here: add the sum of the squares */
        m.squares += block_sum(squares, shared);
    }
    if constexpr (BLOCKS > 1) {
        if (threadIdx.x == 0)
            *own = m;
        cluster_sync();
        m = cluster_moments(own, 0);
#pragma unroll
        for (int i = 1; i < BLOCKS; i++)
            m = moments_merge(m, cluster_moments(own, i));
        cluster_arrive(); /* no longer reads the others' memory */
    }
    const float scale = moments_scale(m, g.eps);
    for (int at = w.word; at < w.words; at += w.columns) {
        const int channel = group * g.width + at * V;
        if (at > w.word)
#pragma unroll
            for (int j = 0; j < V; j++) {
                gamma[j] = g.gamma[channel + j];
                beta[j] = g.beta[channel + j];
            }
        const struct ending<T, V> e(m, scale, gamma, beta);
        each_line<T, V>(kept + at * V, g.width, w, pixels, [&](int i, union word<T, V> v) {
            e.template write<SILU>(v, y + (int64_t)i * g.channels + at * V);
        });
    }
    if constexpr (BLOCKS > 1)
        cluster_wait();
}

/* ---- in pieces ---- */

/* The part of the work that a block takes, the same in both kernels. blockIdx.x counts [group /
 * together][piece], blockIdx.y rows. */
struct piece {
    int index, first_group, groups, pixels, channel; /* channel: the first one */
    int pixel;                                       /* the first one, counted over all rows */
    int64_t at;                                      /* index in y of the first element */
};

__device__ __forceinline__ struct piece piece_of(const struct group_norm &g) {
    struct piece p;
    p.index = (int)blockIdx.x % g.pieces;
    p.first_group = (int)blockIdx.x / g.pieces * g.together;
    p.groups = min(g.together, g.groups - p.first_group);
    const int first_pixel = p.index * g.piece;
    p.pixels = min(g.piece, g.pixels - first_pixel);
    p.channel = p.first_group * g.width;
    p.pixel = (int)blockIdx.y * g.pixels + first_pixel;
    p.at = (int64_t)p.pixel * g.channels + p.channel;
    return p;
}

template <class T, int V>
__global__ void __launch_bounds__(THREADS, V * sizeof(T) > 4 ? 1 : 2)
    group_norm_parts(const struct group_norm g) {
    DYNAMIC_SHARED(struct moments, mine); /* [THREADS] */
    const struct piece p = piece_of(g);
    const struct walk w = walk_of(p.groups * g.width / V);
    const int thread = (int)threadIdx.x;
    griddepcontrol_wait();
    griddepcontrol_launch();
    struct moments m = { 0.0f, 0.0f, 0.0f, 0.0f };
    if (w.line < w.lines && w.line < p.pixels) {
        const float shift = to_float(*source<T>(g, p.pixel + w.line, p.channel + w.word * V).from);
        float sum = 0.0f, squares = 0.0f;
        int taken = 0;
        for (int at = w.word; at < w.words; at += w.columns) {
            const source<T> x(g, p.pixel, p.channel + at * V);
            T *joined = (T *)g.joined + p.at + at * V;
            each_line<T, V>(x.from, x.apart, w, p.pixels, [&](int i, union word<T, V> v) {
                taken++;
                if (g.joined)
                    put_word<T, V>(joined + (int64_t)i * g.channels, v);
#pragma unroll
                for (int j = 0; j < V; j++) {
                    const float d = to_float(v.element[j]) - shift;
                    sum += d;
                    squares = fmaf(d, d, squares);
                }
            });
        }
        m = moments_of((float)(taken * V), shift, sum, squares);
    }
    mine[thread] = m;
    __syncthreads();
    /* A warp merges one group: the moments of all threads that have a word of the group. */
    const int of_group = min(g.width / V, w.columns), warp = thread / 32, lane = thread % 32;
    for (int group = warp; group < p.groups; group += THREADS / 32) {
        struct moments sum = { 0.0f, 0.0f, 0.0f, 0.0f };
        for (int i = lane; i < w.lines * of_group; i += 32)
            sum = moments_merge(
                sum, mine[i / of_group * w.columns + group * of_group + i % of_group]);
        sum = moments_of_warp(sum);
        if (lane == 0)
            g.parts[((int64_t)blockIdx.y * g.pieces + p.index) * g.groups + p.first_group + group] =
                sum;
    }
}

/* The grid is that of group_norm_parts. x may be y. */
template <class T, int V>
__global__ void __launch_bounds__(THREADS, V * sizeof(T) > 4 ? 1 : 2)
    group_norm_apply(const struct group_norm g) {
    DYNAMIC_SHARED(struct moments, whole); /* [together], then the scales */
    float *scales = (float *)(whole + g.together);
    const struct piece p = piece_of(g);
    const struct walk w = walk_of(p.groups * g.width / V);
    const T *x = (const T *)(g.joined ? g.joined : g.x) + p.at;
    T *y = (T *)g.y + p.at;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int group = warp; group < p.groups; group += THREADS / 32) {
        const struct moments *parts = g.parts + (int64_t)blockIdx.y * g.pieces * g.groups +
                                      p.first_group + group;
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
    for (int at = w.word; at < w.words; at += w.columns) {
        const int group = at * V / g.width, channel = p.channel + at * V;
        const struct ending<T, V> e(
            whole[group], scales[group], g.gamma + channel, g.beta + channel);
        each_line<T, V>(x + at * V, g.channels, w, p.pixels, [&](int i, union word<T, V> v) {
            if (g.silu)
                e.template write<true>(v, y + (int64_t)i * g.channels + at * V);
            else
                e.template write<false>(v, y + (int64_t)i * g.channels + at * V);
        });
    }
}

/* ---- the host's side ---- */

static struct selections<struct group_norm_shape, struct group_norm_candidate> selected;

extern "C" struct group_norm_shape group_norm_shape_of(const struct group_norm_args *args) {
    const int64_t *s = args->x->shape;
    struct group_norm_shape shape;
    memset(&shape, 0, sizeof(shape)); /* shapes are compared as bytes */
    shape.dtype = args->x->dtype;
    shape.pixels = s[1] * s[2];
    shape.channels = s[3] + (args->more ? args->more->shape[3] : 0);
    shape.groups = args->groups;
    return shape;
}

/* Returns the shared memory that each of `blocks` blocks needs to keep a group. */
static size_t kept_bytes(int64_t pixels, int64_t width, int blocks, size_t size) {
    return 32 * sizeof(float) + sizeof(struct moments) +
           (size_t)((pixels + blocks - 1) / blocks * width) * size;
}

static bool has_lines(const struct group_norm_shape *s) {
    return s->dtype != DTYPE_F32 && s->channels % 8 == 0 &&
           s->channels <= GROUP_NORM_LINE_CHANNELS && s->groups <= GROUP_NORM_LINE_GROUPS;
}

extern "C" int group_norm_candidates(const struct group_norm_shape *shape,
    struct group_norm_candidate out[GROUP_NORM_MAX_CANDIDATES]) {
    const struct cuda_properties *device = cuda_get_properties();
    const int64_t width = shape->channels / shape->groups;
    const size_t size = dtype_size(shape->dtype), room = device->shared_bytes_per_block;
    int count = 0;
    const bool lines_first = shape->pixels >= LINES_PIXELS;
    if (has_lines(shape) && lines_first)
        out[count++].path = GROUP_NORM_LINES;
    if (kept_bytes(shape->pixels, width, 1, size) <= room)
        out[count++].path = GROUP_NORM_SHARED;
    if (device->capability >= 90 && device->code >= 90 && !device->no_clusters &&
        kept_bytes(shape->pixels, width, CLUSTER, size) <= room)
        out[count++].path = GROUP_NORM_CLUSTER;
    if (has_lines(shape) && !lines_first)
        out[count++].path = GROUP_NORM_LINES;
    out[count++].path = GROUP_NORM_PARTS;
    return count;
}

extern "C" const char *group_norm_candidate_name(
    const struct group_norm_candidate *candidate, char *text, size_t size) {
    static const char *const names[] = { "parts", "shared", "cluster", "lines" };
    snprintf(text, size, "%s", names[candidate->path]);
    return text;
}

extern "C" bool group_norm_select(
    const struct group_norm_shape *shape, const struct group_norm_candidate *candidate) {
    return selected.put(shape, candidate);
}

/* Returns the pixel strides in bytes and the addresses of all tensors, ORed: the result is a
 * multiple of a power of two exactly if each of them is. */
static uint64_t alignment(const struct group_norm *g, size_t size) {
    return (uint64_t)g->channels * size | (uint64_t)g->of_x * size | (uintptr_t)g->x |
           (uintptr_t)g->more | (uintptr_t)g->y | (uintptr_t)g->joined;
}

/* Returns the elements of the widest word that divides a group and stays aligned. */
static int word_of(const struct group_norm *g, size_t size) {
    const uint64_t bits = (uint64_t)g->width * size | alignment(g, size);
    size_t bytes = 16;
    while (bytes > size && bits % bytes != 0)
        bytes /= 2;
    return (int)(bytes / size);
}

static int64_t divided(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

template <class T, int V, int BLOCKS>
static bool run_shared(const struct group_norm *g, int64_t rows, struct error *err) {
    /* Use whole warps, and no warp without work. */
    const int64_t words = divided(g->pixels, BLOCKS) * (g->width / V);
    const unsigned threads = words < THREADS ? (unsigned)divided(words, 32) * 32 : THREADS;
    const struct launch_shape shape = { dim3((unsigned)g->groups * BLOCKS, (unsigned)rows),
        dim3(threads), kept_bytes(g->pixels, g->width, BLOCKS, sizeof(T)), dim3(BLOCKS), true };
    return launch_kernel(&shape, "group_norm", err,
        g->silu ? group_norm_shared<T, V, BLOCKS, true> : group_norm_shared<T, V, BLOCKS, false>,
        *g);
}

template <class T, int V>
static bool run(const struct group_norm_candidate *candidate, struct group_norm *g, int64_t rows,
    struct error *err) {
    if (candidate->path == GROUP_NORM_SHARED)
        return run_shared<T, V, 1>(g, rows, err);
    if (candidate->path == GROUP_NORM_CLUSTER)
        return run_shared<T, V, CLUSTER>(g, rows, err);
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
    if constexpr (sizeof(T) == 2)
        if (candidate->path == GROUP_NORM_LINES && alignment(g, sizeof(T)) % 16 == 0)
            return group_norm_lines<T>(g, rows, err);
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
    g.of_x = (int)s[3];
    g.channels = (int)args->y->shape[3];
    g.of_more = g.channels - g.of_x;
    const int64_t size = (int64_t)dtype_size(args->x->dtype);
    if (args->more) {
        g.more = (const char *)args->more->data - size * g.of_x;
        g.joined = args->joined->data;
    }
    g.groups = args->groups;
    g.width = g.channels / g.groups;
    g.eps = args->eps;
    g.silu = args->silu;
    const int64_t least = divided(g.pixels, MAX_PIECES), wanted = PIECE_ELEMENTS / g.channels;
    g.piece = (int)(wanted > least ? wanted : least);
    g.pieces = (int)divided(g.pixels, g.piece);
    /* Take as many rows at a time as fit: their moments in the workspace, and their number of
     * pixels in an int. */
    const int64_t row_bytes = (int64_t)sizeof(struct moments) * g.groups *
                              (g.pieces > GROUP_NORM_LINE_PARTS ? g.pieces : GROUP_NORM_LINE_PARTS);
    const int64_t room = cuda_workspace_bytes() / row_bytes, most = INT32_MAX / g.pixels;
    const int64_t together = room < most ? room : most, rows = s[0];
    g.parts = (struct moments *)cuda_workspace(row_bytes);
    if (!g.parts)
        return error_set(err, ERROR_UNSUPPORTED, "group_norm: %d groups are too many", g.groups);
    for (int64_t first = 0; first < rows; first += together) {
        const int64_t here = rows - first < together ? rows - first : together;
        const int64_t channel_bytes = here * g.pixels * size;
        if (!CALL_FOR_DTYPE(args->x->dtype, run_dtype, candidate, &g, here, err))
            return false;
        g.x = (const char *)g.x + channel_bytes * g.of_x;
        g.y = (char *)g.y + channel_bytes * g.channels;
        if (args->more) {
            g.more = (const char *)g.more + channel_bytes * g.of_more;
            g.joined = (char *)g.joined + channel_bytes * g.channels;
        }
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
