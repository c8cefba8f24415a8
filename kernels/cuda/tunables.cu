/* The kinds of operations that several kernels can compute, for the tuner. */
#include "kernels/cuda/attention_candidates.h"
#include "kernels/cuda/candidates.h"
#include "kernels/cuda/norm_candidates.h"
#include "kernels/cuda/tuner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const conv_names[] = { "conv1x1", "conv3x3", "conv3x3-down",
    "conv3x3-down-right", "conv3x3-up" };

/* --- linear and conv2d --- */

static void gemm_describe(const void *shape, char *text, size_t size) {
    const struct gemm_shape *s = (const struct gemm_shape *)shape;
    /* What follows the sum, where that decides what can compute it. */
    const bool more = (!s->is_conv || s->kind == CONV_1X1) && !s->plain;
    snprintf(text, size, "%s%s %s n%lld k%lld %lldx%lld to %lldx%lld",
        s->is_conv ? conv_names[s->kind] : "linear",
        s->geglu ? "-geglu"
        : more   ? "-more"
                 : "",
        dtype_name(s->dtype), (long long)s->n, (long long)s->k, (long long)s->h, (long long)s->w,
        (long long)s->h_out, (long long)s->w_out);
}

/* The candidates of a shape. Those of the last one are kept, since they are asked for one by one.
 */
static const struct gemm_candidate *gemm_list(const void *shape, int *count) {
    static struct gemm_candidate all[GEMM_MAX_CANDIDATES];
    static struct gemm_shape of;
    static int of_count;
    if (!of_count || memcmp(&of, shape, sizeof(of)) != 0) {
        memcpy(&of, shape, sizeof(of));
        of_count = gemm_candidates(&of, 2, all);
    }
    *count = of_count;
    return all;
}

static int gemm_count(const void *shape) {
    int count;
    (void)gemm_list(shape, &count);
    return count;
}

static void gemm_name(const void *shape, int candidate, char name[TUNER_NAME_BYTES]) {
    int count;
    gemm_candidate_name(&gemm_list(shape, &count)[candidate], name, TUNER_NAME_BYTES);
}

/* x, the residual where there may be one, and for a convolution what is added to each row. */
static bool gemm_prepare(const void *shape, struct trial *t, struct error *err) {
    const struct gemm_shape *s = (const struct gemm_shape *)shape;
    const int64_t rows = t->rows, taps = !s->is_conv || s->kind == CONV_1X1 ? 1 : 9;
    if (!trial_weight(t, s->n, s->k, s->is_conv, s->kind, s->geglu, s->dtype, err))
        return false;
    t->flops = 2.0 * (double)(rows * s->h_out * s->w_out) * (double)(s->n * s->k * taps);
    if (s->is_conv) {
        t->y = tensor_4d(NULL, s->dtype, rows, s->h_out, s->w_out, s->n);
        return trial_input(t, tensor_4d(NULL, s->dtype, rows, s->h, s->w, s->k), err) &&
               trial_input(t, t->y, err) &&
               trial_input(t, tensor_2d(NULL, s->dtype, rows, s->n), err);
    }
    t->y = tensor_3d(NULL, s->dtype, rows, s->w, s->geglu ? s->n / 2 : s->n);
    return trial_input(t, tensor_3d(NULL, s->dtype, rows, s->w, s->k), err) &&
           trial_input(t, t->y, err);
}

static bool gemm_run(const void *shape, int candidate, const struct trial *t, int64_t rows,
    struct tensor *y, struct error *err) {
    const struct gemm_shape *s = (const struct gemm_shape *)shape;
    int count;
    const struct gemm_candidate *chosen = &gemm_list(shape, &count)[candidate];
    struct tensor x = tensor_rows(&t->inputs[0], 0, rows);
    struct tensor residual = tensor_rows(&t->inputs[1], 0, rows), out = tensor_rows(y, 0, rows);
    if (s->is_conv) {
        struct tensor row_add = tensor_rows(&t->inputs[2], 0, rows);
        struct conv2d_args args = {};
        args.x = &x;
        args.weight = t->weight;
        args.row_add = s->plain ? NULL : &row_add;
        args.residual = &residual;
        args.y = &out;
        return gemm_conv2d_with(chosen, &args, err);
    }
    struct linear_args args = {};
    args.x = &x;
    args.weight = t->weight;
    args.residual = &residual;
    args.y = &out;
    return gemm_linear_with(chosen, &args, err);
}

static bool gemm_choose(const void *shape, int candidate) {
    int count;
    return gemm_select((const struct gemm_shape *)shape, &gemm_list(shape, &count)[candidate]);
}

static bool gemm_choose_by_name(const void *shape, const char *name) {
    struct gemm_candidate candidate;
    return gemm_find((const struct gemm_shape *)shape, name, &candidate) &&
           gemm_select((const struct gemm_shape *)shape, &candidate);
}

const struct tunable tunable_gemm = { "gemm", sizeof(struct gemm_shape), gemm_describe, gemm_count,
    gemm_name, gemm_prepare, gemm_run, gemm_choose, gemm_choose_by_name };

void note_linear(const struct linear_args *args) {
    const struct gemm_shape shape = gemm_shape_of_linear(args);
    tuner_note_rows(&tunable_gemm, &shape, args->x->shape[0]);
}

void note_conv2d(const struct conv2d_args *args) {
    const struct gemm_shape shape = gemm_shape_of_conv2d(args);
    tuner_note_rows(&tunable_gemm, &shape, args->x->shape[0]);
}

/* --- attention --- */

static void attention_describe(const void *shape, char *text, size_t size) {
    const struct attention_shape *s = (const struct attention_shape *)shape;
    snprintf(text, size, "%s heads%d d%d q%lld k%lld%s%s", dtype_name(s->dtype), s->heads,
        s->head_dim, (long long)s->tq, (long long)s->tk, s->causal ? " causal" : "",
        s->plain_only ? " unaligned" : "");
}

static int attention_count(const void *shape) {
    struct attention_candidate all[ATTENTION_MAX_CANDIDATES];
    return attention_candidates((const struct attention_shape *)shape, all);
}

static void attention_name(const void *shape, int candidate, char name[TUNER_NAME_BYTES]) {
    struct attention_candidate all[ATTENTION_MAX_CANDIDATES];
    attention_candidates((const struct attention_shape *)shape, all);
    attention_candidate_name(&all[candidate], name, TUNER_NAME_BYTES);
}

/* q [rows][tq][channels], k and v side by side as a fused projection leaves them. */
static bool attention_prepare(const void *shape, struct trial *t, struct error *err) {
    const struct attention_shape *s = (const struct attention_shape *)shape;
    const int64_t channels = (int64_t)s->heads * s->head_dim;
    t->y = tensor_3d(NULL, s->dtype, t->rows, s->tq, channels);
    t->flops = 4.0 * (double)(t->rows * s->tq * s->tk * channels);
    return trial_input(t, t->y, err) &&
           trial_input(t, tensor_3d(NULL, s->dtype, t->rows, s->tk, 2 * channels), err);
}

static bool attention_run(const void *shape, int candidate, const struct trial *t, int64_t rows,
    struct tensor *y, struct error *err) {
    const struct attention_shape *s = (const struct attention_shape *)shape;
    struct attention_candidate all[ATTENTION_MAX_CANDIDATES];
    attention_candidates(s, all);
    struct tensor q = tensor_rows(&t->inputs[0], 0, rows), kv = tensor_rows(&t->inputs[1], 0, rows);
    struct tensor out = tensor_rows(y, 0, rows);
    struct attention_args args = {};
    args.q = &q;
    args.k = args.v = &kv;
    args.v_offset = (int64_t)s->heads * s->head_dim;
    args.heads = s->heads;
    args.head_dim = s->head_dim;
    args.scale = 1.0f / sqrtf((float)s->head_dim);
    args.causal = s->causal;
    args.y = &out;
    return attention_with(&all[candidate], &args, err);
}

static bool attention_choose(const void *shape, int candidate) {
    struct attention_candidate all[ATTENTION_MAX_CANDIDATES];
    attention_candidates((const struct attention_shape *)shape, all);
    return attention_select((const struct attention_shape *)shape, &all[candidate]);
}

const struct tunable tunable_attention = { "attention", sizeof(struct attention_shape),
    attention_describe, attention_count, attention_name, attention_prepare, attention_run,
    attention_choose };

void note_attention(const struct attention_args *args) {
    const struct attention_shape shape = attention_shape_of(args);
    tuner_note_rows(&tunable_attention, &shape, args->q->shape[0]);
}

/* --- group norm --- */

static void group_norm_describe(const void *shape, char *text, size_t size) {
    const struct group_norm_shape *s = (const struct group_norm_shape *)shape;
    snprintf(text, size, "%s pixels%lld c%lld groups%d", dtype_name(s->dtype), (long long)s->pixels,
        (long long)s->channels, s->groups);
}

static int group_norm_count(const void *shape) {
    struct group_norm_candidate all[GROUP_NORM_MAX_CANDIDATES];
    return group_norm_candidates((const struct group_norm_shape *)shape, all);
}

static void group_norm_name(const void *shape, int candidate, char name[TUNER_NAME_BYTES]) {
    struct group_norm_candidate all[GROUP_NORM_MAX_CANDIDATES];
    group_norm_candidates((const struct group_norm_shape *)shape, all);
    snprintf(name, TUNER_NAME_BYTES, "%s", group_norm_candidate_name(&all[candidate]));
}

static bool group_norm_prepare(const void *shape, struct trial *t, struct error *err) {
    const struct group_norm_shape *s = (const struct group_norm_shape *)shape;
    t->y = tensor_4d(NULL, s->dtype, t->rows, s->pixels, 1, s->channels);
    return trial_input(t, t->y, err) &&
           trial_input(t, tensor_1d(NULL, DTYPE_F32, s->channels), err) &&
           trial_input(t, tensor_1d(NULL, DTYPE_F32, s->channels), err);
}

static bool group_norm_run(const void *shape, int candidate, const struct trial *t, int64_t rows,
    struct tensor *y, struct error *err) {
    const struct group_norm_shape *s = (const struct group_norm_shape *)shape;
    struct group_norm_candidate all[GROUP_NORM_MAX_CANDIDATES];
    group_norm_candidates(s, all);
    struct tensor x = tensor_rows(&t->inputs[0], 0, rows), out = tensor_rows(y, 0, rows);
    struct group_norm_args args = {};
    args.x = &x;
    args.gamma = &t->inputs[1];
    args.beta = &t->inputs[2];
    args.groups = s->groups;
    args.eps = 1e-5f;
    args.silu = true;
    args.y = &out;
    return group_norm_with(&all[candidate], &args, err);
}

static bool group_norm_choose(const void *shape, int candidate) {
    struct group_norm_candidate all[GROUP_NORM_MAX_CANDIDATES];
    group_norm_candidates((const struct group_norm_shape *)shape, all);
    return group_norm_select((const struct group_norm_shape *)shape, &all[candidate]);
}

const struct tunable tunable_group_norm = { "group_norm", sizeof(struct group_norm_shape),
    group_norm_describe, group_norm_count, group_norm_name, group_norm_prepare, group_norm_run,
    group_norm_choose };

void note_group_norm(const struct group_norm_args *args) {
    const struct group_norm_shape shape = group_norm_shape_of(args);
    tuner_note_rows(&tunable_group_norm, &shape, args->x->shape[0]);
}
