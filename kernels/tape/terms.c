/* Puts the terms of a tape's low_rank calls into the memory of a device that does not read host
 * memory. The terms do not change during the tape's life, so they are uploaded once and not at each
 * call. */
#include "kernels/tape/plan.h"

#include <stdlib.h>
#include <string.h>

static struct low_rank_args *low_rank_of(const struct tape *tape, size_t call) {
    struct call *c = tape->calls[call].call;
    return c->operation == OPERATION_low_rank ? &c->args.low_rank : NULL;
}

/* Writes the spans of all calls, then the terms of all calls. All rows of a call share the same
 * terms. */
static void fill(const struct tape *tape, char *host, size_t spans_bytes) {
    struct low_rank_span *spans = (struct low_rank_span *)host;
    struct low_rank_term *terms = (struct low_rank_term *)(host + spans_bytes);
    const char *device = tape->terms;
    uint32_t span = 0, first = 0;
    for (size_t i = 0; i < tape->call_count; i++) {
        struct low_rank_args *a = low_rank_of(tape, i);
        if (!a)
            continue;
        const uint32_t count = (uint32_t)a->rows[0].count;
        a->spans = (const struct low_rank_span *)device + span;
        a->terms = (const struct low_rank_term *)(device + spans_bytes);
        for (int64_t row = 0; row < a->x->shape[0]; row++)
            spans[span++] = (struct low_rank_span){ first, count };
        memcpy(terms + first, a->rows[0].terms, count * sizeof(*terms));
        first += count;
    }
}

bool tape_upload_terms(struct tape *tape, struct error *err) {
    const struct device_memory *memory = tape->kernels->memory;
    size_t spans = 0, terms = 0;
    for (size_t i = 0; i < tape->call_count; i++) {
        const struct low_rank_args *a = low_rank_of(tape, i);
        spans += a ? (size_t)a->x->shape[0] : 0;
        terms += a ? (size_t)a->rows[0].count : 0;
    }
    if (tape->kernels->device == DEVICE_CPU || !terms)
        return true;
    const size_t spans_bytes = (spans * sizeof(struct low_rank_span) + 15) / 16 * 16;
    const size_t bytes = spans_bytes + terms * sizeof(struct low_rank_term);
    char *host = calloc(1, bytes);
    if (!host)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tape's terms");
    bool ok = memory->alloc(MEMORY_WEIGHTS, bytes, &tape->terms, err);
    if (ok) {
        tape->terms_bytes = bytes;
        fill(tape, host, spans_bytes);
        ok = memory->upload(tape->terms, host, bytes, err);
    }
    free(host);
    return ok;
}
