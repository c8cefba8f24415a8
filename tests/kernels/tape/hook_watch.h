/* Checks what the hooks of a tape promise, while passes run. Weights are poisoned with NaN whenever
 * they are not needed, and restored when they are; a pass that reads them nevertheless gives other
 * gradients. Each gradient must be done exactly once and keep its bits from then on. */
#ifndef TESTS_KERNELS_TAPE_HOOK_WATCH_H
#define TESTS_KERNELS_TAPE_HOOK_WATCH_H

#include "kernels/pack.h"
#include "kernels/tape.h"
#include "tests/check.h"

#include <stdlib.h>

/* A weight's numbers, and as many NaNs, in the table's memory. */
struct watched_weight {
    struct packed *packed;
    size_t weight_bytes, bias_bytes;
    float *weight, *bias;
    float *no_weight, *no_bias; /* NaN */
};

struct hook_watch {
    /* Set by the caller, borrowed: */
    const struct kernels *kernels;
    const struct tape_parameter *parameters;
    int count;
    size_t (*gradient_bytes)(const void *user, int parameter, int part);
    const void *user;
    /* Also checks that no weight is needed between a gradient's last change and its hook, which
     * therefore follows the last call at once. This reads all gradients at every hook. */
    bool exact;

    struct watched_weight *weights; /* owned; in the order of tape_weights */
    int weight_count;
    int needed; /* the weight that is needed now; -1: none */
    int *done;  /* owned, [count]: how often each gradient was done */
    /* owned, [count]: digests of each parameter's gradients, last seen and when done */
    uint64_t *seen, *kept;
    int *changed;    /* owned, [count]: `runs` when its last change was seen; -1: none was */
    int hooks, runs; /* called in this pass; of them TAPE_WEIGHT_NEEDED */
};

static inline void watch_must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("the test cannot run: %s\n", err->message);
    exit(1);
}

static inline void *watch_room(size_t bytes) {
    void *made = calloc(1, bytes + 1);
    watch_must(made, &(struct error){ .message = "no memory" });
    return made;
}

/* Moves numbers to the table's memory and frees their host memory. */
static inline float *watch_resident(const struct kernels *k, float *host, size_t bytes) {
    struct error err = { 0 };
    void *made;
    watch_must(k->memory->alloc(MEMORY_WEIGHTS, bytes, &made, &err) &&
                   k->memory->upload(made, host, bytes, &err),
        &err);
    free(host);
    return made;
}

static inline float *watch_nans(size_t bytes) {
    float *made = watch_room(bytes);
    for (size_t i = 0; i < bytes / sizeof(*made); i++)
        made[i] = NAN;
    return made;
}

static inline struct watched_weight watch_weight(
    const struct kernels *k, const struct packed *packed) {
    const size_t taps = packed->is_conv && packed->kind != CONV_1X1 ? 9 : 1;
    struct watched_weight w = { .packed = (struct packed *)packed,
        .weight_bytes = (size_t)(packed->n * packed->k) * taps * sizeof(float),
        .bias_bytes = (size_t)packed->n * sizeof(float) };
    struct error err = { 0 };
    float *weight = watch_room(w.weight_bytes), *bias = watch_room(w.bias_bytes);
    watch_must(packed_unpack(packed, weight, bias, &err), &err);
    w.weight = watch_resident(k, weight, w.weight_bytes);
    w.bias = watch_resident(k, bias, w.bias_bytes);
    w.no_weight = watch_resident(k, watch_nans(w.weight_bytes), w.weight_bytes);
    w.no_bias = watch_resident(k, watch_nans(w.bias_bytes), w.bias_bytes);
    return w;
}

/* A weight that was packed without a bias is restored with zeros. */
static inline void watch_rewrite(const struct hook_watch *watch, int index, bool poison) {
    const struct watched_weight *w = &watch->weights[index];
    struct error err = { 0 };
    watch_must(packed_rewrite(w->packed, poison ? w->no_weight : w->weight,
                   poison ? w->no_bias : w->bias, &err),
        &err);
}

/* Returns a digest (FNV-1a) of a parameter's gradients. */
static inline uint64_t watch_digest(const struct hook_watch *watch, int parameter) {
    const struct device_memory *memory = watch->kernels->memory;
    struct error err = { 0 };
    uint64_t digest = 14695981039346656037u;
    for (int part = 0; part < 2; part++) {
        const float *gradient = watch->parameters[parameter].gradient[part];
        const size_t bytes = gradient ? watch->gradient_bytes(watch->user, parameter, part) : 0;
        const unsigned char *host = bytes ? memory->view(gradient, bytes, &err) : NULL;
        watch_must(host || !bytes, &err);
        for (size_t i = 0; i < bytes; i++)
            digest = (digest ^ host[i]) * 1099511628211u;
    }
    return digest;
}

static inline bool watch_trains(const struct hook_watch *watch, int parameter) {
    const struct tape_parameter *p = &watch->parameters[parameter];
    return p->kind != TAPE_INPUT && (p->gradient[0] || p->gradient[1]);
}

/* Sees which gradients the calls since the last hook have changed. */
static inline void watch_see_changes(struct hook_watch *watch) {
    for (int i = 0; i < watch->count; i++) {
        const uint64_t now = watch_digest(watch, i);
        if (now == watch->seen[i])
            continue;
        CHECK(!watch->done[i], "parameter %d changes after hook %d, when it was done", i,
            watch->hooks);
        watch->seen[i] = now;
        watch->changed[i] = watch->runs;
    }
}

static inline void watch_see_done(struct hook_watch *watch, int index) {
    CHECK(index >= 0 && index < watch->count && watch_trains(watch, index), "gradient %d of %d",
        index, watch->count);
    CHECK(++watch->done[index] == 1, "gradient %d is done %d times", index, watch->done[index]);
    CHECK(watch->changed[index] < 0 || watch->changed[index] == watch->runs,
        "gradient %d is done %d needed weights after its last change", index,
        watch->runs - watch->changed[index]);
    watch->kept[index] = watch_digest(watch, index);
}

/* The hook of tape_options; `user` is the struct hook_watch. */
static inline bool hook_watch_call(void *user, enum tape_hook hook, int index, struct error *err) {
    struct hook_watch *watch = user;
    (void)err;
    watch->hooks++;
    if (watch->exact)
        watch_see_changes(watch);
    switch (hook) {
    case TAPE_GRADIENT_DONE:
        watch_see_done(watch, index);
        break;
    case TAPE_WEIGHT_NEEDED:
        CHECK(watch->needed < 0, "weight %d is needed beside weight %d", index, watch->needed);
        CHECK(index >= 0 && index < watch->weight_count, "weight %d of %d", index,
            watch->weight_count);
        watch->needed = index;
        watch->runs++;
        watch_rewrite(watch, index, false);
        break;
    case TAPE_WEIGHT_DONE:
        CHECK(watch->needed == index, "weight %d is done, not weight %d", index, watch->needed);
        watch->needed = -1;
        watch_rewrite(watch, index, true);
        break;
    default:
        CHECK(false, "hook %d", (int)hook);
    }
    return true;
}

/* Call before tape_begin of each pass. Poisons the tape's weights. */
static inline void hook_watch_begin(struct hook_watch *watch, const struct tape *tape) {
    const struct packed *const *weights = tape_weights(tape, &watch->weight_count);
    const size_t count = (size_t)watch->count;
    watch->weights = watch_room((size_t)watch->weight_count * sizeof(*watch->weights));
    watch->done = watch_room(count * sizeof(*watch->done));
    watch->seen = watch_room(count * sizeof(*watch->seen));
    watch->kept = watch_room(count * sizeof(*watch->kept));
    watch->changed = watch_room(count * sizeof(*watch->changed));
    watch->needed = -1;
    watch->hooks = watch->runs = 0;
    for (int i = 0; i < watch->weight_count; i++) {
        watch->weights[i] = watch_weight(watch->kernels, weights[i]);
        watch_rewrite(watch, i, true);
    }
    for (int i = 0; i < watch->count; i++) {
        watch->seen[i] = watch_digest(watch, i);
        watch->changed[i] = -1;
    }
}

/* Call after the last tape_advance of a pass. Checks the pass, restores the weights and frees what
 * is owned. */
static inline void hook_watch_end(struct hook_watch *watch, const char *name) {
    const struct device_memory *memory = watch->kernels->memory;
    CHECK(watch->needed < 0, "%s: weight %d is still needed", name, watch->needed);
    for (int i = 0; i < watch->count; i++) {
        CHECK(watch->done[i] == watch_trains(watch, i), "%s: gradient %d is done %d times", name, i,
            watch->done[i]);
        CHECK(!watch_trains(watch, i) || watch_digest(watch, i) == watch->kept[i],
            "%s: gradient %d changes after it is done", name, i);
    }
    for (int i = 0; i < watch->weight_count; i++) {
        const struct watched_weight *w = &watch->weights[i];
        watch_rewrite(watch, i, false);
        memory->release(MEMORY_WEIGHTS, w->weight, w->weight_bytes);
        memory->release(MEMORY_WEIGHTS, w->no_weight, w->weight_bytes);
        memory->release(MEMORY_WEIGHTS, w->bias, w->bias_bytes);
        memory->release(MEMORY_WEIGHTS, w->no_bias, w->bias_bytes);
    }
    free(watch->weights);
    free(watch->done);
    free(watch->seen);
    free(watch->kept);
    free(watch->changed);
}

#endif
