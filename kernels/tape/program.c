/* Puts a pass in order. First comes the forward, segment by segment. Then, from the last segment to
 * the first, come the calls of the segment that must run again (none if the segment is held) and
 * the segment's adjoints.
 *
 * A value that the backward reads is not copied if nothing overwrites it before the end of its
 * segment. Otherwise it is copied as soon as it exists; all adjoints that read the same value share
 * one copy. In the same way, a segment's inputs are kept until the segment runs again, and the
 * values that a held segment saves are kept until its adjoints have run. */
#include "kernels/tape/plan.h"

#include "base/list.h"

#include <stdlib.h>

/* Where values have been copied to. A copy is forgotten when its value is overwritten. */
struct copy {
    struct interval of;
    uintptr_t at;
};
struct copies {
    struct copy *items; /* owned */
    size_t count;
};

struct restore {
    size_t segment;
    struct work work;
};

struct builder {
    struct tape *tape;
    const struct segments *segments;
    bool write;
    struct intervals *inputs; /* owned, per segment: its inputs that are overwritten later */
    bool *again;              /* owned: whether the backward runs each call again */
    struct copies kept, saved;
    struct restore *restores; /* owned */
    size_t restore_count;
    size_t kept_bytes, segment_bytes, most_segment_bytes;
    size_t *by_call; /* borrowed, or NULL */
    struct error *err;
    bool ok;
};

static struct interval written(const struct builder *b, size_t call) {
    return tensor_interval(call_output(b->tape->calls[call].call));
}

static void push(struct builder *b, const struct work *work) {
    if (b->write)
        b->ok = b->ok && works_add(&b->tape->program, work, b->err);
}

static bool is_held(const struct builder *b, size_t segment) {
    return segment + 1 == b->segments->count || (b->segments->held && b->segments->held[segment]);
}

/* --- copies --- */

static void copies_add(struct builder *b, struct copies *c, struct interval of, uintptr_t at) {
    b->ok = b->ok && LIST_ROOM(c->items, c->count, "the plan of a training pass", b->err);
    if (b->ok)
        c->items[c->count++] = (struct copy){ of, at };
}

/* Forgets copies of memory i, because it is being overwritten. */
static void copies_forget(struct builder *b, struct copies *c, struct interval i) {
    for (size_t k = c->count; k-- > 0;) {
        const struct copy old = c->items[k];
        if (!interval_overlap(old.of, i))
            continue;
        c->items[k] = c->items[--c->count];
        if (old.of.begin < i.begin)
            copies_add(b, c, (struct interval){ old.of.begin, i.begin }, old.at);
        if (old.of.end > i.end)
            copies_add(
                b, c, (struct interval){ i.end, old.of.end }, old.at + (i.end - old.of.begin));
    }
}

/* Finds the copy that holds the first bytes of *i, and cuts *i to the piece that this copy holds.
 * If no copy holds the first bytes, returns false and cuts *i to the piece that no copy holds. */
static bool copies_find(const struct copies *c, struct interval *i, uintptr_t *at) {
    for (size_t k = 0; k < c->count; k++) {
        const struct interval of = c->items[k].of;
        if (of.begin <= i->begin && i->begin < of.end) {
            *at = c->items[k].at + (i->begin - of.begin);
            i->end = of.end < i->end ? of.end : i->end;
            return true;
        }
    }
    for (size_t k = 0; k < c->count; k++) {
        const uintptr_t begin = c->items[k].of.begin;
        if (begin > i->begin && begin < i->end)
            i->end = begin;
    }
    return false;
}

static size_t rounded(size_t bytes) {
    return (bytes + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT * MEMORY_ALIGNMENT;
}

/* Copies i to the saved block, at `start` + *bytes, and increases *bytes. Returns the copy's
 * address. */
static uintptr_t copy_out(
    struct builder *b, struct copies *c, struct interval i, size_t start, size_t *bytes) {
    const uintptr_t at = tape_address(b->tape, BLOCK_SAVED, start + *bytes);
    push(b, &(struct work){
                .to = (void *)at, .from = (const void *)i.begin, .bytes = i.end - i.begin });
    *bytes += rounded(i.end - i.begin);
    copies_add(b, c, i, at);
    return at;
}

/* --- what the adjoints read --- */

/* Whether a tensor of an adjoint is in the forward's memory (or a constant). */
static bool is_value(const struct tape *tape, const struct tensor *t) {
    enum tape_block block;
    size_t at;
    return !tape_place(tape, (uintptr_t)t->data, &block, &at) || block == BLOCK_VALUES;
}

/* Whether the backward reads t's value from after the call. Only attention's backward does: it
 * reads the output. */
static bool is_after(const struct call *call, const struct tensor *t) {
    return call->operation == OPERATION_attention && tensor_is_same(t, call_output(call));
}

/* Calls `see` with each value that the backward of a call reads: with `after`, the values from
 * after the call, otherwise those from before it. */
static void each_value(struct builder *b, size_t call, bool after,
    void (*see)(struct builder *b, size_t call, struct tensor *value, void *user), void *user) {
    const struct traced *traced = &b->tape->calls[call];
    for (size_t k = traced->adjoint; k < traced->adjoint_end; k++) {
        struct call *adjoint = b->tape->adjoints.items[k].call;
        for (int i = 0; adjoint && i < adjoint->tensor_count; i++)
            if (is_value(b->tape, &adjoint->tensors[i]) &&
                is_after(traced->call, &adjoint->tensors[i]) == after)
                see(b, call, &adjoint->tensors[i], user);
    }
}

static void add_wanted(struct builder *b, size_t call, struct tensor *value, void *user) {
    (void)b;
    (void)call;
    intervals_add(user, tensor_interval(value));
}

/* Finds the calls of a segment that must run again, and the inputs that the segment needs for
 * this. */
static void find_again(struct builder *b, size_t segment) {
    struct intervals *wanted = &b->inputs[segment];
    for (size_t i = b->segments->cuts[segment + 1]; i-- > b->segments->cuts[segment];) {
        each_value(b, i, true, add_wanted, wanted);
        if (intervals_overlap(wanted, written(b, i))) {
            const struct tensor *inputs[CALL_MAX_TENSORS];
            const int count = call_inputs(b->tape->calls[i].call, inputs);
            b->again[i] = true;
            intervals_subtract(wanted, written(b, i));
            for (int k = 0; k < count; k++)
                intervals_add(wanted, tensor_interval(inputs[k]));
        }
        each_value(b, i, false, add_wanted, wanted);
    }
    b->ok = b->ok && !wanted->failed;
}

/* Finds the inputs of segments that must be kept: only those that are overwritten after the segment
 * begins. */
static void find_inputs(struct builder *b) {
    struct intervals later = { 0 };
    for (size_t s = b->segments->count; b->ok && s-- > 0;) {
        for (size_t i = b->segments->cuts[s]; i < b->segments->cuts[s + 1]; i++)
            intervals_add(&later, written(b, i));
        if (is_held(b, s))
            continue;
        find_again(b, s);
        struct intervals lost = { 0 };
        for (size_t i = 0; i < b->inputs[s].count; i++) {
            struct interval rest = b->inputs[s].items[i], piece;
            while (intervals_piece(&later, rest, true, &piece)) {
                intervals_add(&lost, piece);
                rest.begin = piece.end;
            }
        }
        b->ok = b->ok && !lost.failed;
        intervals_finish(&b->inputs[s]);
        b->inputs[s] = lost;
    }
    b->ok = b->ok && !later.failed;
    intervals_finish(&later);
}

/* --- running --- */

/* A range of calls that the pass runs. The values that their backward reads are saved where a later
 * call would overwrite them. The builder's copies then tell where the saved values are. */
struct stretch {
    size_t first, end;
    size_t until; /* its values must last up to this call */
    bool again;   /* second run, only as far as needed */
    bool kept;    /* saved until its adjoints have run, in builder.kept */
};

static bool runs(const struct builder *b, const struct stretch *s, size_t call) {
    return !s->again || b->again[call];
}

static void save(struct builder *b, size_t call, struct tensor *value, void *user) {
    const struct stretch *s = user;
    const struct interval i = tensor_interval(value);
    bool lost = false;
    for (size_t k = is_after(b->tape->calls[call].call, value) ? call + 1 : call;
         !lost && k < s->until; k++)
        lost = runs(b, s, k) && interval_overlap(i, written(b, k));
    if (!lost)
        return;
    struct copies *copies = s->kept ? &b->kept : &b->saved;
    size_t *bytes = s->kept ? &b->kept_bytes : &b->segment_bytes;
    struct interval found = i;
    uintptr_t at;
    if (!copies_find(copies, &found, &at) || found.end != i.end) {
        const size_t before = *bytes;
        at = copy_out(b, copies, i, s->kept ? 0 : b->kept_bytes, bytes);
        if (b->by_call)
            b->by_call[call] += *bytes - before;
    }
    if (b->write)
        value->data = (void *)at;
}

static void run_and_save(struct builder *b, struct stretch s) {
    b->saved.count = 0;
    b->segment_bytes = 0;
    for (size_t i = s.first; b->ok && i < s.end; i++) {
        each_value(b, i, false, save, &s);
        if (runs(b, &s, i)) {
            push(b, &(struct work){ .call = b->tape->calls[i].call });
            copies_forget(b, &b->saved, written(b, i));
            if (!s.again)
                copies_forget(b, &b->kept, written(b, i));
            b->tape->figures.again += b->write && s.again;
        }
        each_value(b, i, true, save, &s);
    }
    if (b->segment_bytes > b->most_segment_bytes)
        b->most_segment_bytes = b->segment_bytes;
}

/* Copies the segment's inputs, except those of which a copy exists already. */
static void keep_inputs(struct builder *b, size_t segment) {
    const struct intervals *inputs = &b->inputs[segment];
    for (size_t k = 0; k < inputs->count; k++) {
        for (struct interval rest = inputs->items[k]; b->ok && rest.begin < rest.end;) {
            struct interval piece = rest;
            uintptr_t at;
            if (!copies_find(&b->kept, &piece, &at))
                at = copy_out(b, &b->kept, piece, 0, &b->kept_bytes);
            b->ok = b->ok &&
                    LIST_ROOM(b->restores, b->restore_count, "the plan of a training pass", b->err);
            if (b->ok)
                b->restores[b->restore_count++] = (struct restore){ segment,
                    { .to = (void *)piece.begin,
                        .from = (const void *)at,
                        .bytes = piece.end - piece.begin } };
            rest.begin = piece.end;
        }
    }
}

static void run_forward(struct builder *b) {
    const size_t *cuts = b->segments->cuts, last = b->segments->count - 1;
    for (size_t s = 0; b->ok && s < last; s++) {
        if (is_held(b, s)) {
            run_and_save(b, (struct stretch){ cuts[s], cuts[s + 1], cuts[last + 1], false, true });
            continue;
        }
        keep_inputs(b, s);
        for (size_t i = cuts[s]; i < cuts[s + 1]; i++) {
            push(b, &(struct work){ .call = b->tape->calls[i].call });
            copies_forget(b, &b->kept, written(b, i));
        }
    }
    run_and_save(b, (struct stretch){ cuts[last], cuts[last + 1], cuts[last + 1], false, false });
}

static void run_backward(struct builder *b) {
    const size_t *cuts = b->segments->cuts;
    const struct works *adjoints = &b->tape->adjoints;
    for (size_t s = b->segments->count; b->ok && s-- > 0;) {
        for (size_t k = 0; k < b->restore_count; k++)
            if (b->restores[k].segment == s)
                push(b, &b->restores[k].work);
        if (!is_held(b, s))
            run_and_save(b, (struct stretch){ cuts[s], cuts[s + 1], cuts[s + 1], true, false });
        for (size_t i = cuts[s + 1]; i-- > cuts[s];)
            for (size_t k = b->tape->calls[i].adjoint; k < b->tape->calls[i].adjoint_end; k++)
                push(b, &adjoints->items[k]);
    }
    for (size_t k = b->tape->ending; k < adjoints->count; k++)
        push(b, &adjoints->items[k]);
}

static bool build(struct tape *tape, const struct segments *segments, bool write, size_t *by_call,
    size_t *saved, struct error *err) {
    struct builder b = { .tape = tape,
        .segments = segments,
        .write = write,
        .inputs = calloc(segments->count, sizeof(*b.inputs)),
        .again = calloc(tape->call_count + 1, sizeof(*b.again)),
        .by_call = by_call,
        .err = err };
    b.ok = b.inputs && b.again;
    if (b.ok) {
        find_inputs(&b);
        run_forward(&b);
        if (write)
            tape->middle = tape->program.count;
        run_backward(&b);
    }
    for (size_t s = 0; b.inputs && s < segments->count; s++)
        intervals_finish(&b.inputs[s]);
    free(b.inputs);
    free(b.again);
    free(b.kept.items);
    free(b.saved.items);
    free(b.restores);
    if (saved)
        *saved = b.kept_bytes + b.most_segment_bytes;
    return b.ok || error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
}

bool tape_put_together(struct tape *tape, const struct segments *segments, bool write,
    size_t *saved, struct error *err) {
    return build(tape, segments, write, NULL, saved, err);
}

bool tape_saved_by_call(struct tape *tape, size_t *bytes, struct error *err) {
    size_t cuts[] = { 0, tape->call_count };
    const struct segments one = { .cuts = cuts, .count = 1 };
    for (size_t i = 0; i < tape->call_count; i++)
        bytes[i] = 0;
    return build(tape, &one, false, bytes, NULL, err);
}
