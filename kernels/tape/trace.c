/* Records calls as they come from the wrappers. A call is split if its backward needs a value that
 * the call computes on the way. So an activation or a gate becomes a separate call after its
 * product or sum, and with dropout each low-rank term becomes a separate call. */
#include "kernels/tape/plan.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

void tape_record(struct compute *c, enum operation operation, const void *args) {
    struct tape *tape = c->tape;
    struct traced traced = { 0 };
    if (!LIST_ROOM(tape->calls, tape->call_count, "the plan of a training pass", &c->error) ||
        !call_create(operation, args, &traced.call, &c->error))
        return;
    tape->calls[tape->call_count++] = traced;
}

/* Allocates a tensor like t, but with `channels` channels. */
static struct tensor room_like(struct compute *c, const struct tensor *t, int64_t channels) {
    struct tensor room = *t;
    room.shape[room.rank - 1] = channels;
    room.data = compute_tensor_1d(c, t->dtype, tensor_elements(&room)).data;
    return room;
}

static bool split_linear(struct compute *c, const struct linear_args *a) {
    const bool gated = a->weight->geglu && !a->ungated;
    if (!gated && a->activation == ACTIVATION_NONE)
        return false;
    const size_t mark = arena_mark(c->arena);
    const bool apart = gated || a->residual; /* the residual may be y */
    struct tensor h = apart ? room_like(c, a->y, a->weight->n) : *a->y;
    op_linear(
        c, &(struct linear_args){ .x = a->x, .weight = a->weight, .y = &h, .ungated = gated });
    if (gated)
        op_geglu(c, &(struct geglu_args){ .h = &h, .residual = a->residual, .y = a->y });
    else
        op_add(c, &(struct add_args){ .a = &h, .activation = a->activation, .y = &h });
    if (!gated && a->residual)
        op_add(c, &(struct add_args){ .a = a->residual, .b = &h, .y = a->y });
    arena_release(c->arena, mark);
    return true;
}

static bool split_add(struct compute *c, const struct add_args *a) {
    if (!a->b || a->activation == ACTIVATION_NONE)
        return false;
    op_add(c, &(struct add_args){ .a = a->a, .b = a->b, .y = a->y });
    op_add(c, &(struct add_args){ .a = a->y, .activation = a->activation, .y = a->y });
    return true;
}

static const struct tape_parameter *dropped_out(
    const struct tape *tape, const struct low_rank_term *term) {
    const struct tape_parameter *pair = tape_find_pair(tape, term);
    return pair && pair->dropout > 0 ? pair : NULL;
}

/* Adds one term of every row. If `pair` is not NULL, the term reads x after the pair's dropout. */
static void add_term(struct compute *c, const struct low_rank_args *a, int index,
    const struct tape_parameter *pair) {
    const size_t mark = arena_mark(c->arena);
    const int64_t rows = a->x->shape[0];
    struct low_rank_row *one = calloc((size_t)rows, sizeof(*one));
    if (!one) {
        error_set(&c->error, ERROR_NO_MEMORY, "no memory for a tape's terms");
        return;
    }
    for (int64_t i = 0; i < rows; i++)
        one[i] = (struct low_rank_row){ &a->rows[i].terms[index], 1 };
    struct tensor x = *a->x;
    if (pair) {
        x = room_like(c, a->x, a->x->shape[a->x->rank - 1]);
        op_dropout(c, &(struct dropout_args){ .x = a->x,
                          .p = pair->dropout,
                          .seed = pair->seed,
                          .step = pair->step,
                          .layer = pair->layer,
                          .y = &x });
    }
    op_low_rank(c, &(struct low_rank_args){ .x = &x, .kind = a->kind, .rows = one, .y = a->y });
    arena_release(c->arena, mark);
    free(one);
}

static bool same_count(const struct low_rank_args *a) {
    bool same = true;
    for (int64_t i = 1; i < a->x->shape[0]; i++)
        same = same && a->rows[i].count == a->rows[0].count;
    return same;
}

/* Splits a call with dropout into one call per term. call_create checks that every row has the
 * terms of the first row. */
static bool split_low_rank(struct compute *c, const struct low_rank_args *a) {
    bool any = false;
    for (int i = 0; i < a->rows[0].count; i++)
        any |= dropped_out(c->tape, &a->rows[0].terms[i]) != NULL;
    if (!any || c->tape->splits || !same_count(a))
        return false;
    c->tape->splits = true;
    for (int i = 0; compute_ok(c) && i < a->rows[0].count; i++)
        add_term(c, a, i, dropped_out(c->tape, &a->rows[0].terms[i]));
    c->tape->splits = false;
    return true;
}

bool tape_split(struct compute *c, enum operation operation, const void *args) {
    switch (operation) {
    case OPERATION_linear:
        return split_linear(c, args);
    case OPERATION_add:
        return split_add(c, args);
    case OPERATION_low_rank:
        return split_low_rank(c, args);
    default:
        return false;
    }
}
