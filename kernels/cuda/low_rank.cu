/* low_rank: adds scale * up (down x) to y, for each term of each row. One kernel does all rows and
 * all their terms.
 *
 *   t[token][r] = scale * sum over taps and k of x[pixel(token, tap)][k] down[r][tap][k]
 *   y[token][first + j] += sum over r of t[token][r] up[j][r]
 *
 * A block computes TOKENS tokens of one row. A panel is 16 ranks of a term. The block goes through
 * the panels of all terms of its row in passes of up to PASS panels, because its registers have no
 * room for more. A pass reads x once for all its panels and keeps t in shared memory. Terms with
 * the same outputs are added before y is rounded, if they are in one pass.
 *
 * The terms of a row are read from device memory, so that a recorded call keeps its arguments while
 * the terms change.
 */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#include <stdlib.h>

#define THREADS 256
#define TOKENS 64
/* Tokens per thread. The threads of a block are 16 groups of 16: a group has the same TOKENS_EACH
 * tokens, and each of its threads has one rank of a panel. */
#define TOKENS_EACH 4
#define PASS 8  /* panels */
#define STEP 32 /* inputs loaded at once */
/* A line has 64 tokens, and 16 bytes more so that lines begin in different banks. */
#define LINE (TOKENS + 4)

struct low_rank {
    const void *x;                     /* [rows][h][w][k] */
    void *y;                           /* [rows][h_out][w_out][channels] */
    const struct low_rank_span *spans; /* where each row's terms are */
    const struct low_rank_term *terms;
    int rows, h, w, h_out, w_out, k, channels;
    int taps, stride, before, shift; /* as in struct gemm */
    int limit_h, limit_w;
};

struct low_rank_shared {
    float x[STEP][LINE];
    float t[PASS * LOW_RANK_PANEL][LINE];
};

/* The panels of a pass: panel[i] of term term[i]. */
struct pass {
    const struct low_rank_term *term[PASS];
    int panel[PASS];
    int count;
};

/* Fills the pass with up to PASS panels, beginning with panel *panel of term *term. Sets *panel and
 * *term to the first panel that is left for the next pass. */
__device__ __forceinline__ void pass_next(
    const struct low_rank_term *terms, uint32_t count, uint32_t *term, int *panel, struct pass *p) {
    p->count = 0;
#pragma unroll
    for (int i = 0; i < PASS; i++) {
        p->term[i] = terms;
        p->panel[i] = 0;
        if (*term >= count)
            continue;
        p->term[i] = terms + *term;
        p->panel[i] = *panel;
        p->count = i + 1;
        if (++*panel * LOW_RANK_PANEL >= (int)terms[*term].rank) {
            *panel = 0;
            ++*term;
        }
    }
}

/* Returns the pixel of x that tap `tap` of output token `token` of a row reads; negative outside
 * the image. */
__device__ __forceinline__ int64_t source(const struct low_rank &g, int token, int tap) {
    if (token >= g.h_out * g.w_out)
        return -1;
    if (g.taps == 1)
        return token;
    const int y = token / g.w_out * g.stride + tap / 3 - g.before;
    const int x = token % g.w_out * g.stride + tap % 3 - g.before;
    if ((unsigned)y >= (unsigned)g.limit_h || (unsigned)x >= (unsigned)g.limit_w)
        return -1;
    return (int64_t)(y >> g.shift) * g.w + (x >> g.shift);
}

/* s->x[i][token] = x[tap of token first + token][from + i], with zeros beyond k and outside the
 * image. */
template <class T>
__device__ __forceinline__ void load_inputs(
    const struct low_rank &g, const T *x, int first, int tap, int from, struct low_rank_shared *s) {
    const int i = (int)threadIdx.x % STEP;
    for (int token = (int)threadIdx.x / STEP; token < TOKENS; token += THREADS / STEP) {
        const int64_t at = source(g, first + token, tap);
        s->x[i][token] = at >= 0 && from + i < g.k ? to_float(x[at * g.k + from + i]) : 0.0f;
    }
}

/* s->t = scale * (x . down), for the panels of the pass. */
template <class T>
__device__ __forceinline__ void inner_products(const struct low_rank &g, const T *x, int first,
    const struct pass &p, struct low_rank_shared *s) {
    const int lane = (int)threadIdx.x % LOW_RANK_PANEL;
    const int group = (int)threadIdx.x / LOW_RANK_PANEL * TOKENS_EACH;
    float sums[PASS][TOKENS_EACH] = {};
    const float *down[PASS];
#pragma unroll
    for (int i = 0; i < PASS; i++)
        down[i] = p.term[i]->down + (int64_t)p.panel[i] * g.taps * g.k * LOW_RANK_PANEL + lane;
    for (int tap = 0; tap < g.taps; tap++) {
        for (int from = 0; from < g.k; from += STEP) {
            const int steps = min(STEP, g.k - from);
            const int64_t at = (int64_t)(tap * g.k + from) * LOW_RANK_PANEL;
            __syncthreads();
            load_inputs(g, x, first, tap, from, s);
            __syncthreads();
#pragma unroll 2
            for (int i = 0; i < steps; i++) {
                const float4 v = *(const float4 *)&s->x[i][group];
#pragma unroll
                for (int panel = 0; panel < PASS; panel++) {
                    if (panel >= p.count)
                        break;
                    const float d = down[panel][at + i * LOW_RANK_PANEL];
                    sums[panel][0] = fmaf(v.x, d, sums[panel][0]);
                    sums[panel][1] = fmaf(v.y, d, sums[panel][1]);
                    sums[panel][2] = fmaf(v.z, d, sums[panel][2]);
                    sums[panel][3] = fmaf(v.w, d, sums[panel][3]);
                }
            }
        }
    }
#pragma unroll
    for (int panel = 0; panel < PASS; panel++) {
        if (panel >= p.count)
            break;
        const float scale = p.term[panel]->scale;
        *(float4 *)&s->t[panel * LOW_RANK_PANEL + lane][group] = make_float4(scale * sums[panel][0],
            scale * sums[panel][1], scale * sums[panel][2], scale * sums[panel][3]);
    }
    __syncthreads();
}

__device__ __forceinline__ bool same_outputs(
    const struct low_rank_term *a, const struct low_rank_term *b) {
    return a->first == b->first && a->n == b->n;
}

/* Adds up * t to y for those panels of the pass, from panel `from` on, whose terms have the same
 * outputs as the term of panel `from`. */
template <class T>
__device__ __forceinline__ void add_outputs(const struct low_rank &g, T *y, int first,
    const struct pass &p, int from, const struct low_rank_shared *s) {
    const struct low_rank_term *to = p.term[from];
    const int lane = (int)threadIdx.x % LOW_RANK_PANEL;
    const int group = (int)threadIdx.x / LOW_RANK_PANEL * TOKENS_EACH;
    const int tokens = g.h_out * g.w_out, n = (int)to->n;
    for (int column = 0; column < n; column += LOW_RANK_PANEL) {
        float sums[TOKENS_EACH] = {};
        for (int i = from; i < p.count; i++) {
            const struct low_rank_term *term = p.term[i];
            if (!same_outputs(term, to))
                continue;
            const int rank = (int)term->rank, begin = p.panel[i] * LOW_RANK_PANEL;
            const int ranks = min(LOW_RANK_PANEL, rank - begin);
            const float *up = term->up + ((int64_t)column * rank + begin * LOW_RANK_PANEL) + lane;
            for (int r = 0; r < ranks; r++) {
                const float4 t = *(const float4 *)&s->t[i * LOW_RANK_PANEL + r][group];
                const float u = up[r * LOW_RANK_PANEL];
                sums[0] = fmaf(t.x, u, sums[0]);
                sums[1] = fmaf(t.y, u, sums[1]);
                sums[2] = fmaf(t.z, u, sums[2]);
                sums[3] = fmaf(t.w, u, sums[3]);
            }
        }
        if (column + lane >= n)
            continue;
#pragma unroll
        for (int i = 0; i < TOKENS_EACH; i++) {
            if (first + group + i >= tokens)
                break;
            T *out = y + (int64_t)(first + group + i) * g.channels + to->first + column + lane;
            *out = from_float<T>(to_float(*out) + sums[i]);
        }
    }
    __syncthreads(); /* other terms' outputs may overlap these */
}

/* Grid: x counts blocks of tokens, y rows. */
template <class T> __global__ void __launch_bounds__(THREADS) low_rank(const struct low_rank g) {
    DYNAMIC_SHARED(struct low_rank_shared, s);
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int row = (int)blockIdx.y, first = (int)blockIdx.x * TOKENS;
    const struct low_rank_span at = g.spans[row];
    const struct low_rank_term *terms = g.terms + at.first;
    const T *x = (const T *)g.x + (int64_t)row * g.h * g.w * g.k;
    T *y = (T *)g.y + (int64_t)row * g.h_out * g.w_out * g.channels;
    uint32_t term = 0;
    int panel = 0;
    while (term < at.count) {
        struct pass p;
        pass_next(terms, at.count, &term, &panel, &p);
        inner_products(g, x, first, p, s);
        for (int i = 0; i < p.count; i++) {
            bool done = false;
            for (int before = 0; before < i; before++)
                done = done || same_outputs(p.term[before], p.term[i]);
            if (!done)
                add_outputs(g, y, first, p, i, s);
        }
    }
}

/* Called if the call's terms are not in device memory yet. Uploads the spans, and behind them the
 * terms, to the scratch memory. */
static bool upload(struct low_rank *g, const struct low_rank_row *rows, struct error *err) {
    const size_t spans_bytes = ((size_t)g->rows * sizeof(*g->spans) + 15) / 16 * 16;
    size_t bytes = spans_bytes;
    for (int row = 0; row < g->rows; row++)
        bytes += (size_t)rows[row].count * sizeof(*g->terms);
    char *host = (char *)calloc(1, bytes), *device = (char *)cuda_workspace(bytes);
    bool ok = (host && device) ||
              error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes of low-rank terms", bytes);
    struct low_rank_span *spans = (struct low_rank_span *)host;
    struct low_rank_term *terms = (struct low_rank_term *)(host + spans_bytes);
    uint32_t first = 0;
    for (int row = 0; ok && row < g->rows; row++) {
        spans[row].first = first;
        spans[row].count = (uint32_t)rows[row].count;
        for (int i = 0; i < rows[row].count; i++)
            terms[first++] = rows[row].terms[i];
    }
    ok = ok && cuda_upload(device, host, bytes, err);
    free(host);
    g->spans = (const struct low_rank_span *)device;
    g->terms = (const struct low_rank_term *)(device + spans_bytes);
    return ok;
}

static void set_geometry(struct low_rank *g, const struct low_rank_args *args) {
    const int64_t *x = args->x->shape, *y = args->y->shape;
    const int last = args->x->rank - 1;
    g->rows = (int)x[0];
    g->k = (int)x[last];
    g->channels = (int)y[last];
    g->taps = args->kind == CONV_1X1 ? 1 : 9;
    g->stride = args->kind == CONV_3X3_DOWN || args->kind == CONV_3X3_DOWN_RIGHT ? 2 : 1;
    g->before = args->kind == CONV_1X1 || args->kind == CONV_3X3_DOWN_RIGHT ? 0 : 1;
    g->shift = args->kind == CONV_3X3_UP;
    g->h = g->h_out = 1;
    g->w = g->w_out = (int)(tensor_elements(args->x) / x[0] / x[last]);
    if (args->kind != CONV_1X1) {
        g->h = (int)x[1];
        g->w = (int)x[2];
        g->h_out = (int)y[1];
        g->w_out = (int)y[2];
    }
    g->limit_h = g->shift ? g->h_out : g->h;
    g->limit_w = g->shift ? g->w_out : g->w;
}

extern "C" bool cuda_low_rank(const struct low_rank_args *args, struct error *err) {
    struct low_rank g = {};
    set_geometry(&g, args);
    g.x = args->x->data;
    g.y = args->y->data;
    g.spans = args->spans;
    g.terms = args->terms;
    if (!g.spans && !upload(&g, args->rows, err))
        return false;
    const dim3 grid((unsigned)((g.h_out * g.w_out + TOKENS - 1) / TOKENS), (unsigned)g.rows);
    void (*kernel)(const struct low_rank) = args->y->dtype == DTYPE_F32   ? low_rank<float>
                                            : args->y->dtype == DTYPE_F16 ? low_rank<__half>
                                                                          : low_rank<__nv_bfloat16>;
    return launch(kernel, grid, THREADS, sizeof(struct low_rank_shared), "low_rank", err, g);
}
