#include "kernels/tape.h"

#include "base/list.h"
#include "kernels/tape/plan.h"

#include <stdlib.h>
#include <string.h>

/* An advance runs at most 1 / ADVANCES of the forward's work, or as much as the most expensive call
 * if that is more. */
#define ADVANCES 32

bool works_add(struct works *works, const struct work *work, struct error *err) {
    if (!LIST_ROOM(works->items, works->count, "the plan of a training pass", err))
        return false;
    works->items[works->count++] = *work;
    return true;
}

const struct tape_parameter *tape_find_parameter(
    const struct tape *tape, enum tape_parameter_kind kind, const void *what) {
    for (int i = 0; i < tape->parameter_count; i++)
        if (tape->parameters[i].kind == kind && tape->parameters[i].what == what)
            return &tape->parameters[i];
    return NULL;
}

const struct tape_parameter *tape_find_pair(
    const struct tape *tape, const struct low_rank_term *term) {
    for (int i = 0; i < tape->parameter_count; i++)
        if (tape->parameters[i].kind == TAPE_PAIR &&
            low_rank_pair_factors(tape->parameters[i].what).down == term->down)
            return &tape->parameters[i];
    return NULL;
}

void tape_destroy(struct tape *tape) {
    if (!tape)
        return;
    for (size_t i = 0; i < tape->call_count; i++)
        call_destroy(tape->calls[i].call);
    for (size_t i = 0; i < tape->adjoints.count; i++)
        call_destroy(tape->adjoints.items[i].call);
    free(tape->parameters);
    free(tape->calls);
    free(tape->outsides);
    free(tape->adjoints.items);
    free(tape->program.items);
    free(tape->weights);
    if (!tape->shared)
        arena_destroy(tape->arena);
    tape->kernels->memory->release(MEMORY_WEIGHTS, tape->terms, tape->terms_bytes);
    free(tape);
}

/* --- planning --- */

static bool trace(struct tape *tape, const struct compute *like,
    void (*forward)(struct compute *c, void *user), void *user, struct error *err) {
    struct compute c = { .kernels = like->kernels,
        .arena = tape->arena,
        .overlay = like->overlay,
        .tape = tape,
        .dry_run = true };
    arena_plan_begin(tape->arena);
    tape->base = (uintptr_t)arena_alloc(tape->arena, 0);
    arena_release(tape->arena, 0);
    forward(&c, user);
    tape->block_bytes[BLOCK_VALUES] = arena_plan_end(tape->arena);
    if (!compute_ok(&c) && err)
        *err = c.error;
    return compute_ok(&c);
}

static bool make_program(struct tape *tape, bool checkpointing, struct error *err) {
    size_t whole[] = { 0, tape->call_count }, *saved = &tape->block_bytes[BLOCK_SAVED];
    struct segments segments = { .cuts = whole, .count = 1 };
    tape->figures.segments = 1;
    if (!checkpointing)
        return tape_put_together(tape, &segments, true, saved, err);
    segments.cuts = NULL;
    const bool ok = tape_choose_segments(tape, &segments, err) &&
                    tape_put_together(tape, &segments, true, saved, err);
    tape->figures.segments = (int)segments.count;
    segments_finish(&segments);
    return ok;
}

static void run_hook(const struct tape *tape, const struct work *work, struct compute *c) {
    if (!tape->hook(tape->user, work->hook, work->index, &c->error) && compute_ok(c))
        error_set(&c->error, ERROR_INTERNAL, "hook %d of a training pass failed without an error",
            (int)work->hook);
}

static bool run(const struct tape *tape, const struct work *work, struct compute *c) {
    const struct device_memory *memory = c->kernels->memory;
    if (!compute_ok(c))
        return false;
    if (work->call)
        call_run(work->call, c);
    else if (c->dry_run)
        return true;
    else if (work->hook)
        run_hook(tape, work, c);
    else if (work->from)
        (void)memory->copy(work->to, work->from, work->bytes, &c->error);
    else
        (void)memory->zero(work->to, work->bytes, &c->error);
    return compute_ok(c);
}

/* Called in a dry run. Checks every call, plans its scratch memory, and counts its work. */
static void run_all(struct compute *c, void *user) {
    struct tape *tape = user;
    for (size_t i = 0; i < tape->program.count; i++) {
        struct work *work = &tape->program.items[i];
        const double before = c->flops;
        if (!run(tape, work, c))
            return;
        work->flops = c->flops - before;
    }
}

/* Returns the end of the advance that begins at `first`. *flops: its work. */
static size_t advance_end(const struct tape *tape, size_t first, double *flops) {
    const struct work *items = tape->program.items;
    size_t i = first;
    *flops = 0;
    do
        *flops += items[i++].flops;
    while (i < tape->program.count && i != tape->middle &&
           *flops + items[i].flops <= tape->advance_flops);
    return i;
}

static void count_advances(struct tape *tape) {
    struct tape_figures *f = &tape->figures;
    for (size_t i = 0; i < tape->program.count; i++) {
        const double flops = tape->program.items[i].flops;
        f->call_flops = flops > f->call_flops ? flops : f->call_flops;
        f->flops += flops;
        f->forward_flops += i < tape->middle ? flops : 0;
    }
    tape->advance_flops = f->forward_flops / ADVANCES;
    if (tape->advance_flops < f->call_flops)
        tape->advance_flops = f->call_flops;
    double flops;
    for (size_t i = 0; i < tape->program.count; i = advance_end(tape, i, &flops), f->advances++) {
        (void)advance_end(tape, i, &flops);
        f->advance_flops = flops > f->advance_flops ? flops : f->advance_flops;
    }
}

static size_t blocks_bytes(const struct tape *tape) {
    size_t bytes = 0;
    for (int i = 0; i < BLOCK_COUNT; i++)
        bytes += tape->block_bytes[i];
    return bytes;
}

static bool plan(struct tape *tape, const struct tensor *seed, const struct tape_options *options,
    struct error *err) {
    struct tape_figures *f = &tape->figures;
    if (!tape_adjoin(tape, seed, err))
        return false;
    if (!tape->ending && options->count)
        return error_set(err, ERROR_INVALID, "nothing that is trained reaches the output");
    if (!make_program(tape, options->checkpointing, err) ||
        (tape->hook && !tape_put_hooks(tape, err)))
        return false;
    for (int i = 0; i < BLOCK_COUNT; i++)
        tape->block_bytes[i] = (tape->block_bytes[i] + MEMORY_ALIGNMENT - 1) / MEMORY_ALIGNMENT *
                               MEMORY_ALIGNMENT;
    if (!compute_measure(&tape->compute, run_all, tape, &f->scratch_bytes, err))
        return error_prefix(err, "a training pass");
    f->saved_bytes = tape->block_bytes[BLOCK_SAVED];
    f->calls = (int)tape->call_count;
    f->adjoints = (int)tape->adjoints.count;
    count_advances(tape);
    return true;
}

static bool create(const struct compute *like, void (*forward)(struct compute *c, void *user),
    void *user, const struct tensor *seed, const struct tape_options *options, struct tape **out,
    struct error *err) {
    const size_t count = (size_t)options->count;
    struct tape *tape = calloc(1, sizeof(*tape));
    bool ok = tape && (tape->parameters = calloc(count + 1, sizeof(*tape->parameters)));
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for a tape");
    if (tape)
        tape->kernels = like->kernels;
    if (ok) {
        tape->parameter_count = options->count;
        if (count)
            memcpy(tape->parameters, options->parameters, count * sizeof(*tape->parameters));
        tape->arena = options->arena;
        tape->shared = options->arena != NULL;
        tape->hook = options->hook;
        tape->user = options->user;
        ok = tape->shared || arena_create(like->kernels->memory, &tape->arena, err);
        tape->compute = (struct compute){ .kernels = like->kernels, .arena = tape->arena };
    }
    if (!ok || !trace(tape, like, forward, user, err) || !plan(tape, seed, options, err)) {
        tape_destroy(tape);
        return false;
    }
    *out = tape;
    return true;
}

/* --- memory --- */

/* Returns the address of `p` after the blocks move to `to`. p is a planned address or, if the tape
 * has memory already, an address in the present blocks. Other addresses stay the same. */
static void *placed(const struct tape *tape, char *to, const size_t *starts, const void *p) {
    enum tape_block block;
    size_t at;
    if (!tape->memory)
        return tape_place(tape, (uintptr_t)p, &block, &at) ? to + starts[block] + at : (void *)p;
    at = (size_t)((uintptr_t)p - (uintptr_t)tape->memory);
    return at < blocks_bytes(tape) ? to + at : (void *)p;
}

static void place_call(const struct tape *tape, char *to, const size_t *starts, struct call *call) {
    for (int i = 0; call && i < call->tensor_count; i++)
        call->tensors[i].data = placed(tape, to, starts, call->tensors[i].data);
}

/* Changes all addresses of the tape, because the blocks are at `to` from now on. */
static void place(struct tape *tape, char *to) {
    size_t starts[BLOCK_COUNT], start = 0;
    for (int i = 0; i < BLOCK_COUNT; start += tape->block_bytes[i++])
        starts[i] = start;
    for (size_t i = 0; i < tape->call_count; i++)
        place_call(tape, to, starts, tape->calls[i].call);
    for (size_t i = 0; i < tape->adjoints.count; i++)
        place_call(tape, to, starts, tape->adjoints.items[i].call);
    for (size_t i = 0; i < tape->program.count; i++) {
        struct work *work = &tape->program.items[i];
        work->to = placed(tape, to, starts, work->to);
        work->from = placed(tape, to, starts, work->from);
    }
    tape->memory = to;
    tape->outside_memory = to + starts[BLOCK_OUTSIDE];
}

/* Takes the whole arena, which may have moved since the last pass. */
static void take_arena(struct tape *tape) {
    arena_release(tape->arena, 0);
    char *memory = arena_alloc(tape->arena, blocks_bytes(tape));
    if (memory != tape->memory)
        place(tape, memory);
}

bool tape_create(const struct compute *like, void (*forward)(struct compute *c, void *user),
    void *user, const struct tensor *seed, const struct tape_options *options, struct tape **out,
    struct error *err) {
    *out = NULL;
    struct tape *tape;
    if (!create(like, forward, user, seed, options, &tape, err))
        return false;
    arena_release(tape->arena, 0);
    if (!arena_reserve(tape->arena, blocks_bytes(tape) + tape->figures.scratch_bytes, err) ||
        !tape_upload_terms(tape, err)) {
        tape_destroy(tape);
        return error_prefix(err, "a training pass");
    }
    take_arena(tape);
    tape->next = tape->program.count;
    *out = tape;
    return true;
}

size_t tape_bytes(const struct tape *tape) {
    return arena_block_bytes(blocks_bytes(tape) + tape->figures.scratch_bytes);
}

const struct packed *const *tape_weights(const struct tape *tape, int *count) {
    *count = (int)tape->weight_count;
    return tape->weights;
}

struct tensor tape_gradient(const struct tape *tape, const struct tensor *of) {
    struct tensor gradient = *of;
    const struct interval i = tensor_interval(of);
    gradient.data = NULL;
    for (size_t k = 0; k < tape->outside_count; k++) {
        const struct outside *o = &tape->outsides[k];
        if (i.begin >= o->of.begin && i.end <= o->of.end)
            gradient.data = tape->outside_memory + o->at + (i.begin - o->of.begin);
    }
    return gradient;
}

/* --- running --- */

void tape_begin(struct tape *tape) {
    take_arena(tape);
    tape->next = 0;
    tape->compute.error = (struct error){ 0 };
}

bool tape_advance(struct tape *tape, enum tape_point *reached, struct error *err) {
    double flops;
    *reached = TAPE_END;
    if (tape->next == tape->program.count)
        return error_set(err, ERROR_INTERNAL, "a training pass goes on that has not begun");
    const size_t end = advance_end(tape, tape->next, &flops);
    while (tape->next < end && run(tape, &tape->program.items[tape->next], &tape->compute))
        tape->next++;
    if (!compute_ok(&tape->compute)) {
        tape->next = tape->program.count;
        if (err)
            *err = tape->compute.error;
        return false;
    }
    *reached = end == tape->program.count ? TAPE_END
               : end == tape->middle      ? TAPE_MIDDLE
                                          : TAPE_BETWEEN;
    return true;
}
