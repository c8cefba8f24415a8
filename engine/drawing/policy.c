#include "engine/drawing/policy.h"

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

/* The images that policy_choose chooses from. */
struct choice {
    const struct policy_image *images;
    int count;
    const struct policy_limits *limits;
    int callers; /* callers with images, at most UNET_CALL_MAX_IMAGES */
};

/* Returns the number of rows in the call. If `caller` is not NULL, counts only the rows of that
 * caller's images. */
static int rows_of(const struct choice *c, const struct policy_call *call, const uint64_t *caller) {
    int rows = 0;
    for (int i = 0; i < call->count; i++) {
        const struct policy_image *image = &c->images[call->images[i]];
        rows += !caller || image->caller == *caller ? image->rows : 0;
    }
    return rows;
}

static double cost_of(const struct choice *c, int rows) {
    return c->limits->cost ? c->limits->cost[rows] : rows;
}

static int count_callers(const struct policy_image *images, int count) {
    uint64_t seen[UNET_CALL_MAX_IMAGES];
    int callers = 0;
    for (int i = 0; i < count && callers < UNET_CALL_MAX_IMAGES; i++) {
        int at = 0;
        while (at < callers && seen[at] != images[i].caller)
            at++;
        if (at == callers)
            seen[callers++] = images[i].caller;
    }
    return callers;
}

/* Whether the image can join without slowing another caller in the call beyond its share
 * (policy.h). */
static bool slows_nobody(
    const struct choice *c, const struct policy_call *call, const struct policy_image *image) {
    const double cost = cost_of(c, rows_of(c, call, NULL) + image->rows);
    for (int i = 0; c->callers > 1 && i < call->count; i++) {
        const uint64_t caller = c->images[call->images[i]].caller;
        if (caller != image->caller && cost > c->callers * cost_of(c, rows_of(c, call, &caller)))
            return false;
    }
    return true;
}

/* Whether the image can join the call. */
static bool fits(
    const struct choice *c, const struct policy_call *call, const struct policy_image *image) {
    const struct policy_image *head = &c->images[call->images[0]];
    const int rows = rows_of(c, call, NULL) + image->rows;
    return image->state != POLICY_CODING && image->size == head->size && !image->alone &&
           rows <= c->limits->call_rows && rows <= 2 * head->call_images &&
           slows_nobody(c, call, image);
}

static bool is_chosen(const struct policy_call *call, int index) {
    for (int i = 0; i < call->count; i++)
        if (call->images[i] == index)
            return true;
    return false;
}

/* Returns the index of the first-ranked image that is not chosen yet and can join the call; -1 if
 * there is none. If the call is empty, any image can join. */
static int find_next(const struct choice *c, const struct policy_call *call) {
    int best = -1;
    for (int i = 0; i < c->count; i++) {
        const struct policy_image *image = &c->images[i];
        if ((c->limits->no_new && image->state == POLICY_NEW) ||
            (best >= 0 && !goes_before(image, &c->images[best])))
            continue;
        if (!call->count || (!is_chosen(call, i) && fits(c, call, image)))
            best = i;
    }
    return best;
}

/* Keeps the first image and as many images after it as give the least time per row. */
static void keep_what_pays(const struct choice *c, struct policy_call *call) {
    int rows = c->images[call->images[0]].rows, kept = 1;
    double least = (1 - POLICY_GAIN) * cost_of(c, rows) / rows;
    for (int i = 1; i < call->count; i++) {
        rows += c->images[call->images[i]].rows;
        if (cost_of(c, rows) / rows <= least) {
            least = cost_of(c, rows) / rows;
            kept = i + 1;
        }
    }
    call->count = kept;
}

void policy_choose(const struct policy_image *images, int count, const struct policy_limits *limits,
    struct policy_call *out) {
    const struct choice c = { images, count, limits, count_callers(images, count) };
    *out = (struct policy_call){ 0 };
    const int first = find_next(&c, out);
    if (first < 0)
        return;
    const struct policy_image *head = &images[first];
    out->codes = head->state == POLICY_CODING;
    out->images[out->count++] = first;
    if (out->codes || head->alone)
        return;
    const int most = head->call_images < UNET_CALL_MAX_IMAGES ? head->call_images
                                                              : UNET_CALL_MAX_IMAGES;
    for (int next; out->count < most && (next = find_next(&c, out)) >= 0;)
        out->images[out->count++] = next;
    if (limits->cost)
        keep_what_pays(&c, out);
}
