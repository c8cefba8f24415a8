/* The table's linear and conv2d: a call becomes one struct gemm (gemm.h), which a candidate
 * computes. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/gemm.h"

#include <stdio.h>

static bool is_aligned(const void *p) {
    return ((uintptr_t)p & 15) == 0;
}

static int rounded_up(int n, int to) {
    return (n + to - 1) / to * to;
}

/* Fills in the members that follow from the others. */
static void complete(struct gemm *g, const struct cuda_packed *p, bool ungated) {
    g->n = (int)p->base.n;
    g->geglu = p->base.geglu && !ungated;
    g->halves = ungated;
    g->n_out = g->geglu ? g->n / 2 : g->n;
    g->bias = p->bias;
    g->k = g->taps * g->c_in;
    g->n_partial = rounded_up(g->n, g->geglu ? 16 : 8);
    g->vectors = !g->halves && !g->y_is_f32 && g->n_out % 8 == 0 && is_aligned(g->y) &&
                 is_aligned(g->residual) && is_aligned(g->row_add) &&
                 g->row_add_step % 8 == 0; /* NULL and 0 are aligned */
}

struct gemm_shape gemm_shape_of_linear(const struct linear_args *args) {
    const struct tensor *x = args->x;
    int64_t tokens = tensor_elements(x) / x->shape[0] / x->shape[x->rank - 1];
    struct gemm_shape s = {};
    s.dtype = x->dtype;
    s.geglu = args->weight->geglu && !args->ungated;
    s.plain = !args->weight->geglu && args->activation == ACTIVATION_NONE;
    s.n = args->weight->n;
    s.k = args->weight->k;
    s.h = s.h_out = 1;
    s.w = s.w_out = tokens;
    return s;
}

struct gemm_shape gemm_shape_of_conv2d(const struct conv2d_args *args) {
    struct gemm_shape s = {};
    s.dtype = args->x->dtype;
    s.is_conv = true;
    s.kind = args->weight->kind;
    s.plain = s.kind == CONV_1X1 && !args->row_add && args->y->dtype == s.dtype;
    s.n = args->weight->n;
    s.k = args->weight->k;
    s.h = args->x->shape[1];
    s.w = args->x->shape[2];
    s.h_out = args->y->shape[1];
    s.w_out = args->y->shape[2];
    s.k_shortcut = args->shortcut ? args->shortcut_weight->k : 0;
    return s;
}

/* Whether the shape is an upsampling that is computed as four phases: one whose output is exactly
 * twice as large. */
bool gemm_is_phased(const struct gemm_shape *s) {
    return s->is_conv && s->kind == CONV_3X3_UP && s->h_out == 2 * s->h && s->w_out == 2 * s->w;
}

int gemm_taps(const struct gemm_shape *s) {
    if (!s->is_conv || s->kind == CONV_1X1)
        return 1;
    return gemm_is_phased(s) ? 4 : 9;
}

static void set_geometry(struct gemm *g, const struct gemm_shape *s, int64_t rows) {
    const bool phased = gemm_is_phased(s);
    g->h = (int)s->h;
    g->w = (int)s->w;
    g->c_in = (int)s->k;
    g->limit_h = g->h;
    g->limit_w = g->w;
    g->grid_h = phased ? g->h : (int)s->h_out;
    g->grid_w = phased ? g->w : (int)s->w_out;
    g->taps = gemm_taps(s);
    g->taps_x = g->taps == 9 ? 3 : g->taps == 4 ? 2 : 1;
    g->stride = 1;
    g->before = g->taps > 1;
    g->phases = phased ? 4 : 1;
    if (s->is_conv && s->kind == CONV_3X3_UP && !phased) {
        /* Coordinates count pixels of the doubled image, which ends where the output ends. */
        g->shift = 1;
        g->limit_h = (int)s->h_out;
        g->limit_w = (int)s->w_out;
    } else if (s->is_conv && s->kind == CONV_3X3_DOWN) {
        g->stride = 2;
    } else if (s->is_conv && s->kind == CONV_3X3_DOWN_RIGHT) {
        g->stride = 2;
        g->before = 0;
    }
    g->m = (int)(rows * g->grid_h * g->grid_w);
}

static bool run_path(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err) {
    switch (candidate->path) {
    case GEMM_MMA:
        return gemm_mma_run(candidate, g, dtype, err);
    case GEMM_HOPPER:
        return gemm_hopper_run(candidate, g, dtype, err);
    default:
        return gemm_simt_run(candidate, g, dtype, err);
    }
}

static const void *advanced(const void *p, int64_t elements, size_t size) {
    return p ? (const char *)p + (size_t)elements * size : NULL;
}

/* Runs as many rows of the batch at a time as 32-bit counts and the scratch memory allow. */
static bool run(const struct gemm_candidate *candidate, struct gemm *g,
    const struct gemm_shape *shape, int64_t rows, enum dtype dtype, struct error *err) {
    const size_t size = dtype_size(dtype);
    const int64_t row_pixels = (int64_t)g->grid_h * g->grid_w;
    g->split = candidate->split;
    /* To save instructions, the clustered kernels do not support an f32 y. */
    g->clustered = gemm_is_clustered(candidate) && !g->y_is_f32;
    const size_t row_partial = g->split > 1 && !g->clustered
                                   ? (size_t)row_pixels * (size_t)g->phases * (size_t)g->split *
                                         (size_t)g->n_partial * 4
                                   : 0;
    int64_t step = INT32_MAX / 4 / row_pixels;
    if (row_partial && step > (int64_t)(cuda_workspace_bytes() / row_partial))
        step = (int64_t)(cuda_workspace_bytes() / row_partial);
    if (step < 1)
        return error_set(
            err, ERROR_UNSUPPORTED, "one row of %lld pixels is too large", (long long)row_pixels);
    for (int64_t first = 0; first < rows; first += step) {
        const int64_t count = rows - first < step ? rows - first : step;
        const int64_t outputs = first * row_pixels * g->phases * g->n_out;
        struct gemm part = *g;
        set_geometry(&part, shape, count);
        part.x = advanced(g->x, first * g->h * g->w * g->c_in, size);
        part.y = (void *)advanced(g->y, outputs, g->y_is_f32 ? sizeof(float) : size);
        part.residual = advanced(g->residual, outputs, size);
        part.shortcut = advanced(g->shortcut, first * row_pixels * g->c_shortcut, size);
        part.row_add = advanced(
            g->row_add, first * g->row_add_step, g->row_add_is_f32 ? sizeof(float) : size);
        if (row_partial) {
            part.partial = (float *)cuda_workspace((size_t)count * row_partial);
            if (!part.partial)
                return error_set(
                    err, ERROR_INTERNAL, "no scratch memory for %lld rows", (long long)count);
        }
        if (!run_path(candidate, &part, dtype, err) ||
            (row_partial && !gemm_reduce_run(&part, dtype, err)))
            return false;
    }
    return true;
}

extern "C" bool gemm_linear_with(
    const struct gemm_candidate *candidate, const struct linear_args *args, struct error *err) {
    const struct cuda_packed *p = (const struct cuda_packed *)args->weight;
    const struct gemm_shape shape = gemm_shape_of_linear(args);
    const int64_t rows = args->x->shape[0];
    struct gemm g = {};
    g.x = args->x->data;
    g.weight = p->weight;
    g.residual = args->residual ? args->residual->data : NULL;
    g.y = args->y->data;
    g.activation = args->activation;
    set_geometry(&g, &shape, rows);
    complete(&g, p, args->ungated);
    return run(candidate, &g, &shape, rows, args->x->dtype, err);
}

/* Computes y = the shortcut, then y += the convolution. */
static bool add_to_shortcut(
    const struct gemm_candidate *candidate, const struct conv2d_args *args, struct error *err) {
    const struct gemm_candidate plainest = { GEMM_SIMT, 0, 1 };
    struct conv2d_args before = {}, rest = *args;
    before.x = args->shortcut;
    before.weight = args->shortcut_weight;
    before.y = args->y;
    rest.shortcut = NULL;
    rest.shortcut_weight = NULL;
    rest.residual = args->y;
    return (candidate->path == GEMM_SIMT ? gemm_conv2d_with(&plainest, &before, err)
                                         : cuda_conv2d(&before, err)) &&
           gemm_conv2d_with(candidate, &rest, err);
}

/* Adds the channels of a shortcut to the sum. The shortcut's bias becomes a row_add that is the
 * same for all rows. */
static void take_shortcut(struct gemm *g, const struct conv2d_args *args) {
    const struct cuda_packed *p = (const struct cuda_packed *)args->shortcut_weight;
    g->shortcut = args->shortcut->data;
    g->shortcut_weight = p->weight;
    g->c_shortcut = (int)p->base.k;
    g->row_add = p->bias;
    g->row_add_is_f32 = p->bias != NULL;
    g->row_add_step = 0;
}

extern "C" bool gemm_conv2d_with(
    const struct gemm_candidate *candidate, const struct conv2d_args *args, struct error *err) {
    if (args->shortcut && candidate->path != GEMM_HOPPER)
        return add_to_shortcut(candidate, args, err);
    const struct cuda_packed *p = (const struct cuda_packed *)args->weight;
    const struct gemm_shape shape = gemm_shape_of_conv2d(args);
    const int64_t rows = args->x->shape[0];
    struct gemm g = {};
    g.x = args->x->data;
    g.weight = gemm_is_phased(&shape) ? p->phases : p->weight;
    g.residual = args->residual ? args->residual->data : NULL;
    g.y = args->y->data;
    g.y_is_f32 = args->y->dtype == DTYPE_F32 && shape.dtype != DTYPE_F32;
    if (args->row_add) {
        const struct tensor *rows_add = args->row_add;
        g.row_add = advanced(rows_add->data, args->row_add_offset, dtype_size(rows_add->dtype));
        g.row_add_is_f32 = rows_add->dtype == DTYPE_F32;
        g.row_add_step = (int)rows_add->shape[1];
    }
    if (args->shortcut)
        take_shortcut(&g, args);
    set_geometry(&g, &shape, rows);
    complete(&g, p, false);
    return run(candidate, &g, &shape, rows, args->x->dtype, err);
}

extern "C" bool cuda_linear(const struct linear_args *args, struct error *err) {
    const struct gemm_shape shape = gemm_shape_of_linear(args);
    const struct gemm_candidate candidate = gemm_pick(&shape, args->x->shape[0]);
    return gemm_linear_with(&candidate, args, err);
}

extern "C" bool cuda_conv2d(const struct conv2d_args *args, struct error *err) {
    const struct gemm_shape shape = gemm_shape_of_conv2d(args);
    const struct gemm_candidate candidate = gemm_pick(&shape, args->x->shape[0]);
    return gemm_conv2d_with(&candidate, args, err);
}
