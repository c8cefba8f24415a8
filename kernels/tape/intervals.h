/* Sets of addresses, as sorted intervals that neither touch nor overlap: the parts of a tape's
 * memory that are live, written or needed. */
#ifndef KERNELS_TAPE_INTERVALS_H
#define KERNELS_TAPE_INTERVALS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* [begin, end) */
struct interval {
    uintptr_t begin, end;
};

/* A set. A zeroed set is empty. */
struct intervals {
    struct interval *items; /* owned */
    size_t count;
    bool failed; /* an allocation failed: the set is no longer valid */
};

void intervals_add(struct intervals *set, struct interval i);
void intervals_subtract(struct intervals *set, struct interval i);
void intervals_finish(struct intervals *set);

bool intervals_overlap(const struct intervals *set, struct interval i);
/* Finds the first piece of i that is in the set or, if `in` is false, outside it. Returns false if
 * there is none. */
bool intervals_piece(
    const struct intervals *set, struct interval i, bool in, struct interval *piece);
/* Returns the number of bytes that are in both sets. */
size_t intervals_common_bytes(const struct intervals *a, const struct intervals *b);

static inline bool interval_overlap(struct interval a, struct interval b) {
    return a.begin < b.end && b.begin < a.end;
}

#endif
