#include "kernels/tape/call.h"

#include <stdlib.h>
#include <string.h>

/* Where an operation's arguments have pointers to tensors. In a forward operation, the output comes
 * first. */
struct layout {
    size_t count; /* 0: a tape does not support this operation */
    size_t at[CALL_MAX_TENSORS];
};

#define AT(operation, member) offsetof(struct operation##_args, member)
#define L1(o, a) [OPERATION_##o] = { 1, { AT(o, a) } }
#define L2(o, a, b) [OPERATION_##o] = { 2, { AT(o, a), AT(o, b) } }
#define L3(o, a, b, c) [OPERATION_##o] = { 3, { AT(o, a), AT(o, b), AT(o, c) } }
#define L4(o, a, b, c, d) [OPERATION_##o] = { 4, { AT(o, a), AT(o, b), AT(o, c), AT(o, d) } }
#define L5(o, a, b, c, d, e)                                                                       \
    [OPERATION_##o] = { 5, { AT(o, a), AT(o, b), AT(o, c), AT(o, d), AT(o, e) } }
#define L6(o, a, b, c, d, e, f)                                                                    \
    [OPERATION_##o] = { 6, { AT(o, a), AT(o, b), AT(o, c), AT(o, d), AT(o, e), AT(o, f) } }
#define L7(o, a, b, c, d, e, f, g)                                                                 \
    [OPERATION_##                                                                                  \
        o] = { 7, { AT(o, a), AT(o, b), AT(o, c), AT(o, d), AT(o, e), AT(o, f), AT(o, g) } }
#define L9(o, a, b, c, d, e, f, g, h, i)                                                           \
    [OPERATION_##o] = { 9, { AT(o, a), AT(o, b), AT(o, c), AT(o, d), AT(o, e), AT(o, f), AT(o, g), \
                               AT(o, h), AT(o, i) } }

static const struct layout layouts[] = {
    L3(linear, y, x, residual),
    L4(conv2d, y, x, row_add, residual),
    L4(group_norm, y, x, gamma, beta),
    L4(layer_norm, y, x, gamma, beta),
    L5(attention, y, q, k, v, lengths),
    L4(embedding, y, ids, table, positions),
    L2(timestep_embedding, y, timesteps),
    L3(add, y, a, b),
    L3(concat, y, a, b),
    L2(convert, y, x),
    L2(low_rank, y, x),
    L3(geglu, y, h, residual),
    L2(dropout, y, x),
    L5(linear_backward, dy, x, dx, dw, dbias),
    L6(conv2d_backward, dy, x, dx, dw, dbias, d_row_add),
    L7(group_norm_backward, dy, x, gamma, beta, dx, dgamma, dbeta),
    L6(layer_norm_backward, dy, x, gamma, dx, dgamma, dbeta),
    L9(attention_backward, q, k, v, y, dy, lengths, dq, dk, dv),
    L4(embedding_backward, ids, dy, dtable, dpositions),
    L3(activation_backward, dy, x, dx),
    L3(geglu_backward, dy, h, dh),
    L3(concat_backward, dy, da, db),
    L3(low_rank_backward, dy, x, dx),
};

static const size_t args_bytes[] = {
#define BYTES(name) [OPERATION_##name] = sizeof(struct name##_args),
    ALL_OPERATIONS(BYTES)
#undef BYTES
};

static const char *const names[] = {
#define NAME(name) [OPERATION_##name] = #name,
    ALL_OPERATIONS(NAME)
#undef NAME
};

static const struct layout *layout_of(enum operation operation) {
    static const struct layout none;
    return operation < sizeof(layouts) / sizeof(layouts[0]) ? &layouts[operation] : &none;
}

/* Returns the tensor at offset `at` of the arguments, or NULL. */
static const struct tensor *tensor_at(const void *args, size_t at) {
    const struct tensor *t;
    memcpy(&t, (const char *)args + at, sizeof(t));
    return t;
}

static void *copy_of(const void *from, size_t count, size_t size) {
    void *copy = malloc(count * size + 1);
    if (copy)
        memcpy(copy, from, count * size);
    return copy;
}

static bool same_terms(const struct low_rank_row *a, const struct low_rank_row *b) {
    bool same = a->count == b->count;
    for (int i = 0; same && i < a->count; i++) {
        const struct low_rank_term *x = &a->terms[i], *y = &b->terms[i];
        same = x->down == y->down && x->up == y->up && x->rank == y->rank && x->first == y->first &&
               x->n == y->n && x->scale == y->scale;
    }
    return same;
}

static bool copy_rows(struct call *call, struct error *err) {
    struct low_rank_args *a = &call->args.low_rank;
    const int64_t rows = call->tensors[1].shape[0];
    for (int64_t i = 1; i < rows; i++)
        if (!same_terms(&a->rows[0], &a->rows[i]))
            return error_set(err, ERROR_UNSUPPORTED,
                "row %lld of a batch in training has other terms than row 0", (long long)i);
    call->terms = copy_of(a->rows[0].terms, (size_t)a->rows[0].count, sizeof(*call->terms));
    call->rows = calloc((size_t)rows, sizeof(*call->rows));
    if (!call->terms || !call->rows)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tape's terms");
    for (int64_t i = 0; i < rows; i++)
        call->rows[i] = (struct low_rank_row){ call->terms, a->rows[0].count };
    a->rows = call->rows;
    a->spans = NULL;
    a->terms = NULL;
    return true;
}

static bool copy_terms(struct call *call, struct error *err) {
    struct low_rank_backward_args *a = &call->args.low_rank_backward;
    call->terms = copy_of(a->terms, (size_t)a->count, sizeof(*call->terms));
    call->gradients = copy_of(a->gradients, (size_t)a->count, sizeof(*call->gradients));
    a->terms = call->terms;
    a->gradients = call->gradients;
    return (call->terms && call->gradients) ||
           error_set(err, ERROR_NO_MEMORY, "no memory for a tape's terms");
}

bool call_create(enum operation operation, const void *args, struct call **out, struct error *err) {
    const struct layout *layout = layout_of(operation);
    *out = NULL;
    if (!layout->count)
        return error_set(
            err, ERROR_UNSUPPORTED, "%s cannot be part of a training pass", names[operation]);
    struct call *call = calloc(1, sizeof(*call));
    if (!call)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tape's call");
    call->operation = operation;
    memcpy(&call->args, args, args_bytes[operation]);
    for (size_t i = 0; i < layout->count; i++) {
        const struct tensor *t = tensor_at(args, layout->at[i]), *kept = NULL;
        if (t) {
            call->tensors[call->tensor_count] = *t;
            kept = &call->tensors[call->tensor_count++];
        }
        memcpy((char *)&call->args + layout->at[i], &kept, sizeof(kept));
    }
    bool ok = true;
    if (operation == OPERATION_low_rank)
        ok = copy_rows(call, err);
    else if (operation == OPERATION_low_rank_backward)
        ok = copy_terms(call, err);
    if (!ok) {
        call_destroy(call);
        return false;
    }
    *out = call;
    return true;
}

void call_destroy(struct call *call) {
    if (!call)
        return;
    free(call->terms);
    free(call->rows);
    free(call->gradients);
    free(call);
}

void call_run(const struct call *call, struct compute *c) {
    switch (call->operation) {
#define RUN(name)                                                                                  \
    case OPERATION_##name:                                                                         \
        op_##name(c, &call->args.name);                                                            \
        break;
        ALL_OPERATIONS(RUN)
#undef RUN
    }
}

const struct tensor *call_output(const struct call *call) {
    return &call->tensors[0];
}

int call_inputs(const struct call *call, const struct tensor *inputs[CALL_MAX_TENSORS]) {
    const bool adds = call->operation == OPERATION_low_rank ||
                      (call->operation == OPERATION_dropout && call->args.dropout.accumulate);
    int count = 0;
    for (int i = adds ? 0 : 1; i < call->tensor_count; i++)
        inputs[count++] = &call->tensors[i];
    return count;
}
