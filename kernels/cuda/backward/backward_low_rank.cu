/* The backward of low_rank. For each token, each term and each of its ranks
 *   u = sum over taps and k of x[pixel(token, tap)][k] down[r][tap][k],
 *   v = scale * sum over j of up[j][r] dy[token][first + j]
 * go to the workspace. Then one thread computes each element of the gradients:
 *   d_up[j][r] += scale * sum over tokens of dy[token][first + j] u[token][r];
 *   d_down[r][tap][k] += sum over tokens of v[token][r] x[pixel(token, tap)][k];
 *   dx[pixel][k] (+)= sum over terms, taps and ranks of v[a token that reads it][r]
 * down[r][tap][k].
 *
 * If u and v of all rows do not fit in the workspace, dx is computed for some rows at a time. The
 * factors' gradients, which are sums over all rows, are then computed for some ranks at a time.
 * Both have the bits that they have in one piece.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define TERMS 8 /* terms per launch; dx is rounded between launches */

struct term {
    const float *down, *up;
    float *d_down, *d_up; /* or NULL */
    float *u, *v;         /* [tokens][ranks] */
    int from, ranks;      /* the ranks of this launch: from, ... from + ranks - 1 */
    int rank, first, n;   /* rank: of the whole term, which says how the factors lie */
    float scale;
};

struct low_rank {
    const void *dy, *x; /* x is NULL if no factor's gradient is wanted */
    void *dx;
    int64_t pixels, tokens; /* of all rows */
    int h, w, h_out, w_out, k, channels;
    int lines, taps, stride, before, scale; /* geometry, as in backward_product.cu */
    bool accumulate;
    int count;
    struct term terms[TERMS];
};

/* The pixel that tap `tap` of output `out` reads in a line of `size` pixels, or -1 for zeros. */
__device__ __forceinline__ int source(
    const struct low_rank &a, int out, int tap, int size, int size_out) {
    const int at = out * a.stride + tap - a.before, limit = a.scale == 2 ? size_out : size;
    return at < 0 || at >= limit ? -1 : at / a.scale;
}

/* Returns the pixel that tap `tap` of a token reads, or -1. */
__device__ __forceinline__ int64_t pixel_of(const struct low_rank &a, int64_t token, int tap) {
    if (a.taps == 1)
        return token;
    const int64_t row = token / (a.h_out * a.w_out);
    const int i = source(a, (int)(token / a.w_out % a.h_out), tap / a.lines, a.h, a.h_out);
    const int j = source(a, (int)(token % a.w_out), tap % a.lines, a.w, a.w_out);
    return i < 0 || j < 0 ? -1 : (row * a.h + i) * a.w + j;
}

/* Returns the index of element `inner` of lane `lane` in panels of [width][16]. */
__device__ __forceinline__ int64_t panel_at(int lane, int64_t inner, int64_t width) {
    return (lane / LOW_RANK_PANEL * width + inner) * LOW_RANK_PANEL + lane % LOW_RANK_PANEL;
}

/* Computes u and v. Block x is a token, block y a term; a warp computes one rank at a time. */
template <class T> __global__ void __launch_bounds__(THREADS, 2) ranks(const struct low_rank a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const struct term t = a.terms[blockIdx.y];
    const int64_t token = blockIdx.x;
    const int lane = (int)threadIdx.x % 32, width = a.taps * a.k;
    const T *dy = (const T *)a.dy + token * a.channels + t.first;
    for (int r = (int)threadIdx.x / 32; r < t.ranks; r += WARPS) {
        float u = 0.0f, v = 0.0f;
        for (int j = lane; j < t.n; j += 32)
            v = fmaf(to_float(dy[j]), t.up[panel_at(j, t.from + r, t.rank)], v);
        for (int tap = 0; t.d_up && tap < a.taps; tap++) {
            const int64_t pixel = pixel_of(a, token, tap);
            for (int c = lane; pixel >= 0 && c < a.k; c += 32)
                u = fmaf(to_float(((const T *)a.x)[pixel * a.k + c]),
                    t.down[panel_at(t.from + r, tap * a.k + c, width)], u);
        }
        v = warp_sum(v);
        u = warp_sum(u);
        if (lane == 0) {
            t.v[token * t.ranks + r] = t.scale * v;
            t.u[token * t.ranks + r] = u;
        }
    }
}

/* Computes d_up. Block y is a term. A thread sums one element, in f64 because there may be many
 * tokens. */
template <class T> __global__ void __launch_bounds__(THREADS) ups(const struct low_rank a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const struct term t = a.terms[blockIdx.y];
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (!t.d_up || i >= (int64_t)t.ranks * t.n)
        return;
    const int j = (int)(i % t.n), r = (int)(i / t.n);
    const T *dy = (const T *)a.dy + t.first + j;
    double sum = 0.0;
    for (int64_t token = 0; token < a.tokens; token++)
        sum += (double)to_float(dy[token * a.channels]) * (double)t.u[token * t.ranks + r];
    t.d_up[panel_at(j, t.from + r, t.rank)] += (float)((double)t.scale * sum);
}

template <class T> __global__ void __launch_bounds__(THREADS) downs(const struct low_rank a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const struct term t = a.terms[blockIdx.y];
    const int width = a.taps * a.k;
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (!t.d_down || i >= (int64_t)t.ranks * width)
        return;
    const int inner = (int)(i % width), r = (int)(i / width), tap = inner / a.k;
    const T *x = (const T *)a.x + inner % a.k;
    double sum = 0.0;
    for (int64_t token = 0; token < a.tokens; token++) {
        const int64_t pixel = pixel_of(a, token, tap);
        if (pixel >= 0)
            sum += (double)t.v[token * t.ranks + r] * (double)to_float(x[pixel * a.k]);
    }
    t.d_down[panel_at(t.from + r, inner, width)] += (float)sum;
}

/* Returns what the term adds to one channel of a pixel through one token. `inner` is tap * k +
 * channel. The launch takes all ranks. */
__device__ __forceinline__ float through(
    const struct low_rank &a, const struct term &t, int64_t token, int inner) {
    float sum = 0.0f;
    for (int r = 0; r < t.rank; r++)
        sum = fmaf(t.v[token * t.rank + r], t.down[panel_at(r, inner, (int64_t)a.taps * a.k)], sum);
    return sum;
}

template <class T> __global__ void __launch_bounds__(THREADS, 2) inputs(const struct low_rank a) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    for (int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x; e < a.pixels * a.k;
         e += (int64_t)gridDim.x * THREADS) {
        const int64_t pixel = e / a.k, row = a.taps == 1 ? 0 : pixel / (a.h * a.w);
        const int c = (int)(e % a.k);
        float sum = 0.0f;
        for (int n = 0; n < a.count; n++) {
            if (a.taps == 1) {
                sum += through(a, a.terms[n], pixel, c);
                continue;
            }
            for (int tap = 0; tap < a.taps; tap++) {
                const int i = (int)(pixel / a.w % a.h) * a.scale - tap / a.lines + a.before;
                const int j = (int)(pixel % a.w) * a.scale - tap % a.lines + a.before;
                const int first_y = i >> (a.stride - 1), first_x = j >> (a.stride - 1);
                for (int s = 0; s < a.scale * a.scale; s++) {
                    const int y = first_y + s / a.scale, x = first_x + s % a.scale;
                    if (y < 0 || y >= a.h_out || x < 0 || x >= a.w_out)
                        continue;
                    const int64_t token = (row * a.h_out + y) * a.w_out + x;
                    if (pixel_of(a, token, tap) == pixel)
                        sum += through(a, a.terms[n], token, tap * a.k + c);
                }
            }
        }
        T *to = (T *)a.dx + e;
        *to = from_float<T>(a.accumulate ? to_float(*to) + sum : sum);
    }
}

static unsigned blocks_for(int64_t items) {
    const int64_t blocks = (items + THREADS - 1) / THREADS;
    return (unsigned)(blocks < 65535 ? blocks : 65535);
}

/* Runs the kernels for the terms and rows of `a`. */
template <class T> static bool run(const struct low_rank *a, struct error *err) {
    const char *name = "low_rank_backward";
    int64_t most_up = 0, most_down = 0;
    for (int i = 0; i < a->count; i++) {
        const struct term *t = &a->terms[i];
        const int64_t up = (int64_t)t->ranks * t->n, down = (int64_t)t->ranks * a->taps * a->k;
        most_up = t->d_up && up > most_up ? up : most_up;
        most_down = t->d_down && down > most_down ? down : most_down;
    }
    const unsigned count = (unsigned)a->count;
    return launch(ranks<T>, dim3((unsigned)a->tokens, count), THREADS, 0, name, err, *a) &&
           (!most_up || launch(ups<T>, dim3((unsigned)((most_up + THREADS - 1) / THREADS), count),
                            THREADS, 0, name, err, *a)) &&
           (!most_down ||
               launch(downs<T>, dim3((unsigned)((most_down + THREADS - 1) / THREADS), count),
                   THREADS, 0, name, err, *a)) &&
           (!a->dx ||
               launch(inputs<T>, dim3(blocks_for(a->pixels * a->k)), THREADS, 0, name, err, *a));
}

/* Puts the terms from `first` on into `a`, at most TERMS. */
static void take_terms(const struct low_rank_backward_args *args, int first, struct low_rank *a) {
    for (a->count = 0; first + a->count < args->count && a->count < TERMS; a->count++) {
        const struct low_rank_term *from = &args->terms[first + a->count];
        struct term *t = &a->terms[a->count];
        t->down = from->down;
        t->up = from->up;
        t->d_down = args->gradients ? args->gradients[first + a->count].down : NULL;
        t->d_up = args->gradients ? args->gradients[first + a->count].up : NULL;
        t->rank = t->ranks = (int)from->rank;
        t->first = (int)from->first;
        t->n = (int)from->n;
        t->scale = from->scale;
    }
}

/* Returns the workspace floats per token that u and v need. */
static int64_t floats_of(const struct low_rank *a) {
    int64_t floats = 0;
    for (int i = 0; i < a->count; i++)
        floats += 2 * a->terms[i].ranks;
    return floats;
}

/* Gives the terms their u and v in the workspace, and runs the kernels. */
template <class T> static bool run_placed(struct low_rank *a, struct error *err) {
    const int64_t floats = floats_of(a);
    float *at = (float *)cuda_workspace((size_t)(floats * a->tokens) * sizeof(float));
    if (!at)
        return error_set(err, ERROR_UNSUPPORTED,
            "%lld tokens of ranks of %lld together are more than this device takes at once",
            (long long)a->tokens, (long long)(floats / 2));
    for (int i = 0; i < a->count; i++) {
        a->terms[i].u = at;
        a->terms[i].v = at + a->tokens * a->terms[i].ranks;
        at += 2 * a->tokens * a->terms[i].ranks;
    }
    return run<T>(a, err);
}

/* Computes dx alone, for `most` rows at a time. */
template <class T>
static bool run_rows(struct low_rank all, int64_t rows, int64_t most, struct error *err) {
    const int64_t tokens = all.tokens / rows, pixels = all.pixels / rows;
    for (int i = 0; i < all.count; i++)
        all.terms[i].d_down = all.terms[i].d_up = NULL;
    for (int64_t first = 0; first < rows; first += most) {
        const int64_t here = rows - first < most ? rows - first : most;
        struct low_rank a = all;
        a.tokens = here * tokens;
        a.pixels = here * pixels;
        a.dy = (const T *)all.dy + first * tokens * a.channels;
        a.dx = (T *)all.dx + first * pixels * a.k;
        if (!run_placed<T>(&a, err))
            return false;
    }
    return true;
}

/* Computes the gradients of each term's factors alone, for `most` ranks at a time. */
template <class T>
static bool run_ranks(const struct low_rank *all, int64_t most, struct error *err) {
    for (int i = 0; i < all->count; i++) {
        const struct term *t = &all->terms[i];
        struct low_rank a = *all;
        a.dx = NULL;
        a.count = 1;
        a.terms[0] = *t;
        for (int from = 0; (t->d_down || t->d_up) && from < t->rank; from += a.terms[0].ranks) {
            a.terms[0].from = from;
            a.terms[0].ranks = t->rank - from < most ? t->rank - from : (int)most;
            if (!run_placed<T>(&a, err))
                return false;
        }
    }
    return true;
}

template <class T> static bool run_terms(struct low_rank a, int64_t rows, struct error *err) {
    const int64_t floats = (int64_t)(cuda_workspace_bytes() / sizeof(float));
    if (a.taps == 1) /* dx of a token depends on that token alone */
        rows = a.tokens;
    const int64_t fit = floats / floats_of(&a) * rows / a.tokens; /* rows */
    const int64_t ranks = floats / (2 * a.tokens);
    if (fit >= rows)
        return run_placed<T>(&a, err);
    return (!a.dx || run_rows<T>(a, rows, fit > 1 ? fit : 1, err)) &&
           run_ranks<T>(&a, ranks > 1 ? ranks : 1, err);
}

static struct low_rank low_rank_of(
    const struct low_rank_backward_args *args, const struct tensor *in) {
    const struct tensor *dy = args->dy;
    struct low_rank a = {};
    a.dy = dy->data;
    a.x = args->x ? args->x->data : NULL;
    a.dx = args->dx ? args->dx->data : NULL;
    a.k = (int)in->shape[in->rank - 1];
    a.channels = (int)dy->shape[dy->rank - 1];
    a.tokens = tensor_elements(dy) / a.channels;
    a.pixels = tensor_elements(in) / a.k;
    a.accumulate = args->accumulate;
    a.lines = a.taps = a.stride = a.scale = 1;
    if (args->kind == CONV_1X1)
        return a;
    a.h = (int)in->shape[1];
    a.w = (int)in->shape[2];
    a.h_out = (int)dy->shape[1];
    a.w_out = (int)dy->shape[2];
    a.lines = 3;
    a.taps = 9;
    a.before = args->kind == CONV_3X3_DOWN_RIGHT ? 0 : 1;
    a.stride = args->kind == CONV_3X3_DOWN || args->kind == CONV_3X3_DOWN_RIGHT ? 2 : 1;
    a.scale = args->kind == CONV_3X3_UP ? 2 : 1;
    return a;
}

extern "C" bool cuda_low_rank_backward(
    const struct low_rank_backward_args *args, struct error *err) {
    const struct tensor *in = args->dx ? args->dx : args->x;
    if (!in)
        return true; /* no gradient is wanted */
    struct low_rank a = low_rank_of(args, in);
    for (int first = 0; first < args->count; first += a.count) {
        take_terms(args, first, &a);
        if (!CALL_FOR_DTYPE(args->dy->dtype, run_terms, a, args->dy->shape[0], err))
            return false;
        a.accumulate = true;
    }
    return true;
}
