/* Sets of addresses (kernels/tape/intervals.h) against one flag for each address. */
#include "kernels/tape/intervals.h"
#include "tests/check.h"

#include <stdlib.h>

#define SPACE 96

static bool flags[2][SPACE];
static struct intervals sets[2];

static struct interval random_interval(void) {
    const uintptr_t a = (uintptr_t)rand() % SPACE, b = (uintptr_t)rand() % (SPACE + 1);
    return a < b ? (struct interval){ a, b } : (struct interval){ a, a + 1 };
}

static void agrees(int which) {
    const struct intervals *set = &sets[which];
    const struct interval i = random_interval();
    bool any = false, all = true, is_right = true;
    uintptr_t in = SPACE, in_end = SPACE, out = SPACE;
    for (uintptr_t k = i.begin; k < i.end; k++) {
        any |= flags[which][k];
        all &= flags[which][k];
        if (flags[which][k] && in == SPACE)
            in = k;
        if (!flags[which][k] && in < SPACE && in_end == SPACE)
            in_end = k;
        if (!flags[which][k] && out == SPACE)
            out = k;
    }
    struct interval piece;
    CHECK(intervals_overlap(set, i) == any && intervals_piece(set, i, false, &piece) == !all,
        "[%zu, %zu): any %d, all %d", (size_t)i.begin, (size_t)i.end, any, all);
    if (intervals_piece(set, i, true, &piece))
        is_right = piece.begin == in && piece.end == (in_end < i.end ? in_end : i.end);
    CHECK(is_right, "the first piece inside is [%zu, %zu)", (size_t)piece.begin, (size_t)piece.end);
    if (intervals_piece(set, i, false, &piece))
        CHECK(piece.begin == out && !flags[which][piece.end - 1] &&
                  (piece.end == i.end || flags[which][piece.end]),
            "the first piece outside is [%zu, %zu)", (size_t)piece.begin, (size_t)piece.end);
    for (size_t k = 1; k < set->count; k++)
        CHECK(set->items[k - 1].end < set->items[k].begin, "items %zu and %zu touch", k - 1, k);
}

int main(void) {
    for (int step = 0; step < 20000; step++) {
        const int which = rand() % 2;
        const bool add = rand() % 2;
        const struct interval i = random_interval();
        (add ? intervals_add : intervals_subtract)(&sets[which], i);
        for (uintptr_t k = i.begin; k < i.end; k++)
            flags[which][k] = add;
        agrees(which);
        size_t common = 0;
        for (int k = 0; k < SPACE; k++)
            common += flags[0][k] && flags[1][k];
        const size_t found = intervals_common_bytes(&sets[0], &sets[1]);
        CHECK(found == common, "%zu in common, not %zu", found, common);
    }
    intervals_finish(&sets[0]);
    intervals_finish(&sets[1]);
    return check_done();
}
