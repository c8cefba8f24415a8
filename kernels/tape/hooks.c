/* Puts the hooks of tape.h into a program, once, when the tape is made. */
#include "kernels/tape/plan.h"

#include "base/list.h"

#include <stdlib.h>

/* Where the gradient of a parameter lies. */
struct address {
    const float *gradient;
    int parameter;
};

/* The place of a hook: before item `before` of the program without hooks. */
struct spot {
    size_t before;
    int parameter;
};

struct plan {
    struct tape *tape;
    struct address *addresses; /* owned, sorted: two per parameter, or fewer */
    size_t address_count;
    struct spot *spots; /* owned, [parameter_count], sorted; the parameter's last write is before */
    size_t spot_count, spot;
    struct works works; /* the program with hooks */
    struct error *err;
    bool ok;
};

/* --- where gradients are done --- */

static int by_address(const void *a, const void *b) {
    const uintptr_t x = (uintptr_t)((const struct address *)a)->gradient;
    const uintptr_t y = (uintptr_t)((const struct address *)b)->gradient;
    return x < y ? -1 : x > y;
}

static int by_place(const void *a, const void *b) {
    const struct spot *x = a, *y = b;
    if (x->before != y->before)
        return x->before < y->before ? -1 : 1;
    return x->parameter < y->parameter ? -1 : x->parameter > y->parameter;
}

/* Notes that item `item` of the program writes to `data`, if a parameter's gradient lies there. */
static void see_write(struct plan *p, const float *data, size_t item) {
    const struct address key = { data, 0 };
    const struct address *found = bsearch(
        &key, p->addresses, p->address_count, sizeof(key), by_address);
    if (found)
        p->spots[found->parameter].before = item + 1;
}

static void see_writes(struct plan *p, const struct call *call, size_t item) {
    for (int i = 0; i < call->tensor_count; i++)
        see_write(p, call->tensors[i].data, item);
    if (call->operation != OPERATION_low_rank_backward)
        return;
    for (int i = 0; i < call->args.low_rank_backward.count; i++) {
        see_write(p, call->gradients[i].down, item);
        see_write(p, call->gradients[i].up, item);
    }
}

/* The tape does not write to the gradients that a TAPE_INPUT may name. */
static bool has_hook(const struct tape_parameter *p) {
    return p->kind != TAPE_INPUT && (p->gradient[0] || p->gradient[1]);
}

/* Finds the place behind each gradient's last write. A gradient that no call writes is done where
 * the backward begins. */
static void find_spots(struct plan *p) {
    const struct tape *tape = p->tape;
    for (int i = 0; i < tape->parameter_count; i++) {
        p->spots[i] = (struct spot){ tape->middle, i };
        for (int part = 0; part < 2; part++)
            if (has_hook(&tape->parameters[i]) && tape->parameters[i].gradient[part])
                p->addresses[p->address_count++] =
                    (struct address){ tape->parameters[i].gradient[part], i };
    }
    qsort(p->addresses, p->address_count, sizeof(*p->addresses), by_address);
    for (size_t i = tape->middle; i < tape->program.count; i++)
        if (tape->program.items[i].call)
            see_writes(p, tape->program.items[i].call, i);
    for (int i = 0; i < tape->parameter_count; i++)
        if (has_hook(&tape->parameters[i]))
            p->spots[p->spot_count++] = p->spots[i];
    qsort(p->spots, p->spot_count, sizeof(*p->spots), by_place);
}

/* --- which weights are read --- */

/* Returns the weight whose memory the work reads, or NULL. The gradients of a weight and of its
 * bias do not depend on the weight. */
static const struct packed *weight_read(const struct work *work) {
    if (!work->call)
        return NULL;
    const union call_args *a = &work->call->args;
    switch (work->call->operation) {
    case OPERATION_linear:
        return a->linear.weight;
    case OPERATION_conv2d:
        return a->conv2d.weight;
    case OPERATION_linear_backward:
        return a->linear_backward.dx ? a->linear_backward.weight : NULL;
    case OPERATION_conv2d_backward:
        return a->conv2d_backward.dx ? a->conv2d_backward.weight : NULL;
    default:
        return NULL;
    }
}

/* Returns the weight that is read next after item `i`, in the same half of the pass, or NULL. */
static const struct packed *weight_read_next(const struct tape *tape, size_t i) {
    const size_t end = i < tape->middle ? tape->middle : tape->program.count;
    const struct packed *next = NULL;
    while (!next && ++i < end)
        next = weight_read(&tape->program.items[i]);
    return next;
}

/* Returns the number of a weight; adds it if it is new. */
static int number_of(struct plan *p, const struct packed *weight) {
    struct tape *tape = p->tape;
    for (size_t i = 0; i < tape->weight_count; i++)
        if (tape->weights[i] == weight)
            return (int)i;
    p->ok = p->ok &&
            LIST_ROOM(tape->weights, tape->weight_count, "the plan of a training pass", p->err);
    if (p->ok)
        tape->weights[tape->weight_count++] = weight;
    return (int)tape->weight_count - 1;
}

/* --- the program --- */

static void add(struct plan *p, const struct work *work) {
    p->ok = p->ok && works_add(&p->works, work, p->err);
}

static void add_hook(struct plan *p, enum tape_hook hook, int index) {
    add(p, &(struct work){ .hook = hook, .index = index });
}

static void add_done_gradients(struct plan *p, size_t before) {
    for (; p->spot < p->spot_count && p->spots[p->spot].before == before; p->spot++)
        add_hook(p, TAPE_GRADIENT_DONE, p->spots[p->spot].parameter);
}

static void add_hooks(struct plan *p) {
    const struct tape *tape = p->tape;
    const struct packed *present = NULL;
    size_t middle = 0;
    for (size_t i = 0; p->ok && i < tape->program.count; i++) {
        const struct work *work = &tape->program.items[i];
        const struct packed *weight = weight_read(work);
        if (i == tape->middle)
            middle = p->works.count;
        add_done_gradients(p, i);
        if (weight && weight != present)
            add_hook(p, TAPE_WEIGHT_NEEDED, number_of(p, weight));
        add(p, work);
        if (weight)
            present = weight_read_next(tape, i) == weight ? weight : NULL;
        if (weight && !present)
            add_hook(p, TAPE_WEIGHT_DONE, number_of(p, weight));
    }
    const bool forward_only = tape->middle == tape->program.count;
    if (!forward_only)
        add_done_gradients(p, tape->program.count);
    p->tape->middle = forward_only ? p->works.count : middle;
}

bool tape_put_hooks(struct tape *tape, struct error *err) {
    const size_t room = (size_t)tape->parameter_count + 1;
    struct plan p = { .tape = tape,
        .addresses = calloc(2 * room, sizeof(*p.addresses)),
        .spots = calloc(room, sizeof(*p.spots)),
        .err = err,
        .ok = true };
    if (!p.addresses || !p.spots)
        p.ok = error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
    if (p.ok) {
        find_spots(&p);
        add_hooks(&p);
    }
    free(p.addresses);
    free(p.spots);
    if (!p.ok) {
        free(p.works.items);
        return false;
    }
    free(tape->program.items);
    tape->program = p.works;
    return true;
}
