/* Describes to the tuner each kind of operation that several kernels can compute. */
#include "kernels/cuda/attention/attention_candidates.h"
#include "kernels/cuda/gemm/gemm_candidates.h"
#include "kernels/cuda/norm/norm_candidates.h"
#include "kernels/cuda/tune/tuner.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const conv_names[] = { "conv1x1", "conv3x3", "conv3x3-down",
    "conv3x3-down-right", "conv3x3-up" };

/* Those functions of a tunable that are the same for every kind of operation. Each kind gives three
 * functions: LIST lists the candidates, NAME names one, SELECT selects one. */
template <class SHAPE, class CANDIDATE, int MOST, int (*LIST)(const SHAPE *, CANDIDATE *),
    const char *(*NAME)(const CANDIDATE *, char *, size_t),
    bool (*SELECT)(const SHAPE *, const CANDIDATE *)>
struct kind {
    /* Keeps the last shape's candidates, because callers ask for them one by one. */
    static const CANDIDATE *all(const void *shape, int *count) {
        static CANDIDATE list[MOST];
        static SHAPE of;
        static int of_count;
        if (!of_count || memcmp(&of, shape, sizeof(of)) != 0) {
            memcpy(&of, shape, sizeof(of));
            of_count = LIST(&of, list);
        }
        *count = of_count;
        return list;
    }

    static const CANDIDATE *at(const void *shape, int candidate) {
        int count;
        return &all(shape, &count)[candidate];
    }

    static int count(const void *shape) {
        int count;
        (void)all(shape, &count);
        return count;
    }

    static void name(const void *shape, int candidate, char text[TUNER_NAME_BYTES]) {
        NAME(at(shape, candidate), text, TUNER_NAME_BYTES);
    }

    static bool choose(const void *shape, int candidate) {
        return SELECT((const SHAPE *)shape, at(shape, candidate));
    }
};

/* --- linear and conv2d --- */

static void gemm_describe(const void *shape, char *text, size_t size) {
    const struct gemm_shape *s = (const struct gemm_shape *)shape;
    /* A linear layer or 1x1 convolution after which more than a bias and a residual may come is a
     * problem of its own. */
    const bool more = (!s->is_conv || s->kind == CONV_1X1) && !s->plain;
    snprintf(text, size, "%s%s %s n%lld k%lld %lldx%lld to %lldx%lld",
        s->is_conv ? conv_names[s->kind] : "linear",
        s->geglu ? "-geglu"
        : more   ? "-more"
                 : "",
        dtype_name(s->dtype), (long long)s->n, (long long)s->k, (long long)s->h, (long long)s->w,
        (long long)s->h_out, (long long)s->w_out);
    const size_t used = strlen(text);
    if (s->k_shortcut)
        snprintf(text + used, size - used, " shortcut k%lld", (long long)s->k_shortcut);
}

static int gemm_list(const struct gemm_shape *shape, struct gemm_candidate *out) {
    return gemm_candidates(shape, 2, out);
}

typedef kind<struct gemm_shape, struct gemm_candidate, GEMM_MAX_CANDIDATES, gemm_list,
    gemm_candidate_name, gemm_select>
    gemm;

/* The inputs are x, then the shortcut of a convolution that has one. A layer without a shortcut has
 * the residual instead and, if it is a convolution, row_add. */
static bool gemm_prepare(const void *shape, struct trial *t, struct error *err) {
    const struct gemm_shape *s = (const struct gemm_shape *)shape;
    const int64_t rows = t->rows, taps = !s->is_conv || s->kind == CONV_1X1 ? 1 : 9;
    if (!trial_weight(t, s->n, s->k, s->is_conv, s->kind, s->geglu, s->dtype, err))
        return false;
    t->flops = 2.0 * (double)(rows * s->h_out * s->w_out) * (double)s->n *
               (double)(s->k * taps + s->k_shortcut);
    if (!s->is_conv) {
        t->y = tensor_3d(NULL, s->dtype, rows, s->w, s->geglu ? s->n / 2 : s->n);
        return trial_input(t, tensor_3d(NULL, s->dtype, rows, s->w, s->k), err) &&
               trial_input(t, t->y, err);
    }
    t->y = tensor_4d(NULL, s->dtype, rows, s->h_out, s->w_out, s->n);
    if (!trial_input(t, tensor_4d(NULL, s->dtype, rows, s->h, s->w, s->k), err))
        return false;
    if (s->k_shortcut)
        return trial_weight(t, s->n, s->k_shortcut, true, CONV_1X1, false, s->dtype, err) &&
               trial_input(t, tensor_4d(NULL, s->dtype, rows, s->h, s->w, s->k_shortcut), err);
    return trial_input(t, t->y, err) && trial_input(t, tensor_2d(NULL, s->dtype, rows, s->n), err);
}

static bool gemm_run(const void *shape, int candidate, const struct trial *t, int64_t rows,
    struct tensor *y, struct error *err) {
    const struct gemm_shape *s = (const struct gemm_shape *)shape;
    const struct gemm_candidate *chosen = gemm::at(shape, candidate);
    struct tensor x = tensor_rows(&t->inputs[0], 0, rows);
    struct tensor second = tensor_rows(&t->inputs[1], 0, rows), out = tensor_rows(y, 0, rows);
    if (s->is_conv) {
        struct tensor row_add;
        struct conv2d_args args = {};
        args.x = &x;
        args.weight = t->weights[0];
        args.y = &out;
        if (s->k_shortcut) {
            args.shortcut = &second;
            args.shortcut_weight = t->weights[1];
        } else {
            row_add = tensor_rows(&t->inputs[2], 0, rows);
            args.row_add = s->plain ? NULL : &row_add;
            args.residual = &second;
        }
        return gemm_conv2d_with(chosen, &args, err);
    }
    struct linear_args args = {};
    args.x = &x;
    args.weight = t->weights[0];
    args.residual = s->geglu ? NULL : &second; /* like models: no residual with GEGLU */
    args.y = &out;
    return gemm_linear_with(chosen, &args, err);
}

const struct tunable tunable_gemm = { "gemm", sizeof(struct gemm_shape), gemm_describe, gemm::count,
    gemm::name, gemm_prepare, gemm_run, gemm::choose };

/* --- attention --- */

static void attention_describe(const void *shape, char *text, size_t size) {
    const struct attention_shape *s = (const struct attention_shape *)shape;
    snprintf(text, size, "%s heads%d d%d q%lld k%lld%s%s", dtype_name(s->dtype), s->heads,
        s->head_dim, (long long)s->tq, (long long)s->tk, s->causal ? " causal" : "",
        s->plain_only ? " unaligned" : "");
}

typedef kind<struct attention_shape, struct attention_candidate, ATTENTION_MAX_CANDIDATES,
    attention_candidates, attention_candidate_name, attention_select>
    attention;

/* q is [rows][tq][channels]; k and v are side by side in one tensor, like the result of a fused
 * projection. */
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
    const struct attention_candidate *chosen = attention::at(shape, candidate);
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
    return attention_with(chosen, &args, err);
}

const struct tunable tunable_attention = { "attention", sizeof(struct attention_shape),
    attention_describe, attention::count, attention::name, attention_prepare, attention_run,
    attention::choose };

/* --- group norm --- */

static void group_norm_describe(const void *shape, char *text, size_t size) {
    const struct group_norm_shape *s = (const struct group_norm_shape *)shape;
    snprintf(text, size, "%s pixels%lld c%lld groups%d", dtype_name(s->dtype), (long long)s->pixels,
        (long long)s->channels, s->groups);
}

typedef kind<struct group_norm_shape, struct group_norm_candidate, GROUP_NORM_MAX_CANDIDATES,
    group_norm_candidates, group_norm_candidate_name, group_norm_select>
    group_norm;

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
    const struct group_norm_candidate *chosen = group_norm::at(shape, candidate);
    struct tensor x = tensor_rows(&t->inputs[0], 0, rows), out = tensor_rows(y, 0, rows);
    struct group_norm_args args = {};
    args.x = &x;
    args.gamma = &t->inputs[1];
    args.beta = &t->inputs[2];
    args.groups = s->groups;
    args.eps = 1e-5f;
    args.silu = true;
    args.y = &out;
    return group_norm_with(chosen, &args, err);
}

const struct tunable tunable_group_norm = { "group_norm", sizeof(struct group_norm_shape),
    group_norm_describe, group_norm::count, group_norm::name, group_norm_prepare, group_norm_run,
    group_norm::choose };

void tunables_note(enum operation operation, const void *args) {
    if (operation == OPERATION_linear) {
        const struct linear_args *a = (const struct linear_args *)args;
        const struct gemm_shape shape = gemm_shape_of_linear(a);
        tuner_note_rows(&tunable_gemm, &shape, a->x->shape[0]);
    } else if (operation == OPERATION_conv2d) {
        const struct conv2d_args *a = (const struct conv2d_args *)args;
        const struct gemm_shape shape = gemm_shape_of_conv2d(a);
        if (a->shortcut) { /* some candidates compute the shortcut as a separate product */
            struct conv2d_args before = {};
            before.x = a->shortcut;
            before.weight = a->shortcut_weight;
            before.y = a->y;
            tunables_note(operation, &before);
        }
        tuner_note_rows(&tunable_gemm, &shape, a->x->shape[0]);
    } else if (operation == OPERATION_attention) {
        const struct attention_args *a = (const struct attention_args *)args;
        struct attention_shape shapes[2];
        const int count = attention_shapes_of(a, shapes);
        for (int i = 0; i < count; i++)
            tuner_note_rows(&tunable_attention, &shapes[i], a->q->shape[0]);
    } else if (operation == OPERATION_group_norm) {
        const struct group_norm_args *a = (const struct group_norm_args *)args;
        const struct group_norm_shape shape = group_norm_shape_of(a);
        tuner_note_rows(&tunable_group_norm, &shape, a->x->shape[0]);
    }
}
