/* Makes the backward of each call, from the last call to the first. At every point it is known
 * which gradients are live. A call whose output has no live gradient has no backward. Otherwise its
 * inputs' gradients are written or added to. The output's gradient is then dead, unless the call
 * added to what was in its output. */
#include "kernels/tape/plan.h"

#include "base/list.h"

#include <stdlib.h>

/* The state of the walk over the calls. */
struct walk {
    struct tape *tape;
    struct intervals live; /* memory whose gradient exists already */
    const struct traced *traced;
    struct error *err;
    bool ok;
};

static void emit(struct walk *w, enum operation operation, const void *args) {
    struct call *call = NULL;
    w->ok = w->ok && call_create(operation, args, &call, w->err);
    if (w->ok && !works_add(&w->tape->adjoints, &(struct work){ .call = call }, w->err)) {
        call_destroy(call);
        w->ok = false;
    }
}

/* Finds the place in BLOCK_OUTSIDE that belongs to memory of the caller; makes it if there is
 * none. */
static bool outside_place(struct walk *w, struct interval i, size_t *at) {
    struct tape *tape = w->tape;
    for (size_t k = 0; k < tape->outside_count; k++) {
        const struct outside *o = &tape->outsides[k];
        if (i.begin >= o->of.begin && i.end <= o->of.end) {
            *at = o->at + (i.begin - o->of.begin);
            return true;
        }
        if (interval_overlap(i, o->of))
            return error_set(w->err, ERROR_UNSUPPORTED,
                "tensors outside of a training pass's arena overlap in part");
    }
    if (!LIST_ROOM(tape->outsides, tape->outside_count, "the plan of a training pass", w->err))
        return false;
    size_t *end = &tape->block_bytes[BLOCK_OUTSIDE];
    *at = *end;
    tape->outsides[tape->outside_count++] = (struct outside){ i, *at };
    *end += (i.end - i.begin + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
    return true;
}

static uintptr_t mirror_of(struct walk *w, struct interval i) {
    struct tape *tape = w->tape;
    enum tape_block block;
    size_t at = 0;
    if (!tape_place(tape, i.begin, &block, &at)) {
        w->ok = w->ok && outside_place(w, i, &at);
        return tape_address(tape, BLOCK_OUTSIDE, at);
    }
    const size_t end = at + (i.end - i.begin);
    if (tape->block_bytes[BLOCK_GRADIENTS] < end)
        tape->block_bytes[BLOCK_GRADIENTS] = end;
    return tape_address(tape, BLOCK_GRADIENTS, at);
}

/* Returns the gradient of t. */
static struct tensor gradient_of(struct walk *w, const struct tensor *t) {
    struct tensor gradient = *t;
    gradient.data = (void *)mirror_of(w, tensor_interval(t));
    return gradient;
}

/* Adds work that zeroes the parts of t's gradient that do not exist yet. */
static void complete(struct walk *w, const struct tensor *t) {
    const struct interval all = tensor_interval(t);
    const uintptr_t mirror = mirror_of(w, all);
    struct interval piece;
    while (w->ok && intervals_piece(&w->live, all, false, &piece)) {
        const struct work zeros = { .to = (void *)(mirror + (piece.begin - all.begin)),
            .bytes = piece.end - piece.begin };
        w->ok = works_add(&w->tape->adjoints, &zeros, w->err);
        intervals_add(&w->live, piece);
    }
}

/* Call before the gradient of t is written. Returns whether the new gradient must be added to an
 * existing one; if so, parts that do not exist yet are zeroed first. */
static bool accumulates(struct walk *w, const struct tensor *t) {
    const bool any = intervals_overlap(&w->live, tensor_interval(t));
    if (any)
        complete(w, t);
    intervals_add(&w->live, tensor_interval(t));
    return any;
}

/* Whether t, one of the call's tensors or NULL, depends on a parameter. */
static bool is_reached(const struct walk *w, const struct tensor *t) {
    return t && (w->traced->reached >> (t - w->traced->call->tensors) & 1);
}

/* Sets *room to an f32 tensor for a parameter's gradient at `data`, in the caller's memory, and
 * returns it. Returns NULL if `data` is NULL. */
static struct tensor *parameter_tensor(
    const struct walk *w, float *data, const struct tensor *shape, struct tensor *room) {
    if (!data)
        return NULL;
    *room = *shape;
    room->data = data;
    room->dtype = DTYPE_F32;
    room->device = w->tape->kernels->device;
    return room;
}

/* Writes or adds dy, the gradient of y, to the gradient of x. Both have the same shape. */
static void pass_on(struct walk *w, const struct tensor *dy, const struct tensor *x) {
    if (!is_reached(w, x))
        return;
    struct tensor dx = gradient_of(w, x);
    const bool accumulate = accumulates(w, x);
    emit(w, OPERATION_activation_backward,
        &(struct activation_backward_args){ .dy = dy, .dx = &dx, .accumulate = accumulate });
}

static void linear(struct walk *w, const struct linear_args *a, const struct tensor *dy) {
    const struct tape_parameter *p = tape_find_parameter(w->tape, TAPE_WEIGHT, a->weight);
    const struct tensor weight = tensor_2d(NULL, DTYPE_F32, a->weight->n, a->weight->k);
    const struct tensor bias = tensor_1d(NULL, DTYPE_F32, a->weight->n);
    struct tensor dx, dw, dbias;
    struct linear_backward_args back = { .dy = dy, .weight = a->weight };
    if (p) {
        back.dw = parameter_tensor(w, p->gradient[0], &weight, &dw);
        back.dbias = parameter_tensor(w, p->gradient[1], &bias, &dbias);
        back.x = back.dw ? a->x : NULL;
    }
    if (is_reached(w, a->x)) {
        dx = gradient_of(w, a->x);
        back.dx = &dx;
        back.accumulate = accumulates(w, a->x);
    }
    if (back.dx || back.dw || back.dbias)
        emit(w, OPERATION_linear_backward, &back);
    if (a->residual && !tensor_is_same(a->residual, a->y))
        pass_on(w, dy, a->residual);
}

static void conv2d(struct walk *w, const struct conv2d_args *a, const struct tensor *dy) {
    const struct tape_parameter *p = tape_find_parameter(w->tape, TAPE_WEIGHT, a->weight);
    const int64_t side = a->weight->kind == CONV_1X1 ? 1 : 3;
    const struct tensor weight = tensor_4d(NULL, DTYPE_F32, a->weight->n, side, side, a->weight->k);
    const struct tensor bias = tensor_1d(NULL, DTYPE_F32, a->weight->n);
    struct tensor dx, dw, dbias, d_row_add;
    struct conv2d_backward_args back = { .dy = dy, .weight = a->weight };
    if (p) {
        back.dw = parameter_tensor(w, p->gradient[0], &weight, &dw);
        back.dbias = parameter_tensor(w, p->gradient[1], &bias, &dbias);
        back.x = back.dw ? a->x : NULL;
    }
    if (is_reached(w, a->x)) {
        dx = gradient_of(w, a->x);
        back.dx = &dx;
        back.accumulate = accumulates(w, a->x);
    }
    if (is_reached(w, a->row_add)) {
        d_row_add = gradient_of(w, a->row_add);
        back.d_row_add = &d_row_add;
        back.row_add_offset = a->row_add_offset;
        if (a->row_add->shape[1] > a->weight->n) { /* other calls write the other channels */
            complete(w, a->row_add);
            back.accumulate_row_add = true;
        } else {
            back.accumulate_row_add = accumulates(w, a->row_add);
        }
    }
    if (back.dx || back.dw || back.dbias || back.d_row_add)
        emit(w, OPERATION_conv2d_backward, &back);
    if (a->residual && !tensor_is_same(a->residual, a->y))
        pass_on(w, dy, a->residual);
}

static void group_norm(struct walk *w, const struct group_norm_args *a, const struct tensor *dy) {
    const struct tape_parameter *p = tape_find_parameter(w->tape, TAPE_NORM, a->gamma->data);
    struct tensor dx, dgamma, dbeta;
    struct group_norm_backward_args back = { .dy = dy,
        .x = a->x,
        .gamma = a->gamma,
        .beta = a->beta,
        .groups = a->groups,
        .eps = a->eps,
        .silu = a->silu };
    if (p) {
        back.dgamma = parameter_tensor(w, p->gradient[0], a->gamma, &dgamma);
        back.dbeta = parameter_tensor(w, p->gradient[1], a->beta, &dbeta);
    }
    if (is_reached(w, a->x)) {
        dx = gradient_of(w, a->x);
        back.dx = &dx;
        back.accumulate = accumulates(w, a->x);
    }
    emit(w, OPERATION_group_norm_backward, &back);
}

static void layer_norm(struct walk *w, const struct layer_norm_args *a, const struct tensor *dy) {
    const struct tape_parameter *p = tape_find_parameter(w->tape, TAPE_NORM, a->gamma->data);
    struct tensor dx, dgamma, dbeta;
    struct layer_norm_backward_args back = {
        .dy = dy, .x = a->x, .gamma = a->gamma, .eps = a->eps
    };
    if (p) {
        back.dgamma = parameter_tensor(w, p->gradient[0], a->gamma, &dgamma);
        back.dbeta = parameter_tensor(w, p->gradient[1], a->beta, &dbeta);
    }
    if (is_reached(w, a->x)) {
        dx = gradient_of(w, a->x);
        back.dx = &dx;
        back.accumulate = accumulates(w, a->x);
    }
    emit(w, OPERATION_layer_norm_backward, &back);
}

/* q, k or v: its tensor, and the first channel of its heads. */
struct part {
    const struct tensor *t;
    int64_t first;
};

/* Whether the parts in the tensor of parts[index] cover all of that tensor. Sets the error if parts
 * overlap. */
static bool parts_are_all(
    struct walk *w, const struct part *parts, int count, int index, int64_t channels) {
    int64_t sum = 0;
    for (int i = 0; i < count; i++) {
        if (!tensor_is_same(parts[i].t, parts[index].t))
            continue;
        sum += channels;
        const int64_t apart = parts[i].first - parts[index].first;
        if (i != index && apart < channels && apart > -channels && w->ok)
            w->ok = error_set(w->err, ERROR_UNSUPPORTED,
                "attention whose q, k and v share channels has no backward");
    }
    return sum == parts[index].t->shape[2];
}

/* Returns whether the gradients of the parts are added instead of written. They are added if the
 * parts do not cover their tensors, or if a tensor already has a gradient. In that case, those
 * parts of the tensors' gradients that do not exist yet are zeroed first. */
static bool parts_accumulate(
    struct walk *w, const struct part *parts, int count, int64_t channels) {
    bool accumulate = false;
    for (int i = 0; i < count; i++)
        accumulate |= !parts_are_all(w, parts, count, i, channels) ||
                      intervals_overlap(&w->live, tensor_interval(parts[i].t));
    for (int i = 0; i < count; i++) {
        if (accumulate)
            complete(w, parts[i].t);
        intervals_add(&w->live, tensor_interval(parts[i].t));
    }
    return accumulate;
}

static void attention(struct walk *w, const struct attention_args *a, const struct tensor *dy) {
    const bool all = is_reached(w, a->k) || is_reached(w, a->v);
    const struct part parts[] = { { a->q, a->q_offset }, { a->k, a->k_offset },
        { a->v, a->v_offset } };
    const bool accumulate = parts_accumulate(
        w, parts, all ? 3 : 1, (int64_t)a->heads * a->head_dim);
    struct tensor dq = gradient_of(w, a->q), dk = { 0 }, dv = { 0 };
    if (all) {
        dk = gradient_of(w, a->k);
        dv = gradient_of(w, a->v);
    }
    emit(w, OPERATION_attention_backward,
        &(struct attention_backward_args){ .q = a->q,
            .k = a->k,
            .v = a->v,
            .y = a->y,
            .dy = dy,
            .q_offset = a->q_offset,
            .k_offset = a->k_offset,
            .v_offset = a->v_offset,
            .heads = a->heads,
            .head_dim = a->head_dim,
            .scale = a->scale,
            .causal = a->causal,
            .lengths = a->lengths,
            .dq = &dq,
            .dk = all ? &dk : NULL,
            .dv = all ? &dv : NULL,
            .accumulate = accumulate });
}

static void embedding(struct walk *w, const struct embedding_args *a, const struct tensor *dy) {
    const struct tape_parameter *table = tape_find_parameter(w->tape, TAPE_TABLE, a->table->data);
    const struct tape_parameter *positions =
        a->positions ? tape_find_parameter(w->tape, TAPE_TABLE, a->positions->data) : NULL;
    struct tensor dtable, dpositions;
    struct embedding_backward_args back = { .ids = a->ids, .dy = dy };
    if (table)
        back.dtable = parameter_tensor(w, table->gradient[0], a->table, &dtable);
    if (positions)
        back.dpositions = parameter_tensor(w, positions->gradient[0], a->positions, &dpositions);
    emit(w, OPERATION_embedding_backward, &back);
}

static void add(struct walk *w, const struct add_args *a, const struct tensor *dy) {
    if (a->activation != ACTIVATION_NONE) { /* b is NULL: trace.c splits other calls */
        struct tensor dx = gradient_of(w, a->a);
        const bool accumulate = accumulates(w, a->a);
        emit(w, OPERATION_activation_backward,
            &(struct activation_backward_args){ .dy = dy,
                .x = a->a,
                .activation = a->activation,
                .dx = &dx,
                .accumulate = accumulate });
        return;
    }
    if (!tensor_is_same(a->a, a->y))
        pass_on(w, dy, a->a);
    pass_on(w, dy, a->b);
}

static void concat(struct walk *w, const struct concat_args *a, const struct tensor *dy) {
    struct tensor da, db;
    struct concat_backward_args back = { .dy = dy };
    if (is_reached(w, a->a)) {
        da = gradient_of(w, a->a);
        back.da = &da;
        back.accumulate_a = accumulates(w, a->a);
    }
    if (is_reached(w, a->b)) {
        db = gradient_of(w, a->b);
        back.db = &db;
        back.accumulate_b = accumulates(w, a->b);
    }
    emit(w, OPERATION_concat_backward, &back);
}

/* Returns a tensor like `t` in BLOCK_TEMPORARY. One call writes it and the next one reads it. */
static struct tensor temporary_like(struct walk *w, const struct tensor *t) {
    struct tensor temporary = *t;
    size_t *bytes = &w->tape->block_bytes[BLOCK_TEMPORARY];
    temporary.data = (void *)tape_address(w->tape, BLOCK_TEMPORARY, 0);
    *bytes = tensor_bytes(t) > *bytes ? tensor_bytes(t) : *bytes;
    return temporary;
}

static void convert(struct walk *w, const struct convert_args *a, const struct tensor *dy) {
    static const enum layout_change back[] = { [LAYOUT_SAME] = LAYOUT_SAME,
        [LAYOUT_NCHW_TO_NHWC] = LAYOUT_NHWC_TO_NCHW,
        [LAYOUT_NHWC_TO_NCHW] = LAYOUT_NCHW_TO_NHWC };
    struct tensor dx = gradient_of(w, a->x);
    const bool accumulate = accumulates(w, a->x);
    struct tensor to = accumulate ? temporary_like(w, a->x) : dx;
    emit(w, OPERATION_convert,
        &(struct convert_args){ .x = dy, .layout = back[a->layout], .y = &to });
    if (accumulate)
        emit(w, OPERATION_add, &(struct add_args){ .a = &dx, .b = &to, .y = &dx });
}

/* Returns x or, if x is the output of a dropout, a tensor in which the dropout is computed again.
 * The dropout's output therefore need not be kept. trace.c puts the dropout right before its
 * low_rank. */
static struct tensor dropped_out(struct walk *w, const struct tensor *x) {
    const struct call *before = w->traced > w->tape->calls ? w->traced[-1].call : NULL;
    if (!before || before->operation != OPERATION_dropout || before->args.dropout.accumulate ||
        !tensor_is_same(before->args.dropout.y, x) || tensor_is_same(before->args.dropout.x, x))
        return *x;
    struct dropout_args again = before->args.dropout;
    struct tensor left = temporary_like(w, x);
    again.y = &left;
    emit(w, OPERATION_dropout, &again);
    return left;
}

static void low_rank(struct walk *w, const struct call *call, const struct tensor *dy) {
    const struct low_rank_args *a = &call->args.low_rank;
    const int count = a->rows[0].count;
    bool any = is_reached(w, a->x);
    struct low_rank_gradient *gradients = calloc((size_t)count + 1, sizeof(*gradients));
    w->ok = w->ok && (gradients || error_set(w->err, ERROR_NO_MEMORY, "no memory for a tape"));
    for (int i = 0; w->ok && i < count; i++) {
        const struct tape_parameter *p = tape_find_pair(w->tape, &a->rows[0].terms[i]);
        if (p)
            gradients[i] = (struct low_rank_gradient){ p->gradient[0], p->gradient[1] };
        any |= p != NULL;
    }
    const struct tensor x = any ? dropped_out(w, a->x) : *a->x;
    struct low_rank_backward_args back = { .dy = dy,
        .x = &x,
        .kind = a->kind,
        .terms = a->rows[0].terms,
        .gradients = gradients,
        .count = count };
    struct tensor dx;
    if (is_reached(w, a->x)) {
        dx = gradient_of(w, a->x);
        back.dx = &dx;
        back.accumulate = accumulates(w, a->x);
    }
    if (any)
        emit(w, OPERATION_low_rank_backward, &back);
    free(gradients);
}

static void geglu(struct walk *w, const struct geglu_args *a, const struct tensor *dy) {
    if (is_reached(w, a->h)) {
        struct tensor dh = gradient_of(w, a->h);
        const bool accumulate = accumulates(w, a->h);
        emit(w, OPERATION_geglu_backward,
            &(struct geglu_backward_args){
                .dy = dy, .h = a->h, .dh = &dh, .accumulate = accumulate });
    }
    if (a->residual && !tensor_is_same(a->residual, a->y))
        pass_on(w, dy, a->residual);
}

static void dropout(struct walk *w, const struct dropout_args *a, const struct tensor *dy) {
    if (!is_reached(w, a->x))
        return;
    struct tensor dx = gradient_of(w, a->x);
    struct dropout_args back = *a;
    back.x = dy;
    back.y = &dx;
    back.accumulate = accumulates(w, a->x);
    emit(w, OPERATION_dropout, &back);
}

/* --- which calls have a backward --- */

/* Whether the old contents of y's memory are a part of y. If so, the old contents and y have the
 * same gradient. */
static bool adds_to_output(const struct call *call) {
    const struct tensor *y = call_output(call);
    switch (call->operation) {
    case OPERATION_linear:
        return tensor_is_same(call->args.linear.residual, y);
    case OPERATION_conv2d:
        return tensor_is_same(call->args.conv2d.residual, y);
    case OPERATION_geglu:
        return tensor_is_same(call->args.geglu.residual, y);
    case OPERATION_add:
        return call->args.add.activation == ACTIVATION_NONE && tensor_is_same(call->args.add.a, y);
    case OPERATION_low_rank:
        return true;
    case OPERATION_dropout:
        return call->args.dropout.accumulate;
    default:
        return false;
    }
}

static bool has_parameter(const struct tape *tape, const struct call *call) {
    switch (call->operation) {
    case OPERATION_linear:
        return tape_find_parameter(tape, TAPE_WEIGHT, call->args.linear.weight);
    case OPERATION_conv2d:
        return tape_find_parameter(tape, TAPE_WEIGHT, call->args.conv2d.weight);
    case OPERATION_group_norm:
        return tape_find_parameter(tape, TAPE_NORM, call->args.group_norm.gamma->data);
    case OPERATION_layer_norm:
        return tape_find_parameter(tape, TAPE_NORM, call->args.layer_norm.gamma->data);
    case OPERATION_embedding:
        return tape_find_parameter(tape, TAPE_TABLE, call->args.embedding.table->data) ||
               (call->args.embedding.positions &&
                   tape_find_parameter(tape, TAPE_TABLE, call->args.embedding.positions->data));
    case OPERATION_low_rank:
        for (int i = 0; i < call->args.low_rank.rows[0].count; i++)
            if (tape_find_pair(tape, &call->args.low_rank.rows[0].terms[i]))
                return true;
        return false;
    default:
        return false;
    }
}

/* Sets `reached` and `reaches` of all calls, from the first to the last. */
static bool find_reached(struct tape *tape, struct error *err) {
    struct intervals reached = { 0 };
    for (int i = 0; i < tape->parameter_count; i++)
        if (tape->parameters[i].kind == TAPE_INPUT)
            intervals_add(&reached, tensor_interval(tape->parameters[i].what));
    for (size_t i = 0; i < tape->call_count; i++) {
        struct traced *t = &tape->calls[i];
        const struct tensor *inputs[CALL_MAX_TENSORS], *y = call_output(t->call);
        const int count = call_inputs(t->call, inputs);
        for (int k = 0; k < count; k++)
            if (intervals_overlap(&reached, tensor_interval(inputs[k])))
                t->reached |= 1u << (inputs[k] - t->call->tensors);
        t->reaches = t->reached || has_parameter(tape, t->call);
        if (t->reaches)
            intervals_add(&reached, tensor_interval(y));
        else
            intervals_subtract(&reached, tensor_interval(y));
    }
    const bool ok = !reached.failed;
    intervals_finish(&reached);
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
}

static void adjoin(struct walk *w) {
    const struct call *call = w->traced->call;
    const struct tensor *y = call_output(call);
    const struct interval out = tensor_interval(y);
    const bool adds = adds_to_output(call), live = intervals_overlap(&w->live, out);
    struct tensor dy = { 0 };
    if (w->traced->reaches && live) {
        complete(w, y);
        dy = gradient_of(w, y);
    }
    if (!adds)
        intervals_subtract(&w->live, out);
    if (!dy.data)
        return;
    switch (call->operation) {
#define ADJOINT(name)                                                                              \
    case OPERATION_##name:                                                                         \
        name(w, &call->args.name, &dy);                                                            \
        break;
        ADJOINT(linear)
        ADJOINT(conv2d)
        ADJOINT(group_norm)
        ADJOINT(layer_norm)
        ADJOINT(attention)
        ADJOINT(embedding)
        ADJOINT(add)
        ADJOINT(concat)
        ADJOINT(convert)
        ADJOINT(geglu)
        ADJOINT(dropout)
#undef ADJOINT
    case OPERATION_low_rank:
        low_rank(w, call, &dy);
        break;
    default:
        w->ok = error_set(w->err, ERROR_UNSUPPORTED, "an operation without a backward (%d)",
            (int)call->operation);
    }
}

bool tape_adjoin(struct tape *tape, const struct tensor *seed, struct error *err) {
    struct walk w = { .tape = tape, .err = err, .ok = find_reached(tape, err) };
    if (w.ok) {
        intervals_add(&w.live, tensor_interval(seed));
        (void)mirror_of(&w, tensor_interval(seed));
    }
    for (size_t i = tape->call_count; w.ok && i-- > 0;) {
        tape->calls[i].adjoint = tape->adjoints.count;
        w.traced = &tape->calls[i];
        adjoin(&w);
        tape->calls[i].adjoint_end = tape->adjoints.count;
    }
    tape->ending = tape->adjoints.count;
    for (int i = 0; w.ok && i < tape->parameter_count; i++)
        if (tape->parameters[i].kind == TAPE_INPUT)
            complete(&w, tape->parameters[i].what);
    if (w.ok && w.live.failed)
        w.ok = error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
    intervals_finish(&w.live);
    return w.ok;
}
