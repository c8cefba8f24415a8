/* The operations of training: the backward of each operation that has one, and what an optimizer
 * needs. kernels.h lists the forward ones; the conventions there hold here too.
 *
 * Names: dy is the gradient of the loss with respect to y, and so on; d_* of an activation has its
 * tensor's shape and dtype, d_* of a parameter is f32. Beyond kernels.h, for every entry:
 *  - gradients of activations are written, or added to what is there if `accumulate` says so;
 *    gradients of parameters are always added to what is there;
 *  - a gradient that nobody wants is NULL;
 *  - dy is never written; a written gradient overlaps no input unless the field says so;
 *  - row i of a gradient of an activation depends on row i of the inputs only; a gradient of a
 *    parameter is summed over rows in an order that depends on the shapes alone, so that the same
 *    call gives the same bits, whatever the number of threads.
 */
#ifndef KERNELS_BACKWARD_H
#define KERNELS_BACKWARD_H

#include "kernels/kernels.h"

/* Of y = x W^T + bias (no activation, no gate: linear_args.ungated where the weight is geglu).
 * dx (+)= dy W;  dw[n][k] += dy^T x;  dbias[n] += sum over tokens of dy. */
struct linear_backward_args {
    const struct tensor *dy; /* [..][n] */
    const struct packed *weight;
    const struct tensor *x; /* [..][k]; NULL without dw */
    struct tensor *dx;      /* like x */
    bool accumulate;        /* dx */
    struct tensor *dw;      /* f32 [n][k] */
    struct tensor *dbias;   /* f32 [n] */
};

/* Of y = conv(x) + bias + row_add + residual (whose gradient is dy itself).
 * d_row_add[row][row_add_offset + c] (+)= sum over pixels of dy; its other channels are left
 * alone. */
struct conv2d_backward_args {
    const struct tensor *dy; /* [n][h'][w'][c_out] */
    const struct packed *weight;
    const struct tensor *x;   /* [n][h][w][c_in]; NULL without dw */
    struct tensor *dx;        /* like x */
    bool accumulate;          /* dx */
    struct tensor *dw;        /* f32 [c_out][kh][kw][c_in] */
    struct tensor *dbias;     /* f32 [c_out] */
    struct tensor *d_row_add; /* [n][>= c_out], f32 or dy's dtype */
    bool accumulate_row_add;
    int64_t row_add_offset;
};

/* Of y = group_norm(x), then SiLU if it was asked for. Mean and variance are computed again. */
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

/* Of y = softmax(scale q k^T + mask) v; q, k, v, offsets, heads, lengths and causal as in
 * attention_args. dq, dk and dv have the shapes of q, k and v; only the channels of the heads, from
 * the offsets on, are written, so that they may be one tensor as q, k and v may be one. Keys behind
 * a row's length get zeros (nothing, if accumulating). */
struct attention_backward_args {
    const struct tensor *q, *k, *v, *y, *dy;
    int64_t q_offset, k_offset, v_offset;
    int heads;
    int head_dim;
    float scale;
    bool causal;
    const struct tensor *lengths;
    struct tensor *dq, *dk, *dv; /* all or, where k and v need none, dq alone */
    bool accumulate;
};

/* dtable[ids[row][t]] += dy[row][t];  dpositions[t] += dy[row][t]. */
struct embedding_backward_args {
    const struct tensor *ids, *dy;
    struct tensor *dtable, *dpositions; /* f32 [vocab][c], [t_max][c] */
};

/* Of y = activation(x): dx (+)= dy activation'(x). With ACTIVATION_NONE: dx (+)= dy. */
struct activation_backward_args {
    const struct tensor *dy, *x; /* x NULL with ACTIVATION_NONE */
    enum activation activation;
    struct tensor *dx; /* may be dy */
    bool accumulate;
};

/* Of y[j] = h[j] gelu(h[n/2 + j]): dh [..][n] (+)=. */
struct geglu_backward_args {
    const struct tensor *dy, *h;
    struct tensor *dh;
    bool accumulate;
};

/* Of y = [a | b]: da (+)= dy[..][0..ca), db (+)= dy[..][ca..). */
struct concat_backward_args {
    const struct tensor *dy;
    struct tensor *da, *db;
    bool accumulate_a, accumulate_b;
};

/* The gradients of one term's factors, in the factors' own layout (low_rank_term), padding
 * untouched. */
struct low_rank_gradient {
    float *down, *up;
};

/* Of y += sum over terms of scale up (down x), the same terms for every row of x.
 * With u = down x and v = up^T dy:  d_up += scale dy u^T;  d_down += scale v x^T;
 * dx (+)= scale down^T v, summed over the terms. */
struct low_rank_backward_args {
    const struct tensor *dy, *x; /* x NULL without gradients */
    enum conv_kind kind;
    const struct low_rank_term *terms;         /* host memory: count */
    const struct low_rank_gradient *gradients; /* host memory: count, or NULL */
    int count;
    struct tensor *dx;
    bool accumulate;
};

/* y (+)= x * keep / (1 - p): inverted dropout. Element i (counted in row-major order over the whole
 * tensor) is kept where philox4x32-10's word i % 4, at counter {i / 4, *step (2 words), layer} and
 * key *seed, as a number in [0, 1), is at least p. The same call with dy for x is its backward. A
 * row's place in the tensor decides what it keeps. y may be x. */
struct dropout_args {
    const struct tensor *x;
    float p;                     /* 0 <= p < 1 */
    const uint64_t *seed, *step; /* host memory, read when the entry is called */
    uint32_t layer;
    struct tensor *y;
    bool accumulate;
};

/* loss[row] = mean over the row's elements of (prediction - target)^2, in f64 sums;
 * d_prediction = weights[row] 2 (prediction - target) / elements of a row. All f32. */
struct mse_args {
    const struct tensor *prediction, *target; /* [n][...] */
    const float *weights;                     /* host memory [n] */
    struct tensor *loss;                      /* [n] */
    struct tensor *d_prediction;              /* like prediction, or NULL */
};

/* sums[0] = sum of x[i]^2 in f64 (rounded), sums[1] = number of elements that are not finite.
 * x f32 [n]; sums f32 [2]. */
struct sum_squares_args {
    const struct tensor *x;
    struct tensor *sums;
};

/* One step of AdamW as torch's single-tensor code does it, elementwise over flat f32 arrays:
 *   g = gradient * gradient_scale, cut to -gradient_limit .. gradient_limit if that is not 0;
 *   p *= 1 - lr weight_decay;  m += (g - m) (1 - beta1);
 *   v = v beta2 + g g (1 - beta2);
 *   p -= lr / (1 - beta1^step) * m / (sqrt(v) / sqrt(1 - beta2^step) + eps). */
struct adamw_args {
    struct tensor *parameter;      /* f32 [n] */
    const struct tensor *gradient; /* f32 [n] */
    struct tensor *m, *v;          /* f32 [n] */
    double lr, beta1, beta2, eps, weight_decay;
    double gradient_scale;
    int64_t step; /* from 1 */
    double gradient_limit;
};

#endif
