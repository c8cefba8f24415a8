/* Where to cut the forward for checkpointing. A cut before a call costs, roughly, the bytes that
 * are live there and are overwritten later. A segment costs what the backward of its calls saves.
 * For several bounds on what a segment may save, the cheapest cuts are found and the resulting
 * program is measured. The cuts that take the least memory are chosen.
 *
 * If pictures are small and channels many, a call does much work for the bytes that it saves.
 * Segments with the most work per saved byte are therefore held, as long as all saved bytes stay
 * below a share (HELD_SHARE) of what the whole forward would save. */
#include "kernels/tape/plan.h"

#include <stdlib.h>
#include <string.h>

#define BOUNDS 24
#define HELD_SHARE 0.5

struct costs {
    size_t *cut;   /* owned, [calls + 1]: cost of a cut before call i */
    size_t *saved; /* owned, [calls + 1]: bytes saved by all calls before i */
    size_t *best;  /* owned, [calls + 1]: least cost of the cuts up to the one before i */
    size_t *from;  /* owned, [calls + 1]: start of segment up to i */
};

static bool find_costs(struct tape *tape, struct costs *costs, struct error *err) {
    const size_t count = tape->call_count;
    struct intervals live = { 0 }, later = { 0 };
    if (!tape_saved_by_call(tape, costs->saved, err))
        return false;
    for (size_t i = 0, sum = 0; i <= count; i++) {
        const size_t own = i < count ? costs->saved[i] : 0;
        costs->saved[i] = sum;
        sum += own;
    }
    for (size_t i = count; i-- > 0;) {
        const struct call *call = tape->calls[i].call;
        const struct interval y = tensor_interval(call_output(call));
        const struct tensor *inputs[CALL_MAX_TENSORS];
        const int reads = call_inputs(call, inputs);
        intervals_subtract(&live, y);
        for (int k = 0; k < reads; k++)
            intervals_add(&live, tensor_interval(inputs[k]));
        intervals_add(&later, y);
        costs->cut[i] = i ? intervals_common_bytes(&live, &later) : 0;
    }
    const bool ok = !live.failed && !later.failed;
    intervals_finish(&live);
    intervals_finish(&later);
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
}

/* Finds the cheapest cuts whose segments save at most `bound` bytes or consist of one call. */
static void find_cuts(
    const struct costs *costs, size_t count, size_t bound, struct segments *segments) {
    costs->best[0] = 0;
    for (size_t i = 1; i <= count; i++) {
        costs->best[i] = SIZE_MAX;
        for (size_t k = i; k-- > 0;) {
            if (costs->saved[i] - costs->saved[k] > bound && k + 1 < i)
                break;
            if (costs->best[k] <= costs->best[i] - (i < count ? costs->cut[i] : 0)) {
                costs->best[i] = costs->best[k] + (i < count ? costs->cut[i] : 0);
                costs->from[i] = k;
            }
        }
    }
    segments->count = 0;
    for (size_t i = count; i > 0; i = costs->from[i])
        segments->count++;
    size_t at = segments->count;
    segments->cuts[at] = count;
    for (size_t i = count; i > 0; i = costs->from[i])
        segments->cuts[--at] = costs->from[i];
}

static bool choose(
    struct tape *tape, const struct costs *costs, struct segments *best, struct error *err) {
    const size_t count = tape->call_count;
    struct segments tried = { .cuts = calloc(count + 1, sizeof(*tried.cuts)) };
    if (!tried.cuts)
        return error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
    size_t least = SIZE_MAX;
    bool ok = true;
    double bound = (double)costs->saved[count];
    for (int i = 0; ok && i < BOUNDS; i++, bound *= 0.75) {
        size_t saved;
        find_cuts(costs, count, (size_t)bound, &tried);
        ok = tape_put_together(tape, &tried, false, &saved, err);
        if (!ok || (double)saved >= 0.98 * (double)least)
            continue;
        least = saved;
        best->count = tried.count;
        memcpy(best->cuts, tried.cuts, (tried.count + 1) * sizeof(*tried.cuts));
    }
    free(tried.cuts);
    return ok;
}

/* --- held segments --- */

struct candidate {
    size_t segment;
    double flops_by_byte;
};

static int dearest_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->flops_by_byte != y->flops_by_byte)
        return x->flops_by_byte < y->flops_by_byte ? 1 : -1;
    return x->segment < y->segment ? -1 : x->segment > y->segment;
}

/* Called in a dry run. Sets the flops of every call. */
static void count_flops(struct compute *c, void *user) {
    struct tape *tape = user;
    for (size_t i = 0; i < tape->call_count; i++) {
        const double before = c->flops;
        call_run(tape->calls[i].call, c);
        tape->calls[i].flops = c->flops - before;
    }
}

static bool hold(
    struct tape *tape, const struct costs *costs, struct segments *segments, struct error *err) {
    struct candidate *candidates = calloc(segments->count, sizeof(*candidates));
    segments->held = calloc(segments->count, sizeof(*segments->held));
    size_t saved;
    bool ok = candidates && segments->held;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
    ok = ok && compute_measure(&tape->compute, count_flops, tape, &saved, err);
    for (size_t s = 0; ok && s < segments->count; s++) {
        const size_t first = segments->cuts[s], end = segments->cuts[s + 1];
        double flops = 0;
        for (size_t i = first; i < end; i++)
            flops += tape->calls[i].flops;
        candidates[s] = (struct candidate){ s,
            flops / (double)(costs->saved[end] - costs->saved[first] + 1) };
    }
    if (ok)
        qsort(candidates, segments->count, sizeof(*candidates), dearest_first);
    for (size_t i = 0; ok && i < segments->count; i++) {
        bool *held = &segments->held[candidates[i].segment];
        *held = true;
        ok = tape_put_together(tape, segments, false, &saved, err);
        *held = (double)saved <= HELD_SHARE * (double)costs->saved[tape->call_count];
    }
    free(candidates);
    return ok;
}

void segments_finish(struct segments *segments) {
    free(segments->cuts);
    free(segments->held);
    *segments = (struct segments){ 0 };
}

bool tape_choose_segments(struct tape *tape, struct segments *segments, struct error *err) {
    const size_t count = tape->call_count + 1;
    struct costs costs = { .cut = calloc(count, sizeof(size_t)),
        .saved = calloc(count, sizeof(size_t)),
        .best = calloc(count, sizeof(size_t)),
        .from = calloc(count, sizeof(size_t)) };
    *segments = (struct segments){ .cuts = calloc(count, sizeof(size_t)) };
    bool ok = costs.cut && costs.saved && costs.best && costs.from && segments->cuts;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory to plan a training pass");
    ok = ok && find_costs(tape, &costs, err) && choose(tape, &costs, segments, err) &&
         hold(tape, &costs, segments, err);
    free(costs.cut);
    free(costs.saved);
    free(costs.best);
    free(costs.from);
    return ok;
}
