/* Argument checks for the wrappers of training's operations (backward.h). */
#include "kernels/check.h"

/* An argument for are_apart. t is NULL if the call has no such tensor. An entry whose name is NULL
 * ends a list. */
struct named {
    const char *name;
    const struct tensor *t;
};

/* No output overlaps an input or another output. One exception: the first output may be the input
 * `in_place`. */
static bool are_apart(const struct check *k, const struct named *outputs,
    const struct named *inputs, const struct tensor *in_place) {
    for (const struct named *o = outputs; o->name; o++) {
        for (const struct named *i = inputs; o->t && i->name; i++)
            if (!check_output_apart(
                    k, o->name, o->t, i->name, i->t, o == outputs && i->t == in_place))
                return false;
        for (const struct named *other = o + 1; o->t && other->name; other++)
            if (!check_output_apart(k, o->name, o->t, other->name, other->t, false))
                return false;
    }
    return true;
}

/* `t` is NULL, or the gradient of an activation of the same shape and dtype as `like`. */
static bool is_gradient_like(const struct check *k, const char *name, const struct tensor *t,
    const char *like_name, const struct tensor *like) {
    return !t || (check_activation(k, name, t, like->rank, like->rank) &&
                     check_like(k, name, t, like_name, like));
}

/* `t` is NULL, or f32 in the shape of `want`, which follows from `from`. */
static bool is_parameter_gradient(const struct check *k, const char *name, const struct tensor *t,
    struct tensor want, const char *from_name, const struct tensor *from) {
    return !t || (check_tensor(k, name, t, want.rank, want.rank) &&
                     check_shape(k, name, t, &want, from_name, from));
}

/* gamma or beta, or a gradient of one of them: f32 [c]. */
static bool is_norm_parameter(
    const struct check *k, const char *name, const struct tensor *t, const struct tensor *x) {
    const struct tensor want = tensor_1d(NULL, DTYPE_F32, x->shape[x->rank - 1]);
    return check_tensor(k, name, t, 1, 1) && check_shape(k, name, t, &want, "x", x);
}

static bool x_is_there(const struct check *k, const struct tensor *x, bool needed) {
    return x || !needed || check_fail(k, "x is missing");
}

bool linear_backward_is_right(const struct check *k, const struct linear_backward_args *a) {
    char text[112];
    if (!check_activation(k, "dy", a->dy, 2, 4) || !check_weight(k, a->weight, false))
        return false;
    const int64_t n = a->weight->n;
    if (a->dy->shape[a->dy->rank - 1] != n)
        return check_fail(k, "dy is %s, the weight [%lld][%lld] needs %lld channels",
            tensor_describe(a->dy, text, sizeof(text)), (long long)n, (long long)a->weight->k,
            (long long)n);
    struct tensor want = *a->dy;
    want.shape[want.rank - 1] = a->weight->k;
    return x_is_there(k, a->x, a->dw) &&
           (!a->x || (check_activation(k, "x", a->x, 2, 4) &&
                         check_shape(k, "x", a->x, &want, "dy", a->dy))) &&
           (!a->dx || (check_activation(k, "dx", a->dx, 2, 4) &&
                          check_shape(k, "dx", a->dx, &want, "dy", a->dy))) &&
           is_parameter_gradient(
               k, "dw", a->dw, tensor_2d(NULL, DTYPE_F32, n, a->weight->k), "dy", a->dy) &&
           is_parameter_gradient(
               k, "dbias", a->dbias, tensor_1d(NULL, DTYPE_F32, n), "dy", a->dy) &&
           are_apart(k,
               (const struct named[]){
                   { "dx", a->dx }, { "dw", a->dw }, { "dbias", a->dbias }, { NULL, NULL } },
               (const struct named[]){ { "dy", a->dy }, { "x", a->x }, { NULL, NULL } }, NULL);
}

/* Checks x or dx of the convolution whose output gradient is dy. */
static bool is_conv_input(const struct check *k, const char *name, const struct tensor *t,
    const struct conv2d_backward_args *a) {
    char text[112];
    if (!t)
        return true;
    if (!check_activation(k, name, t, 4, 4) || !check_dtype(k, name, t, a->dy->dtype, "dy"))
        return false;
    if (t->shape[3] != a->weight->k)
        return check_fail(k, "%s is %s, the weight [%lld][%lld] needs %lld channels", name,
            tensor_describe(t, text, sizeof(text)), (long long)a->weight->n,
            (long long)a->weight->k, (long long)a->weight->k);
    return check_conv_output(k, a->weight->kind, t, a->weight->n, t->dtype, a->dy);
}

bool conv2d_backward_is_right(const struct check *k, const struct conv2d_backward_args *a) {
    char text[112];
    if (!check_activation(k, "dy", a->dy, 4, 4) || !check_weight(k, a->weight, true))
        return false;
    const int64_t n = a->weight->n, size = a->weight->kind == CONV_1X1 ? 1 : 3;
    if (a->dy->shape[3] != n)
        return check_fail(k, "dy is %s, the weight [%lld][%lld] needs %lld channels",
            tensor_describe(a->dy, text, sizeof(text)), (long long)n, (long long)a->weight->k,
            (long long)n);
    if (!x_is_there(k, a->x, a->dw) || !is_conv_input(k, "x", a->x, a) ||
        !is_conv_input(k, "dx", a->dx, a) || (a->x && !is_gradient_like(k, "dx", a->dx, "x", a->x)))
        return false;
    if (a->d_row_add) {
        const enum dtype dtype = a->d_row_add->dtype == DTYPE_F32 ? DTYPE_F32 : a->dy->dtype;
        if (!check_activation(k, "d_row_add", a->d_row_add, 2, 2) ||
            !check_row_add(k, "d_row_add", a->d_row_add, a->row_add_offset, n, "dy", a->dy))
            return false;
        if (a->d_row_add->dtype != dtype)
            return check_dtype(k, "d_row_add", a->d_row_add, dtype, "dy");
    }
    return is_parameter_gradient(k, "dw", a->dw,
               tensor_4d(NULL, DTYPE_F32, n, size, size, a->weight->k), "dy", a->dy) &&
           is_parameter_gradient(
               k, "dbias", a->dbias, tensor_1d(NULL, DTYPE_F32, n), "dy", a->dy) &&
           are_apart(k,
               (const struct named[]){ { "dx", a->dx }, { "dw", a->dw }, { "dbias", a->dbias },
                   { "d_row_add", a->d_row_add }, { NULL, NULL } },
               (const struct named[]){ { "dy", a->dy }, { "x", a->x }, { NULL, NULL } }, NULL);
}

bool group_norm_backward_is_right(const struct check *k, const struct group_norm_backward_args *a) {
    if (!check_activation(k, "x", a->x, 4, 4) || !check_like(k, "dy", a->dy, "x", a->x) ||
        !is_norm_parameter(k, "gamma", a->gamma, a->x) ||
        !is_norm_parameter(k, "beta", a->beta, a->x) ||
        !is_gradient_like(k, "dx", a->dx, "x", a->x) ||
        (a->dgamma && !is_norm_parameter(k, "dgamma", a->dgamma, a->x)) ||
        (a->dbeta && !is_norm_parameter(k, "dbeta", a->dbeta, a->x)))
        return false;
    if (a->groups < 1 || a->x->shape[3] % a->groups != 0)
        return check_fail(
            k, "%lld channels are not %d groups", (long long)a->x->shape[3], a->groups);
    if (!(a->eps >= 0))
        return check_fail(k, "eps %g is negative", (double)a->eps);
    return are_apart(k,
        (const struct named[]){
            { "dx", a->dx }, { "dgamma", a->dgamma }, { "dbeta", a->dbeta }, { NULL, NULL } },
        (const struct named[]){ { "dy", a->dy }, { "x", a->x }, { "gamma", a->gamma },
            { "beta", a->beta }, { NULL, NULL } },
        a->dy);
}

bool layer_norm_backward_is_right(const struct check *k, const struct layer_norm_backward_args *a) {
    if (!check_activation(k, "x", a->x, 2, 4) || !check_like(k, "dy", a->dy, "x", a->x) ||
        !is_norm_parameter(k, "gamma", a->gamma, a->x) ||
        !is_gradient_like(k, "dx", a->dx, "x", a->x) ||
        (a->dgamma && !is_norm_parameter(k, "dgamma", a->dgamma, a->x)) ||
        (a->dbeta && !is_norm_parameter(k, "dbeta", a->dbeta, a->x)))
        return false;
    if (!(a->eps >= 0))
        return check_fail(k, "eps %g is negative", (double)a->eps);
    return are_apart(k,
        (const struct named[]){
            { "dx", a->dx }, { "dgamma", a->dgamma }, { "dbeta", a->dbeta }, { NULL, NULL } },
        (const struct named[]){
            { "dy", a->dy }, { "x", a->x }, { "gamma", a->gamma }, { NULL, NULL } },
        a->dy);
}

/* Two of dq, dk and dv do not overlap, or are the same tensor with separate channels. */
static bool parts_are_apart(const struct check *k, const struct named *a, int64_t a_offset,
    const struct named *b, int64_t b_offset, int64_t channels) {
    if (a->t->data != b->t->data || !tensor_same_shape(a->t, b->t))
        return check_output_apart(k, a->name, a->t, b->name, b->t, false);
    if (a_offset >= b_offset + channels || b_offset >= a_offset + channels)
        return true;
    return check_fail(k, "%s, from channel %lld on, overlaps %s, from %lld on, with %lld each",
        a->name, (long long)a_offset, b->name, (long long)b_offset, (long long)channels);
}

bool attention_backward_is_right(const struct check *k, const struct attention_backward_args *a) {
    if (!check_activation(k, "dy", a->dy, 3, 3) || !check_tensor(k, "y", a->y, 3, 3) ||
        !check_like(k, "dy", a->dy, "y", a->y))
        return false;
    struct tensor y = *a->y;
    if (!attention_is_right(
            k, &(struct attention_args){ a->q, a->k, a->v, a->q_offset, a->k_offset, a->v_offset,
                   a->heads, a->head_dim, a->scale, a->causal, &y, a->lengths }))
        return false;
    if (!a->dk != !a->dv)
        return check_fail(
            k, "%s is missing where %s is wanted", a->dk ? "dv" : "dk", a->dk ? "dk" : "dv");
    if (!a->dq)
        return check_fail(k, "dq is missing");
    if (!is_gradient_like(k, "dq", a->dq, "q", a->q) ||
        !is_gradient_like(k, "dk", a->dk, "k", a->k) ||
        !is_gradient_like(k, "dv", a->dv, "v", a->v))
        return false;
    const struct named outputs[] = { { "dq", a->dq }, { "dk", a->dk }, { "dv", a->dv } };
    const struct named inputs[] = { { "q", a->q }, { "k", a->k }, { "v", a->v }, { "y", a->y },
        { "dy", a->dy }, { "lengths", a->lengths }, { NULL, NULL } };
    const int64_t offsets[] = { a->q_offset, a->k_offset, a->v_offset };
    const int64_t channels = (int64_t)a->heads * a->head_dim;
    for (int i = 0; i < (a->dk ? 3 : 1); i++) {
        if (!are_apart(k, (const struct named[]){ outputs[i], { NULL, NULL } }, inputs, NULL))
            return false;
        for (int j = 0; j < i; j++)
            if (!parts_are_apart(k, &outputs[j], offsets[j], &outputs[i], offsets[i], channels))
                return false;
    }
    return true;
}

bool embedding_backward_is_right(const struct check *k, const struct embedding_backward_args *a) {
    char text[112], other[112];
    if (!check_tensor(k, "ids", a->ids, 2, 2) || !check_dtype(k, "ids", a->ids, DTYPE_I32, NULL) ||
        !check_activation(k, "dy", a->dy, 3, 3))
        return false;
    const int64_t c = a->dy->shape[2];
    const struct tensor want = tensor_3d(NULL, a->dy->dtype, a->ids->shape[0], a->ids->shape[1], c);
    if (!check_shape(k, "dy", a->dy, &want, "ids", a->ids))
        return false;
    const struct named outputs[] = { { "dtable", a->dtable }, { "dpositions", a->dpositions },
        { NULL, NULL } };
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = outputs[i].t;
        if (!t)
            continue;
        if (!check_tensor(k, outputs[i].name, t, 2, 2) ||
            !check_dtype(k, outputs[i].name, t, DTYPE_F32, NULL))
            return false;
        if (t->shape[1] != c || (i == 1 && t->shape[0] < a->ids->shape[1]))
            return check_fail(k, "%s is %s, it must be as wide as dy %s%s", outputs[i].name,
                tensor_describe(t, text, sizeof(text)),
                tensor_describe(a->dy, other, sizeof(other)), i ? " and reach its tokens" : "");
    }
    return are_apart(k, outputs,
        (const struct named[]){ { "ids", a->ids }, { "dy", a->dy }, { NULL, NULL } }, NULL);
}

bool activation_backward_is_right(const struct check *k, const struct activation_backward_args *a) {
    return check_activation(k, "dy", a->dy, 1, 4) && check_activation_kind(k, a->activation) &&
           x_is_there(k, a->x, a->activation != ACTIVATION_NONE) &&
           (!a->x || check_like(k, "x", a->x, "dy", a->dy)) &&
           check_like(k, "dx", a->dx, "dy", a->dy) &&
           are_apart(k, (const struct named[]){ { "dx", a->dx }, { NULL, NULL } },
               (const struct named[]){ { "dy", a->dy }, { "x", a->x }, { NULL, NULL } }, a->dy);
}

bool geglu_backward_is_right(const struct check *k, const struct geglu_backward_args *a) {
    if (!check_activation(k, "dy", a->dy, 2, 4) || !check_activation(k, "h", a->h, 2, 4))
        return false;
    struct tensor want = *a->dy;
    want.shape[want.rank - 1] *= 2;
    return check_shape(k, "h", a->h, &want, "dy", a->dy) && check_like(k, "dh", a->dh, "h", a->h) &&
           are_apart(k, (const struct named[]){ { "dh", a->dh }, { NULL, NULL } },
               (const struct named[]){ { "dy", a->dy }, { "h", a->h }, { NULL, NULL } }, NULL);
}

bool concat_backward_is_right(const struct check *k, const struct concat_backward_args *a) {
    char text[112], other[112];
    if (!check_activation(k, "dy", a->dy, 2, 4))
        return false;
    const struct named outputs[] = { { "da", a->da }, { "db", a->db }, { NULL, NULL } };
    const int last = a->dy->rank - 1;
    int64_t channels = 0;
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = outputs[i].t;
        if (!t)
            continue;
        if (!check_activation(k, outputs[i].name, t, 2, 4))
            return false;
        struct tensor want = *a->dy;
        if (t->rank == a->dy->rank) {
            want.shape[last] = t->shape[last];
            channels += t->shape[last];
        }
        if (!check_shape(k, outputs[i].name, t, &want, "dy", a->dy))
            return false;
    }
    /* If only one part is given, dy must have more channels than that part. */
    if (a->da && a->db ? channels != a->dy->shape[last] : channels >= a->dy->shape[last])
        return check_fail(k, "dy is %s, its channels are not those of %s %s and the other part",
            tensor_describe(a->dy, text, sizeof(text)), a->da ? "da" : "db",
            tensor_describe(a->da ? a->da : a->db, other, sizeof(other)));
    return are_apart(k, outputs, (const struct named[]){ { "dy", a->dy }, { NULL, NULL } }, NULL);
}

bool low_rank_backward_is_right(const struct check *k, const struct low_rank_backward_args *a) {
    if (a->kind < CONV_1X1 || a->kind > CONV_3X3_UP)
        return check_fail(k, "convolution kind %d is unknown", (int)a->kind);
    const int least = a->kind == CONV_1X1 ? 2 : 4;
    if (!check_activation(k, "dy", a->dy, least, 4))
        return false;
    if (a->count < 1 || !a->terms)
        return check_fail(k, "terms are missing");
    if (!x_is_there(k, a->x, a->gradients))
        return false;
    const int64_t channels = a->dy->shape[a->dy->rank - 1];
    for (int i = 0; i < a->count; i++)
        if (!check_term(k, &a->terms[i], channels))
            return false;
    const struct named inputs[] = { { "x", a->x }, { "dx", a->dx } };
    for (int i = 0; i < 2; i++) {
        const struct tensor *t = inputs[i].t;
        if (!t)
            continue;
        if (!check_activation(k, inputs[i].name, t, least, 4))
            return false;
        struct tensor want = *a->dy;
        want.shape[want.rank - 1] = t->shape[t->rank - 1];
        if (a->kind == CONV_1X1 ? !check_shape(k, inputs[i].name, t, &want, "dy", a->dy)
                                : !check_dtype(k, inputs[i].name, t, a->dy->dtype, "dy") ||
                                      !check_conv_output(k, a->kind, t, channels, t->dtype, a->dy))
            return false;
    }
    return (!a->x || is_gradient_like(k, "dx", a->dx, "x", a->x)) &&
           are_apart(k, (const struct named[]){ { "dx", a->dx }, { NULL, NULL } },
               (const struct named[]){ { "dy", a->dy }, { "x", a->x }, { NULL, NULL } }, NULL);
}

bool dropout_is_right(const struct check *k, const struct dropout_args *a) {
    if (!a->seed || !a->step)
        return check_fail(k, "seed or step is missing");
    if (!(a->p >= 0 && a->p < 1))
        return check_fail(k, "p is %g, it must be 0 to less than 1", (double)a->p);
    return check_activation(k, "x", a->x, 1, 4) && check_like(k, "y", a->y, "x", a->x) &&
           check_apart(k, a->y, "x", a->x, true);
}

bool mse_is_right(const struct check *k, const struct mse_args *a) {
    if (!a->weights)
        return check_fail(k, "weights are missing");
    if (!check_tensor(k, "prediction", a->prediction, 2, 4) ||
        !check_dtype(k, "prediction", a->prediction, DTYPE_F32, NULL) ||
        !check_like(k, "target", a->target, "prediction", a->prediction) ||
        !check_tensor(k, "loss", a->loss, 1, 1))
        return false;
    const struct tensor want = tensor_1d(NULL, DTYPE_F32, a->prediction->shape[0]);
    return check_shape(k, "loss", a->loss, &want, "prediction", a->prediction) &&
           (!a->d_prediction ||
               check_like(k, "d_prediction", a->d_prediction, "prediction", a->prediction)) &&
           are_apart(k,
               (const struct named[]){
                   { "loss", a->loss }, { "d_prediction", a->d_prediction }, { NULL, NULL } },
               (const struct named[]){
                   { "prediction", a->prediction }, { "target", a->target }, { NULL, NULL } },
               NULL);
}

bool square_pieces_is_right(const struct check *k, const struct square_pieces_args *a) {
    if (!check_tensor(k, "x", a->x, 1, TENSOR_MAX_RANK) ||
        !check_dtype(k, "x", a->x, DTYPE_F32, NULL) || !check_tensor(k, "pieces", a->pieces, 2, 2))
        return false;
    const struct tensor want = tensor_2d(
        NULL, DTYPE_F64, square_pieces_count(tensor_elements(a->x)), 2);
    return check_shape(k, "pieces", a->pieces, &want, "x", a->x) &&
           check_output_apart(k, "pieces", a->pieces, "x", a->x, false);
}

static bool step_is_right(const struct check *k, double beta1, double beta2, double limit) {
    if (!(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1))
        return check_fail(k, "betas are %g and %g, they must be 0 to less than 1", beta1, beta2);
    return limit >= 0 || check_fail(k, "gradient_limit is %g, it must be 0 or more", limit);
}

bool adamw_is_right(const struct check *k, const struct adamw_args *a) {
    if (!check_tensor(k, "parameter", a->parameter, 1, TENSOR_MAX_RANK) ||
        !check_dtype(k, "parameter", a->parameter, DTYPE_F32, NULL) ||
        !check_like(k, "gradient", a->gradient, "parameter", a->parameter) ||
        !check_like(k, "m", a->m, "parameter", a->parameter) ||
        !check_like(k, "v", a->v, "parameter", a->parameter))
        return false;
    if (a->step < 1)
        return check_fail(k, "step is %lld, the first is 1", (long long)a->step);
    return step_is_right(k, a->beta1, a->beta2, a->gradient_limit) &&
           are_apart(k,
               (const struct named[]){
                   { "parameter", a->parameter }, { "m", a->m }, { "v", a->v }, { NULL, NULL } },
               (const struct named[]){ { "gradient", a->gradient }, { NULL, NULL } }, NULL);
}

bool lion_is_right(const struct check *k, const struct lion_args *a) {
    return check_tensor(k, "parameter", a->parameter, 1, TENSOR_MAX_RANK) &&
           check_dtype(k, "parameter", a->parameter, DTYPE_F32, NULL) &&
           check_like(k, "gradient", a->gradient, "parameter", a->parameter) &&
           check_like(k, "m", a->m, "parameter", a->parameter) &&
           step_is_right(k, a->beta1, a->beta2, a->gradient_limit) &&
           are_apart(k,
               (const struct named[]){
                   { "parameter", a->parameter }, { "m", a->m }, { NULL, NULL } },
               (const struct named[]){ { "gradient", a->gradient }, { NULL, NULL } }, NULL);
}

bool prodigy_sums_is_right(const struct check *k, const struct prodigy_sums_args *a) {
    if (!check_tensor(k, "parameter", a->parameter, 1, TENSOR_MAX_RANK) ||
        !check_dtype(k, "parameter", a->parameter, DTYPE_F32, NULL) ||
        !check_like(k, "start", a->start, "parameter", a->parameter) ||
        !check_like(k, "gradient", a->gradient, "parameter", a->parameter) ||
        !check_like(k, "m", a->m, "parameter", a->parameter) ||
        !check_like(k, "v", a->v, "parameter", a->parameter) ||
        !check_like(k, "s", a->s, "parameter", a->parameter) ||
        !check_tensor(k, "sums", a->sums, 1, 1))
        return false;
    const struct tensor want = tensor_1d(NULL, DTYPE_F32, 2);
    return check_shape(k, "sums", a->sums, &want, "parameter", a->parameter) &&
           step_is_right(k, a->beta1, a->beta2, a->gradient_limit) &&
           are_apart(k,
               (const struct named[]){ { "m", a->m }, { "v", a->v }, { "s", a->s },
                   { "sums", a->sums }, { NULL, NULL } },
               (const struct named[]){ { "parameter", a->parameter }, { "start", a->start },
                   { "gradient", a->gradient }, { NULL, NULL } },
               NULL);
}

bool prodigy_is_right(const struct check *k, const struct prodigy_args *a) {
    return check_tensor(k, "parameter", a->parameter, 1, TENSOR_MAX_RANK) &&
           check_dtype(k, "parameter", a->parameter, DTYPE_F32, NULL) &&
           check_like(k, "m", a->m, "parameter", a->parameter) &&
           check_like(k, "v", a->v, "parameter", a->parameter) &&
           are_apart(k, (const struct named[]){ { "parameter", a->parameter }, { NULL, NULL } },
               (const struct named[]){ { "m", a->m }, { "v", a->v }, { NULL, NULL } }, NULL);
}

/* beta2 comes ever nearer to 1 with the steps, and reaches it. */
bool adafactor_is_right(const struct check *k, const struct adafactor_args *a) {
    const struct factored_shape *s = &a->shape;
    if (s->n < 1 || s->k < 1 || s->panel < 1 || (s->side != 1 && (s->side != 3 || s->is_matrix)))
        return check_fail(k, "shape is %s of %lld x %lld, side %d, panels of %d",
            s->is_matrix ? "a matrix" : "matrices", (long long)s->n, (long long)s->k, s->side,
            s->panel);
    const struct tensor whole = tensor_1d(NULL, DTYPE_F32, factored_floats(s));
    const struct tensor rows = tensor_1d(NULL, DTYPE_F32, factored_rows(s));
    const struct tensor cols = tensor_1d(NULL, DTYPE_F32, factored_cols(s));
    return check_tensor(k, "parameter", a->parameter, 1, 1) &&
           check_shape(k, "parameter", a->parameter, &whole, "shape", &whole) &&
           check_like(k, "gradient", a->gradient, "parameter", a->parameter) &&
           check_tensor(k, "rows", a->rows, 1, 1) &&
           check_shape(k, "rows", a->rows, &rows, "parameter", a->parameter) &&
           check_tensor(k, "cols", a->cols, 1, 1) &&
           check_shape(k, "cols", a->cols, &cols, "parameter", a->parameter) &&
           step_is_right(k, 0, a->beta2 == 1 ? 0 : a->beta2, a->gradient_limit) &&
           are_apart(k,
               (const struct named[]){ { "parameter", a->parameter }, { "rows", a->rows },
                   { "cols", a->cols }, { NULL, NULL } },
               (const struct named[]){ { "gradient", a->gradient }, { NULL, NULL } }, NULL);
}

static double low_rank_flops(const struct low_rank_backward_args *a) {
    const struct tensor *in = a->dx ? a->dx : a->x;
    const double taps = a->kind == CONV_1X1 ? 1 : 9;
    const double tokens = (double)(tensor_elements(a->dy) / a->dy->shape[a->dy->rank - 1]);
    double products = 0; /* of a token */
    for (int i = 0; in && i < a->count; i++) {
        const struct low_rank_gradient none = { NULL, NULL };
        const struct low_rank_gradient *g = a->gradients ? &a->gradients[i] : &none;
        const double inner = taps * (double)in->shape[in->rank - 1], n = (double)a->terms[i].n;
        products += (double)a->terms[i].rank *
                    (n + (a->dx ? inner : 0) + (g->down ? inner : 0) + (g->up ? inner + n : 0));
    }
    return 2.0 * tokens * products;
}

double training_flops(enum operation operation, const void *args) {
    switch (operation) {
    case OPERATION_linear_backward: {
        const struct linear_backward_args *a = args;
        return 2.0 * (double)tensor_elements(a->dy) * (double)a->weight->k *
               ((a->dx ? 1 : 0) + (a->dw ? 1 : 0));
    }
    case OPERATION_conv2d_backward: {
        const struct conv2d_backward_args *a = args;
        const double taps = a->weight->kind == CONV_1X1 ? 1 : 9;
        return 2.0 * taps * (double)tensor_elements(a->dy) * (double)a->weight->k *
               ((a->dx ? 1 : 0) + (a->dw ? 1 : 0));
    }
    case OPERATION_attention_backward: { /* q k^T, dy v^T, dq, dk and dv */
        const struct attention_backward_args *a = args;
        return (a->dk ? 10.0 : 6.0) * (double)tensor_elements(a->dy) * (double)a->k->shape[1];
    }
    case OPERATION_low_rank_backward:
        return low_rank_flops(args);
    default:
        return 0;
    }
}
