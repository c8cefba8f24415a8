/* group_norm of 16-bit images that reads whole pixels, in words of 16 bytes. Like the second way of
 * group_norm.cu, it has two kernels.
 *
 * A group of 10 channels is 20 bytes of each pixel. A block that reads a single group has to use
 * words of 4 bytes, and memory transfers more bytes than the block needs. Here a thread always
 * reads the same 8 channels, whatever groups they belong to, and sums each channel separately. Sums
 * of groups are made at the end, from the block's sums.
 *
 * The first kernel writes the sums of pieces of the image to the workspace; the pieces depend on
 * the row's shape only. Every block of the second kernel adds all of them in the same order. The
 * second kernel requests its pixels before it waits for the first kernel. This is safe because the
 * pixels were complete before the first kernel's own wait ended.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/norm/group_norm.cuh"
#include "kernels/cuda/numeric.cuh"

#define THREADS 512
#define LOADS 8
/* Elements per piece. Large images have larger pieces, because the number of pieces is limited. */
#define PIECE_ELEMENTS 20480
#define PIECES_OF_SMALL 64
#define SMALL_ELEMENTS (4 << 20)

/* A thread's place in the piece: word `word` of every `lines`th pixel from `line` on. A thread
 * without work has line >= lines. */
struct place {
    int words, lines, word, line, first, pixels; /* first: the piece's first pixel of the row */
};

__device__ __forceinline__ struct place place_of(const struct group_norm &g) {
    struct place p;
    p.words = g.channels / 8;
    p.lines = (int)blockDim.x / p.words;
    p.word = (int)threadIdx.x % p.words;
    p.line = (int)threadIdx.x / p.words;
    p.first = (int)blockIdx.x * g.piece;
    p.pixels = max(0, min(g.piece, g.pixels - p.first));
    return p;
}

__device__ __forceinline__ float2 sum_of_warp(float2 all) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        all.x += __shfl_xor_sync(0xffffffffu, all.x, step);
        all.y += __shfl_xor_sync(0xffffffffu, all.y, step);
    }
    return all;
}

/* Reads the shift of each group, which is subtracted from all values of the group: the value of the
 * group's first channel in the row's first pixel. */
template <class T>
__device__ __forceinline__ void read_shifts(const struct group_norm &g, float *shifts) {
    for (int group = (int)threadIdx.x; group < g.groups; group += (int)blockDim.x)
        shifts[group] = to_float(*source<T>(g, (int)blockIdx.y * g.pixels, group * g.width).from);
}

/* Requests this thread's words of the LOADS lines from `line` on. After the last line, it requests
 * the last line again. */
template <class T>
__device__ __forceinline__ void request(
    union word<T, 8> *words, const source<T> &x, const struct place &p, int line) {
#pragma unroll
    for (int i = 0; i < LOADS; i++)
        words[i].whole = *(
            const uint4 *)(x.from + (int64_t)min(line + i * p.lines, p.pixels - 1) * x.apart);
}

/* Calls each(pixel of the piece, its word) for this thread's pixels. The first LOADS words were
 * already requested. */
template <class T, class EACH>
__device__ __forceinline__ void each_word(
    union word<T, 8> *words, const source<T> &x, const struct place &p, EACH each) {
#pragma unroll 1
    for (int line = p.line; p.line < p.lines && line < p.pixels; line += LOADS * p.lines) {
        if (line > p.line)
            request(words, x, p, line);
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int at = line + i * p.lines;
            if (at >= p.pixels)
                break;
            each(at, words[i]);
        }
    }
}

/* Returns where the first kernel keeps the shifts: behind its sums, [row][group]. The second kernel
 * cannot read them from x: if x is y, the first pixel may already be overwritten. */
__device__ __forceinline__ float *kept_shifts(const struct group_norm &g) {
    float *shifts = (float *)((float2 *)g.parts + (int64_t)gridDim.y * g.groups * g.pieces);
    return shifts + (int64_t)blockIdx.y * g.groups;
}

/* Grid: x pieces, y rows. Writes g.parts as [row][group][piece]: sums of d and of d^2, d = x -
 * shift. */
template <class T>
__global__ void __launch_bounds__(THREADS, 1) group_norm_line_sums(const struct group_norm g) {
    DYNAMIC_SHARED(float, shifts);                              /* [GROUP_NORM_LINE_GROUPS] */
    float2 *sums = (float2 *)(shifts + GROUP_NORM_LINE_GROUPS); /* [lines][channels] */
    const struct place p = place_of(g);
    const bool works = p.line < p.lines && p.line < p.pixels;
    griddepcontrol_wait();
    griddepcontrol_launch();
    union word<T, 8> words[LOADS];
    const source<T> x(g, (int)blockIdx.y * g.pixels + p.first, p.word * 8);
    if (works)
        request(words, x, p, p.line);
    read_shifts<T>(g, shifts);
    __syncthreads();
    for (int i = (int)threadIdx.x; blockIdx.x == 0 && i < g.groups; i += (int)blockDim.x)
        kept_shifts(g)[i] = shifts[i];
    float shift[8], sum[8], squares[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        shift[j] = shifts[(p.word * 8 + j) / g.width];
        sum[j] = squares[j] = 0.0f;
    }
    T *joined = (T *)g.joined + ((int64_t)blockIdx.y * g.pixels + p.first) * g.channels +
                p.word * 8;
    each_word(words, x, p, [&](int at, union word<T, 8> v) {
        if (g.joined)
            *(uint4 *)(joined + (int64_t)at * g.channels) = v.whole;
        float d[8];
        word_to_float(v, d);
#pragma unroll
        for (int j = 0; j < 8; j++) {
            d[j] -= shift[j];
            sum[j] += d[j];
            squares[j] = fmaf(d[j], d[j], squares[j]);
        }
    });
    if (p.line < p.lines)
#pragma unroll
        for (int j = 0; j < 8; j++)
            sums[p.line * g.channels + p.word * 8 + j] = make_float2(sum[j], squares[j]);
    __syncthreads();
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int warps = (int)blockDim.x / 32;
    for (int group = warp; group < g.groups; group += warps) {
        float2 all = make_float2(0.0f, 0.0f);
        for (int i = lane; i < p.lines * g.width; i += 32) {
            const float2 one = sums[i / g.width * g.channels + group * g.width + i % g.width];
            all.x += one.x;
            all.y += one.y;
        }
        all = sum_of_warp(all);
        if (lane == 0)
            ((float2 *)g.parts)[((int64_t)blockIdx.y * g.groups + group) * g.pieces + blockIdx.x] =
                all;
    }
}

/* How a group's values are normalised: y = ((x - shift) - mean) scale gamma + beta. */
struct ends {
    float shift, mean, scale;
};

/* Computes `ends` of every group from the first kernel's sums. */
__device__ __forceinline__ void add_parts(const struct group_norm &g, struct ends *ends) {
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    const int warps = (int)blockDim.x / 32;
    const float share = 1.0f / ((float)g.pixels * (float)g.width);
    for (int group = warp; group < g.groups; group += warps) {
        const float2 *parts = (const float2 *)g.parts +
                              ((int64_t)blockIdx.y * g.groups + group) * g.pieces;
        float2 all = make_float2(0.0f, 0.0f);
        for (int i = lane; i < g.pieces; i += 32) {
            const float2 one = parts[i];
            all.x += one.x;
            all.y += one.y;
        }
        all = sum_of_warp(all);
        if (lane == 0) {
            const float mean = all.x * share, variance = fmaf(-mean, mean, all.y * share);
            ends[group].shift = kept_shifts(g)[group];
            ends[group].mean = mean;
            ends[group].scale = 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + g.eps);
        }
    }
}

/* The grid is that of group_norm_line_sums. x may be y. */
template <class T, bool SILU>
__global__ void __launch_bounds__(THREADS, 1) group_norm_line_write(const struct group_norm g) {
    DYNAMIC_SHARED(struct ends, ends); /* [groups] */
    const struct place p = place_of(g);
    const bool works = p.line < p.lines && p.line < p.pixels;
    union word<T, 8> words[LOADS];
    const source<T> x(g, (int)blockIdx.y * g.pixels + p.first, p.word * 8);
    if (works)
        request(words, x, p, p.line);
    float shift[8], factor[8], offset[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        factor[j] = g.gamma[p.word * 8 + j];
        offset[j] = g.beta[p.word * 8 + j];
    }
    griddepcontrol_wait();
    griddepcontrol_launch();
    add_parts(g, ends);
    __syncthreads();
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const struct ends e = ends[(p.word * 8 + j) / g.width];
        shift[j] = e.shift;
        factor[j] *= e.scale;
        offset[j] = fmaf(-e.mean, factor[j], offset[j]);
    }
    T *y = (T *)g.y + ((int64_t)blockIdx.y * g.pixels + p.first) * g.channels + p.word * 8;
    each_word(words, x, p, [&](int at, union word<T, 8> word) {
        float v[8];
        word_to_float(word, v);
#pragma unroll
        for (int j = 0; j < 8; j++)
            v[j] = fmaf(v[j] - shift[j], factor[j], offset[j]);
        if constexpr (SILU)
#pragma unroll
            for (int j = 0; j < 8; j += 2)
                quick_silu_2(v + j);
        store_8(y + (int64_t)at * g.channels, v);
    });
}

template <class T>
bool group_norm_lines(const struct group_norm *args, int64_t rows, struct error *err) {
    struct group_norm g = *args;
    const int64_t elements = (int64_t)g.pixels * g.channels;
    const int64_t most = elements < SMALL_ELEMENTS ? PIECES_OF_SMALL : GROUP_NORM_LINE_PARTS;
    int64_t pieces = (elements + PIECE_ELEMENTS - 1) / PIECE_ELEMENTS;
    pieces = pieces < most ? pieces : most;
    g.piece = (int)((g.pixels + pieces - 1) / pieces);
    g.pieces = (g.pixels + g.piece - 1) / g.piece;
    const int words = g.channels / 8, lines = THREADS / words;
    const int threads = (lines * words + 31) / 32 * 32;
    const dim3 grid((unsigned)g.pieces, (unsigned)rows);
    return launch(group_norm_line_sums<T>, grid, threads,
               GROUP_NORM_LINE_GROUPS * sizeof(float) +
                   (size_t)lines * (size_t)g.channels * sizeof(float2),
               "group_norm", err, g) &&
           launch(g.silu ? group_norm_line_write<T, true> : group_norm_line_write<T, false>, grid,
               threads, (size_t)g.groups * sizeof(struct ends), "group_norm", err, g);
}

template bool group_norm_lines<__half>(const struct group_norm *, int64_t, struct error *);
template bool group_norm_lines<__nv_bfloat16>(const struct group_norm *, int64_t, struct error *);
