/* The operations of training: the backward of each operation that has one, and what an optimizer
 * needs. kernels.h lists the forward operations; its conventions hold here too.
 *
 * Names: dy is the gradient of the loss with respect to y, and so on. A gradient d_* of an
 * activation has the activation's shape and dtype; a gradient of a parameter is f32. For every
 * entry, these rules hold in addition to those of kernels.h:
 *  - gradients of activations are written, or added to the present contents if `accumulate` is set;
 *  - a parameter's gradient is computed whole, in f32, and added once: contents = fl(contents + g),
 *    where g is what the same call writes if the contents are zeros. The rule is per call: a pass
 *    with several calls for a parameter adds several times. Sums inside g may be wider. So
 * gradients that are computed apart, each onto zeros, and then added in f32 in the order of the
 * calls have the bits that the calls leave one after the other;
 *  - a gradient that is not wanted is NULL;
 *  - dy is never written; a gradient that is written overlaps no input unless the field allows it;
 *  - row i of an activation's gradient depends on row i of the inputs only; a parameter's gradient
 *    is summed over rows in an order that depends on the shapes alone, so the same call gives the
 *    same bits with any number of threads.
 */
#ifndef KERNELS_BACKWARD_H
#define KERNELS_BACKWARD_H

#include "kernels/kernels.h"

/* Backward of y = x W^T + bias, without activation or gate. For a geglu weight, y is the output
 * with linear_args.ungated. dx (+)= dy W; dw[n][k] += dy^T x; dbias[n] += sum over tokens of dy. */
struct linear_backward_args {
    const struct tensor *dy; /* [..][n] */
    const struct packed *weight;
    const struct tensor *x; /* [..][k]; may be NULL if dw is NULL */
    struct tensor *dx;      /* like x */
    bool accumulate;        /* dx */
    struct tensor *dw;      /* f32 [n][k] */
    struct tensor *dbias;   /* f32 [n] */
};

/* Backward of y = conv(x) + bias + row_add + residual; the residual's gradient is dy itself.
 * d_row_add[row][row_add_offset + c] (+)= sum over pixels of dy; other channels of d_row_add are
 * not touched. */
struct conv2d_backward_args {
    const struct tensor *dy; /* [n][h'][w'][c_out] */
    const struct packed *weight;
    const struct tensor *x;   /* [n][h][w][c_in]; may be NULL if dw is NULL */
    struct tensor *dx;        /* like x */
    bool accumulate;          /* dx */
    struct tensor *dw;        /* f32 [c_out][kh][kw][c_in] */
    struct tensor *dbias;     /* f32 [c_out] */
    struct tensor *d_row_add; /* [n][>= c_out], f32 or dy's dtype */
    bool accumulate_row_add;
    int64_t row_add_offset;
};

/* Backward of y = group_norm(x), followed by SiLU if `silu` is set. Mean and variance are
 * recomputed. */
struct group_norm_backward_args {
    const struct tensor *dy, *x, *gamma, *beta;
    int groups;
    float eps;
    bool silu;
    struct tensor *dx; /* may be dy */
    bool accumulate;
    struct tensor *dgamma, *dbeta; /* f32 [c] */
};

struct layer_norm_backward_args {
    const struct tensor *dy, *x, *gamma;
    float eps;
    struct tensor *dx; /* may be dy */
    bool accumulate;
    struct tensor *dgamma, *dbeta; /* f32 [c] */
};

/* Backward of y = softmax(scale q k^T + mask) v. q, k, v, offsets, heads, lengths and causal mean
 * the same as in attention_args. dq, dk and dv have the shapes of q, k and v. Only the channels of
 * the heads, counted from the offsets, are written. If q, k and v are one tensor, dq, dk and dv may
 * therefore be one tensor too. Keys beyond a row's length get zeros, or are not touched if
 * `accumulate` is set. */
struct attention_backward_args {
    const struct tensor *q, *k, *v, *y, *dy;
    int64_t q_offset, k_offset, v_offset;
    int heads;
    int head_dim;
    float scale;
    bool causal;
    const struct tensor *lengths;
    struct tensor *dq, *dk, *dv; /* dk and dv may both be NULL, dq may not */
    bool accumulate;
};

/* dtable[ids[row][t]] += dy[row][t];  dpositions[t] += dy[row][t]. */
struct embedding_backward_args {
    const struct tensor *ids, *dy;
    struct tensor *dtable, *dpositions; /* f32 [vocab][c], [t_max][c] */
};

/* Backward of y = activation(x): dx (+)= dy activation'(x). With ACTIVATION_NONE: dx (+)= dy. */
struct activation_backward_args {
    const struct tensor *dy, *x; /* x is NULL with ACTIVATION_NONE */
    enum activation activation;
    struct tensor *dx; /* may be dy */
    bool accumulate;
};

/* Backward of y[j] = h[j] gelu(h[n/2 + j]). dh: [..][n]. */
struct geglu_backward_args {
    const struct tensor *dy, *h;
    struct tensor *dh;
    bool accumulate;
};

/* Backward of y = [a | b]: da (+)= dy[..][0..ca), db (+)= dy[..][ca..). */
struct concat_backward_args {
    const struct tensor *dy;
    struct tensor *da, *db;
    bool accumulate_a, accumulate_b;
};

/* The gradients of one term's factors, in the layout of the factors (low_rank_term). Padding is not
 * touched. */
struct low_rank_gradient {
    float *down, *up;
};

/* Backward of y += sum over terms of scale up (down x). The terms are the same for every row of x.
 * With u = down x and v = up^T dy: d_up += scale dy u^T; d_down += scale v x^T; dx (+)= scale
 * down^T v, summed over the terms. */
struct low_rank_backward_args {
    const struct tensor *dy, *x; /* x may be NULL if gradients is NULL */
    enum conv_kind kind;
    const struct low_rank_term *terms;         /* [count], in host memory */
    const struct low_rank_gradient *gradients; /* [count], in host memory; or NULL */
    int count;
    struct tensor *dx;
    bool accumulate;
};

/* y (+)= x * keep / (1 - p): inverted dropout. Element i (in row-major order over the whole tensor)
 * is kept if a random number in [0, 1) is at least p. The number is word i % 4 of philox4x32-10 at
 * counter {i / 4, *step (2 words), layer} with key *seed. The backward is the same call with dy as
 * x. Which elements of a row are kept depends on the row's place in the tensor. y may be x. */
struct dropout_args {
    const struct tensor *x;
    float p;                     /* 0 <= p < 1 */
    const uint64_t *seed, *step; /* host memory, read when the entry is called */
    uint32_t layer;
    struct tensor *y;
    bool accumulate;
};

/* loss[row] = mean over the row's elements of (prediction - target)^2, summed in f64; d_prediction
 * = weights[row] 2 (prediction - target) / elements of a row. All f32. */
struct mse_args {
    const struct tensor *prediction, *target; /* [n][...] */
    const float *weights;                     /* [n], in host memory */
    struct tensor *loss;                      /* [n] */
    struct tensor *d_prediction;              /* like prediction, or NULL */
};

/* The sums of squares of a flat array, one for each piece of SQUARE_PIECE elements; the last piece
 * may be shorter. For piece i of x:
 *   pieces[i][0] = sum of x[j]^2, in f64;  pieces[i][1] = number of elements that are not finite.
 * The order of a piece's sum depends on its length alone. So an array that is cut at multiples of
 * SQUARE_PIECE has the same pieces, bit for bit, whoever computes the parts with this table.
 * square_pieces_fold adds up all of them in their order. */
struct square_pieces_args {
    const struct tensor *x; /* f32 [n] */
    struct tensor *pieces;  /* f64 [square_pieces_count(n)][2] */
};
#define SQUARE_PIECE 65536

static inline int64_t square_pieces_count(int64_t n) {
    return (n + SQUARE_PIECE - 1) / SQUARE_PIECE;
}
/* Adds up pieces [count][2] in host memory: *sum, and *broken, the number of elements that are not
 * finite. */
static inline void square_pieces_fold(
    const double *pieces, int64_t count, double *sum, int64_t *broken) {
    *sum = 0;
    *broken = 0;
    for (int64_t i = 0; i < count; i++) {
        *sum += pieces[2 * i];
        *broken += (int64_t)pieces[2 * i + 1];
    }
}

/* One step of AdamW as in torch's single-tensor code, elementwise over flat f32 arrays:
 *   g = gradient * gradient_scale, clamped to -gradient_limit .. gradient_limit if that is not 0;
 *   p *= 1 - lr weight_decay;  m += (g - m) (1 - beta1);
 *   v = v beta2 + g g (1 - beta2);
 *   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps).
 */
struct adamw_args {
    struct tensor *parameter;      /* f32 [n] */
    const struct tensor *gradient; /* f32 [n] */
    struct tensor *m, *v;          /* f32 [n] */
    double lr, beta1, beta2, eps, weight_decay;
    double gradient_scale;
    int64_t step; /* from 1 */
    double gradient_limit;
};

/* One step of Lion (Chen et al. 2023), elementwise over flat f32 arrays, with g as in adamw:
 *   p *= 1 - lr weight_decay;  p -= lr sign(beta1 m + (1 - beta1) g);
 *   m = beta2 m + (1 - beta2) g.
 * sign(0) is 0. */
struct lion_args {
    struct tensor *parameter;      /* f32 [n] */
    const struct tensor *gradient; /* f32 [n] */
    struct tensor *m;              /* f32 [n] */
    double lr, beta1, beta2, weight_decay;
    double gradient_scale, gradient_limit;
};

/* The first half of a step of Prodigy (Mishchenko and Defazio 2023), over flat f32 arrays: the
 * moments, and the sums from which its step size d follows. With g as in adamw, plus decay p:
 *   sums[0] += sum of g (start - p);  m = beta1 m + d (1 - beta1) g;
 *   v = beta2 v + d^2 (1 - beta2) g g;  s = beta3 s + s_rate g;  sums[1] += sum of |s|.
 * Each sum is computed in f64, rounded, and added in f32. */
struct prodigy_sums_args {
    const struct tensor *parameter, *start, *gradient; /* f32 [n] */
    struct tensor *m, *v, *s;                          /* f32 [n] */
    struct tensor *sums;                               /* f32 [2] */
    double d, s_rate, beta1, beta2, beta3, decay;
    double gradient_scale, gradient_limit;
};

/* The second half of a step of Prodigy, elementwise over flat f32 arrays:
 *   p *= 1 - rate weight_decay;  p -= rate m / (sqrt(v) + eps). */
struct prodigy_args {
    struct tensor *parameter;   /* f32 [n] */
    const struct tensor *m, *v; /* f32 [n] */
    double rate, eps, weight_decay;
};

/* How a weight's numbers lie in a flat array: [n][taps][k], or with panels [n / panel][taps][k]
 * [panel], padded with numbers that do not belong to it; taps = side^2. torch has it as [n][k]
 * (is_matrix, side 1) or as [n][k][side][side]; vectors are [n][1][1][1]. */
struct factored_shape {
    int64_t n, k;
    int side, panel; /* side: 1 or 3; panel: 1 if there are none */
    bool is_matrix;
};

/* Return the number of row states and of column states: torch's matrix has n and k; each of the n
 * k matrices [side][side] has side and side. */
static inline int64_t factored_rows(const struct factored_shape *s) {
    return s->is_matrix ? s->n : s->n * s->k * s->side;
}
static inline int64_t factored_cols(const struct factored_shape *s) {
    return s->is_matrix ? s->k : s->n * s->k * s->side;
}
/* Returns the length of the array, with padding. */
static inline int64_t factored_floats(const struct factored_shape *s) {
    return (s->n + s->panel - 1) / s->panel * s->panel * s->k * s->side * s->side;
}

/* One step of Adafactor without a first moment (Shazeer and Stern 2018, as in transformers), for
 * one weight. With g as in adamw, and means over one row or column of a matrix:
 *   rows = beta2 rows + (1 - beta2) mean(g g + 1e-30), and cols likewise;
 *   u = g / sqrt(rows / (mean of the matrix's rows) cols);  u /= max(1, rms(u) / clip_threshold);
 *   rate = lr, with scale_parameter times max(1e-3, rms(p));
 *   p *= 1 - rate weight_decay;  p -= rate u.
 * Sums in f64. Padding is not touched. */
struct adafactor_args {
    struct tensor *parameter;      /* f32 [factored_floats] */
    const struct tensor *gradient; /* f32 [factored_floats] */
    struct factored_shape shape;
    struct tensor *rows, *cols; /* f32 [factored_rows], [factored_cols] */
    double lr, beta2, clip_threshold, weight_decay;
    bool scale_parameter;
    double gradient_scale, gradient_limit;
};
#define ADAFACTOR_EPS 1e-30
#define ADAFACTOR_LEAST_SCALE 1e-3

#endif
