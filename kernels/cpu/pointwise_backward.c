/* The gradients of elementwise operations, and the optimizers. */
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd.h"

/* Below this many elements a second thread costs more than it saves. */
#define PARALLEL_MIN 16384
/* Elements that one thread takes at a time. */
#define PIECE 8192
/* Elements that Prodigy sums as one piece; the sums of the pieces are added in order. */
#define SUM_PIECE 65536

typedef double vd __attribute__((vector_size(LANES * 8)));

INLINE vf slope(enum activation activation, vf x) {
    switch (activation) {
    case ACTIVATION_NONE:
        break;
    case ACTIVATION_SILU:
        return vf_silu_slope(x, 1.0f);
    case ACTIVATION_QUICK_GELU:
        return vf_silu_slope(x, 1.702f);
    case ACTIVATION_GELU:
        return vf_gelu_slope(x);
    }
    return splat(1.0f);
}

/* `dtype` is a compile-time constant. */
INLINE void activation_piece(
    const struct activation_backward_args *args, int64_t from, int64_t to, enum dtype dtype) {
    for (int64_t i = from; i < to; i += LANES) {
        vf dx = load_up_to(args->dy->data, dtype, i, to - i);
        if (args->activation != ACTIVATION_NONE)
            dx *= slope(args->activation, load_up_to(args->x->data, dtype, i, to - i));
        store_up_to(args->dx->data, dtype, i, to - i, args->accumulate, dx);
    }
}

bool NAME(activation_backward)(const struct activation_backward_args *args, struct error *err) {
    (void)err;
    int64_t n = tensor_elements(args->dy), pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < pieces; piece++) {
        int64_t from = piece * PIECE, to = from + PIECE < n ? from + PIECE : n;
        if (args->dy->dtype == DTYPE_F32)
            activation_piece(args, from, to, DTYPE_F32);
        else
            activation_piece(args, from, to, DTYPE_BF16);
    }
    return true;
}

/* Computes one token; `dtype` is a compile-time constant. */
INLINE void geglu_token(
    const struct geglu_backward_args *args, int64_t token, int64_t half, enum dtype dtype) {
    const int64_t value_at = token * 2 * half, gate_at = value_at + half;
    for (int64_t j = 0; j < half; j += LANES) {
        const int64_t count = half - j;
        vf dy = load_up_to(args->dy->data, dtype, token * half + j, count);
        vf value = load_up_to(args->h->data, dtype, value_at + j, count);
        vf gate = load_up_to(args->h->data, dtype, gate_at + j, count);
        store_up_to(
            args->dh->data, dtype, value_at + j, count, args->accumulate, dy * vf_gelu(gate));
        store_up_to(args->dh->data, dtype, gate_at + j, count, args->accumulate,
            dy * value * vf_gelu_slope(gate));
    }
}

bool NAME(geglu_backward)(const struct geglu_backward_args *args, struct error *err) {
    (void)err;
    const int64_t half = args->dy->shape[args->dy->rank - 1];
    const int64_t n = tensor_elements(args->dy), tokens = n / half;
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t token = 0; token < tokens; token++) {
        if (args->dy->dtype == DTYPE_F32)
            geglu_token(args, token, half, DTYPE_F32);
        else
            geglu_token(args, token, half, DTYPE_BF16);
    }
    return true;
}

/* dx (+)= `channels` of dy from `first` on, for one token; `dtype` is a compile-time constant. */
INLINE void take_channels(const struct tensor *dy, int64_t token, int64_t first, struct tensor *dx,
    bool accumulate, enum dtype dtype) {
    const int64_t width = dy->shape[dy->rank - 1], channels = dx->shape[dx->rank - 1];
    for (int64_t j = 0; j < channels; j += LANES)
        store_up_to(dx->data, dtype, token * channels + j, channels - j, accumulate,
            load_up_to(dy->data, dtype, token * width + first + j, channels - j));
}

bool NAME(concat_backward)(const struct concat_backward_args *args, struct error *err) {
    (void)err;
    const int64_t width = args->dy->shape[args->dy->rank - 1], n = tensor_elements(args->dy);
    struct tensor *const parts[] = { args->da, args->db };
    const bool accumulate[] = { args->accumulate_a, args->accumulate_b };
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t token = 0; token < n / width; token++) {
        for (int i = 0; i < 2; i++) {
            const int64_t c = parts[i] ? parts[i]->shape[parts[i]->rank - 1] : 0;
            const int64_t first = i ? width - c : 0;
            if (parts[i] && args->dy->dtype == DTYPE_F32)
                take_channels(args->dy, token, first, parts[i], accumulate[i], DTYPE_F32);
            else if (parts[i])
                take_channels(args->dy, token, first, parts[i], accumulate[i], DTYPE_BF16);
        }
    }
    return true;
}

/* piece[0] = the sum of the squares of x[from..to); piece[1] = the number of these elements that
 * are not finite. */
static void square_piece(const float *x, int64_t from, int64_t to, double piece[2]) {
    vd sums = { 0 };
    vi counts = { 0 };
    for (int64_t i = from; i < to; i += LANES) {
        vf v = load_up_to(x, DTYPE_F32, i, to - i);
        vd wide = __builtin_convertvector(v, vd);
        sums += wide * wide;
        counts += ((vi)v & 0x7f800000) == 0x7f800000; /* -1 */
    }
    piece[0] = piece[1] = 0;
    for (int i = 0; i < LANES; i++) {
        piece[0] += sums[i];
        piece[1] -= counts[i];
    }
}

bool NAME(square_pieces)(const struct square_pieces_args *args, struct error *err) {
    (void)err;
    const int64_t n = tensor_elements(args->x), count = square_pieces_count(n);
    double(*pieces)[2] = args->pieces->data;
#pragma omp parallel for if (count > 1)
    for (int64_t i = 0; i < count; i++)
        square_piece(
            args->x->data, i * SQUARE_PIECE, i + 1 < count ? (i + 1) * SQUARE_PIECE : n, pieces[i]);
    return true;
}

/* The factors of a step that are the same for all elements. */
struct adamw_factors {
    float scale, limit, keep, rest1, beta2, rest2, root, eps, size;
};

static void adamw_piece(
    const struct adamw_args *args, const struct adamw_factors *f, int64_t from, int64_t to) {
    float *p = args->parameter->data, *m = args->m->data, *v = args->v->data;
    for (int64_t i = from; i < to; i += LANES) {
        const int64_t count = to - i;
        vf g = load_up_to(args->gradient->data, DTYPE_F32, i, count) * f->scale;
        g = vf_max(splat(-f->limit), vf_min(splat(f->limit), g)); /* NaN stays */
        vf first = load_up_to(m, DTYPE_F32, i, count), second = load_up_to(v, DTYPE_F32, i, count);
        first += (g - first) * f->rest1;
        second = second * f->beta2 + g * g * f->rest2;
        vf step = first * f->size / (vf_sqrt(second) * f->root + f->eps);
        store_up_to(m, DTYPE_F32, i, count, false, first);
        store_up_to(v, DTYPE_F32, i, count, false, second);
        store_up_to(
            p, DTYPE_F32, i, count, false, load_up_to(p, DTYPE_F32, i, count) * f->keep - step);
    }
}

bool NAME(adamw)(const struct adamw_args *args, struct error *err) {
    (void)err;
    const int64_t n = tensor_elements(args->parameter), pieces = (n + PIECE - 1) / PIECE;
    const struct adamw_factors f = { .scale = (float)args->gradient_scale,
        .limit = args->gradient_limit > 0 ? (float)args->gradient_limit : INFINITY,
        .keep = (float)(1.0 - args->lr * args->weight_decay),
        .rest1 = (float)(1.0 - args->beta1),
        .beta2 = (float)args->beta2,
        .rest2 = (float)(1.0 - args->beta2),
        .root = (float)(1.0 / sqrt(1.0 - pow(args->beta2, (double)args->step))),
        .eps = (float)args->eps,
        .size = (float)(args->lr / (1.0 - pow(args->beta1, (double)args->step))) };
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < pieces; piece++)
        adamw_piece(args, &f, piece * PIECE, piece + 1 < pieces ? (piece + 1) * PIECE : n);
    return true;
}

/* The unscaled gradient from i on, clamped if `limit` is not 0. */
INLINE vf scaled(
    const struct tensor *gradient, int64_t i, int64_t count, double scale, double limit) {
    const float most = limit > 0 ? (float)limit : INFINITY;
    const vf g = load_up_to(gradient->data, DTYPE_F32, i, count) * (float)scale;
    return vf_max(splat(-most), vf_min(splat(most), g)); /* NaN stays */
}

static void lion_piece(const struct lion_args *args, int64_t from, int64_t to) {
    float *p = args->parameter->data, *m = args->m->data;
    const float beta1 = (float)args->beta1, rest1 = (float)(1.0 - args->beta1);
    const float beta2 = (float)args->beta2, rest2 = (float)(1.0 - args->beta2);
    const float keep = (float)(1.0 - args->lr * args->weight_decay), lr = (float)args->lr;
    for (int64_t i = from; i < to; i += LANES) {
        const int64_t count = to - i;
        const vf g = scaled(args->gradient, i, count, args->gradient_scale, args->gradient_limit);
        const vf mean = load_up_to(m, DTYPE_F32, i, count), way = mean * beta1 + g * rest1;
        const vf step = choose(way > 0.0f, splat(lr), choose(way < 0.0f, splat(-lr), splat(0.0f)));
        const vf kept = load_up_to(p, DTYPE_F32, i, count) * keep;
        store_up_to(m, DTYPE_F32, i, count, false, mean * beta2 + g * rest2);
        store_up_to(p, DTYPE_F32, i, count, false, kept - step);
    }
}

bool NAME(lion)(const struct lion_args *args, struct error *err) {
    (void)err;
    const int64_t n = tensor_elements(args->parameter), pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < pieces; piece++)
        lion_piece(args, piece * PIECE, piece + 1 < pieces ? (piece + 1) * PIECE : n);
    return true;
}

/* sums[0] = the sum of g (start - p), sums[1] = that of |s|, over [from..to). */
static void prodigy_sums_piece(
    const struct prodigy_sums_args *args, int64_t from, int64_t to, double sums[2]) {
    float *m = args->m->data, *v = args->v->data, *s = args->s->data;
    const float beta1 = (float)args->beta1, to_m = (float)(args->d * (1.0 - args->beta1));
    const float beta2 = (float)args->beta2;
    const float to_v = (float)(args->d * args->d * (1.0 - args->beta2));
    const float beta3 = (float)args->beta3, to_s = (float)args->s_rate;
    const float decay = (float)args->decay;
    vd ways = { 0 }, sizes = { 0 };
    for (int64_t i = from; i < to; i += LANES) {
        const int64_t count = to - i;
        const vf p = load_up_to(args->parameter->data, DTYPE_F32, i, count);
        const vf start = load_up_to(args->start->data, DTYPE_F32, i, count);
        const vf g = scaled(args->gradient, i, count, args->gradient_scale, args->gradient_limit) +
                     p * decay;
        const vf size = load_up_to(s, DTYPE_F32, i, count) * beta3 + g * to_s;
        ways += __builtin_convertvector(g, vd) * __builtin_convertvector(start - p, vd);
        sizes += __builtin_convertvector(vf_abs(size), vd);
        store_up_to(
            m, DTYPE_F32, i, count, false, load_up_to(m, DTYPE_F32, i, count) * beta1 + g * to_m);
        store_up_to(v, DTYPE_F32, i, count, false,
            load_up_to(v, DTYPE_F32, i, count) * beta2 + g * g * to_v);
        store_up_to(s, DTYPE_F32, i, count, false, size);
    }
    sums[0] = sums[1] = 0;
    for (int i = 0; i < LANES; i++) {
        sums[0] += ways[i];
        sums[1] += sizes[i];
    }
}

bool NAME(prodigy_sums)(const struct prodigy_sums_args *args, struct error *err) {
    const int64_t n = tensor_elements(args->parameter), pieces = (n + SUM_PIECE - 1) / SUM_PIECE;
    double(*parts)[2] = cpu_scratch((size_t)pieces * sizeof(*parts), err);
    if (!parts || cpu_plans())
        return parts != NULL;
#pragma omp parallel for if (pieces > 1)
    for (int64_t i = 0; i < pieces; i++)
        prodigy_sums_piece(args, i * SUM_PIECE, i + 1 < pieces ? (i + 1) * SUM_PIECE : n, parts[i]);
    double all[2] = { 0 };
    for (int64_t i = 0; i < pieces; i++) {
        all[0] += parts[i][0];
        all[1] += parts[i][1];
    }
    ((float *)args->sums->data)[0] += (float)all[0];
    ((float *)args->sums->data)[1] += (float)all[1];
    return true;
}

static void prodigy_piece(const struct prodigy_args *args, int64_t from, int64_t to) {
    float *p = args->parameter->data;
    const float keep = (float)(1.0 - args->rate * args->weight_decay), rate = (float)args->rate;
    const float eps = (float)args->eps;
    for (int64_t i = from; i < to; i += LANES) {
        const int64_t count = to - i;
        const vf m = load_up_to(args->m->data, DTYPE_F32, i, count);
        const vf v = load_up_to(args->v->data, DTYPE_F32, i, count);
        const vf kept = load_up_to(p, DTYPE_F32, i, count) * keep;
        store_up_to(p, DTYPE_F32, i, count, false, kept - rate * m / (vf_sqrt(v) + eps));
    }
}

bool NAME(prodigy)(const struct prodigy_args *args, struct error *err) {
    (void)err;
    const int64_t n = tensor_elements(args->parameter), pieces = (n + PIECE - 1) / PIECE;
#pragma omp parallel for if (n >= PARALLEL_MIN)
    for (int64_t piece = 0; piece < pieces; piece++)
        prodigy_piece(args, piece * PIECE, piece + 1 < pieces ? (piece + 1) * PIECE : n);
    return true;
}
