#include "engine/policy.h"

#include <math.h>
#include <stddef.h>

double policy_rank(double work_s, double waited_s, int priority) {
    return ldexp(work_s, -priority) - POLICY_AGEING * waited_s;
}

static bool goes_before(const struct policy_image *a, const struct policy_image *b) {
    if (a->turn != b->turn)
        return a->turn < b->turn;
    if (a->rank != b->rank)
        return a->rank < b->rank;
    return a->state < b->state;
}

/* Whether it can be in the call of those that are chosen, with `rows` of them so far. */
static bool fits(
    const struct policy_image *image, const struct policy_image *head, int rows, int call_rows) {
    return image->state != POLICY_CODING && image->size == head->size && !image->alone &&
           rows + image->rows <= call_rows;
}

static bool is_chosen(const struct policy_call *call, int index) {
    for (int i = 0; i < call->count; i++)
        if (call->images[i] == index)
            return true;
    return false;
}

/* The first of those that are not chosen and, if there is a head, can be in its call; -1: none. */
static int find_next(const struct policy_image *images, int count, const struct policy_call *call,
    int rows, int call_rows, bool no_new) {
    const struct policy_image *head = call->count ? &images[call->images[0]] : NULL;
    int best = -1;
    for (int i = 0; i < count; i++) {
        if ((no_new && images[i].state == POLICY_NEW) ||
            (best >= 0 && !goes_before(&images[i], &images[best])))
            continue;
        if (!head || (fits(&images[i], head, rows, call_rows) && !is_chosen(call, i)))
            best = i;
    }
    return best;
}

void policy_choose(const struct policy_image *images, int count, int call_rows, bool no_new,
    struct policy_call *out) {
    *out = (struct policy_call){ 0 };
    const int first = find_next(images, count, out, 0, call_rows, no_new);
    if (first < 0)
        return;
    const struct policy_image *head = &images[first];
    out->codes = head->state == POLICY_CODING;
    out->images[out->count++] = first;
    if (out->codes || head->alone)
        return;
    const int most = head->call_images < UNET_CALL_MAX_IMAGES ? head->call_images
                                                              : UNET_CALL_MAX_IMAGES;
    for (int rows = head->rows; out->count < most;) {
        const int next = find_next(images, count, out, rows, call_rows, no_new);
        if (next < 0)
            return;
        rows += images[next].rows;
        out->images[out->count++] = next;
    }
}
