#include "kernels/tape/intervals.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

/* Returns the index of the first item that ends after `at`. */
static size_t place_of(const struct intervals *set, uintptr_t at) {
    size_t low = 0, high = set->count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (set->items[middle].end <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Replaces items [first, end) by `count` new items. */
static void replace(
    struct intervals *set, size_t first, size_t end, const struct interval *items, size_t count) {
    const size_t after = set->count - (end - first) + count;
    if (after > set->count && !LIST_ROOM(set->items, set->count, "intervals", NULL)) {
        set->failed = true;
        return;
    }
    if (set->count > end)
        memmove(
            set->items + first + count, set->items + end, (set->count - end) * sizeof(*set->items));
    if (count)
        memcpy(set->items + first, items, count * sizeof(*items));
    set->count = after;
}

void intervals_add(struct intervals *set, struct interval i) {
    size_t first = place_of(set, i.begin), end;
    if (first > 0 && set->items[first - 1].end == i.begin)
        first--;
    for (end = first; end < set->count && set->items[end].begin <= i.end; end++) {
        i.begin = set->items[end].begin < i.begin ? set->items[end].begin : i.begin;
        i.end = set->items[end].end > i.end ? set->items[end].end : i.end;
    }
    replace(set, first, end, &i, 1);
}

void intervals_subtract(struct intervals *set, struct interval i) {
    const size_t first = place_of(set, i.begin);
    struct interval left[2];
    size_t end = first, count = 0;
    for (; end < set->count && set->items[end].begin < i.end; end++) {
        if (set->items[end].begin < i.begin)
            left[count++] = (struct interval){ set->items[end].begin, i.begin };
        if (set->items[end].end > i.end)
            left[count++] = (struct interval){ i.end, set->items[end].end };
    }
    if (end > first)
        replace(set, first, end, left, count);
}

void intervals_finish(struct intervals *set) {
    free(set->items);
    *set = (struct intervals){ 0 };
}

bool intervals_piece(
    const struct intervals *set, struct interval i, bool in, struct interval *piece) {
    size_t at = place_of(set, i.begin);
    if (!in && at < set->count && set->items[at].begin <= i.begin)
        i.begin = set->items[at++].end;
    if (in) {
        if (at == set->count || set->items[at].begin >= i.end)
            return false;
        i.begin = set->items[at].begin > i.begin ? set->items[at].begin : i.begin;
        i.end = set->items[at].end < i.end ? set->items[at].end : i.end;
    } else if (at < set->count && set->items[at].begin < i.end) {
        i.end = set->items[at].begin;
    }
    *piece = i;
    return i.begin < i.end;
}

bool intervals_overlap(const struct intervals *set, struct interval i) {
    struct interval piece;
    return intervals_piece(set, i, true, &piece);
}

size_t intervals_common_bytes(const struct intervals *a, const struct intervals *b) {
    size_t bytes = 0;
    for (size_t i = 0, j = 0; i < a->count && j < b->count;) {
        const struct interval x = a->items[i], y = b->items[j];
        if (interval_overlap(x, y))
            bytes += (x.end < y.end ? x.end : y.end) - (x.begin > y.begin ? x.begin : y.begin);
        if (x.end < y.end)
            i++;
        else
            j++;
    }
    return bytes;
}
