/* Sets of addresses, as sorted intervals that neither touch nor overlap: what of a tape's memory is
 * live, written or needed. */
#ifndef KERNELS_TAPE_INTERVALS_H
#define KERNELS_TAPE_INTERVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* [begin, end) */
struct interval {
    uintptr_t begin, end;
};

/* A zeroed one is empty. */
struct intervals {
    struct interval *items; /* owned */
    size_t count, room;
    bool failed; /* memory was refused once: the set means nothing any more */
};

void intervals_add(struct intervals *set, struct interval i);
void intervals_subtract(struct intervals *set, struct interval i);
void intervals_clear(struct intervals *set); /* keeps its room */
void intervals_finish(struct intervals *set);

bool intervals_overlap(const struct intervals *set, struct interval i);
bool intervals_cover(const struct intervals *set, struct interval i);
/* The first piece of i that is in the set (or, with `in` false, that is not); false without one. */
bool intervals_piece(
    const struct intervals *set, struct interval i, bool in, struct interval *piece);
/* Bytes that are in both. */
size_t intervals_common_bytes(const struct intervals *a, const struct intervals *b);

static inline bool interval_overlap(struct interval a, struct interval b) {
    return a.begin < b.end && b.begin < a.end;
}

#endif
