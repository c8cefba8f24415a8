/* Who is in the next call: by hand for small cases, and by simulation for what a rule is for, with
 * Poisson arrivals, half of 4 and half of 30 evaluations, against one request after the other. Time
 * is simulated, so the figures are the same on every machine. */
#include "engine/policy.h"
#include "tests/check.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* --- by hand --- */

struct choice {
    const char *what;
    struct policy_image images[8];
    int count, call_rows;
    bool no_new;
    const char *want; /* "step 0 2", "decode 1", "nothing" */
};

#define STEPPING(rank_, size_, rows_)                                                              \
    { .rank = rank_, .state = POLICY_STEPPING, .size = size_, .rows = rows_, .call_images = 4 }
#define NEW(rank_, size_, rows_)                                                                   \
    { .rank = rank_, .state = POLICY_NEW, .size = size_, .rows = rows_, .call_images = 4 }
#define DECODING(rank_)                                                                            \
    { .rank = rank_, .state = POLICY_CODING, .size = 1, .rows = 2, .call_images = 4 }
#define ALONE(rank_)                                                                               \
    {                                                                                              \
        .rank = rank_, .state = POLICY_STEPPING, .size = 1, .rows = 2, .call_images = 4,           \
        .alone = true                                                                              \
    }

static const struct choice choices[] = {
    { "nobody", { { 0 } }, 0, 16, false, "nothing" },
    { "least first, all of its size", { STEPPING(3, 1, 2), STEPPING(1, 1, 2), NEW(2, 1, 1) }, 3, 16,
        false, "step 1 2 0" },
    { "equals in the order of admission", { NEW(1, 1, 2), NEW(1, 1, 2) }, 2, 16, false,
        "step 0 1" },
    { "begun before new among equals", { NEW(1, 1, 2), STEPPING(1, 1, 2) }, 2, 16, false,
        "step 1 0" },
    { "the first one's size", { STEPPING(2, 1, 2), STEPPING(1, 7, 2), STEPPING(3, 7, 2) }, 3, 16,
        false, "step 1 2" },
    { "a decode is work like any other", { STEPPING(2, 1, 2), DECODING(1) }, 2, 16, false,
        "decode 1" },
    { "and waits for what is shorter", { STEPPING(1, 1, 2), DECODING(2) }, 2, 16, false, "step 0" },
    { "as many images as the device gains from",
        { STEPPING(1, 1, 2), STEPPING(2, 1, 2), STEPPING(3, 1, 2), STEPPING(4, 1, 2),
            STEPPING(5, 1, 2) },
        5, 16, false, "step 0 1 2 3" },
    { "rows are bounded, and filled", { STEPPING(1, 1, 2), STEPPING(2, 1, 2), STEPPING(3, 1, 1) },
        3, 3, false, "step 0 2" },
    { "one image is always taken", { STEPPING(1, 1, 2), STEPPING(2, 1, 1) }, 2, 1, false,
        "step 0" },
    { "alone is alone", { ALONE(1), STEPPING(2, 1, 2) }, 2, 16, false, "step 0" },
    { "nor comes along", { STEPPING(1, 1, 2), ALONE(2) }, 2, 16, false, "step 0" },
    { "new ones passed over", { NEW(1, 1, 2), STEPPING(2, 7, 2), NEW(2, 7, 2) }, 3, 16, true,
        "step 1" },
    { "nothing but new ones", { NEW(1, 1, 2) }, 1, 16, true, "nothing" },
};

static void small_cases(void) {
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        const struct choice *c = &choices[i];
        struct policy_call call;
        char got[64] = "nothing";
        policy_choose(c->images, c->count, c->call_rows, c->no_new, &call);
        if (call.count)
            strcpy(got, call.codes ? "decode" : "step");
        for (int k = 0; k < call.count; k++)
            snprintf(got + strlen(got), sizeof(got) - strlen(got), " %d", call.images[k]);
        CHECK(strcmp(got, c->want) == 0, "%s: %s, not %s", c->what, got, c->want);
    }
    CHECK(policy_rank(8, 0, 1) == 4 && policy_rank(8, 0, -1) == 16 && policy_rank(8, 10, 0) == 7,
        "%g %g %g", policy_rank(8, 0, 1), policy_rank(8, 0, -1), policy_rank(8, 10, 0));
}

/* --- by simulation --- */

#define SHORT 4
#define LONG 30
#define WAITING_MAX 4096

enum rule { ONE_AT_A_TIME, LEAST_WORK, AGEING };
static const char *const rule_names[] = { "one at a time", "least work", "least work, ageing" };

struct request {
    double arrived;
    int size, left, priority;
};

/* A device and its load. Evaluations of one image take 1; of n in one call less than n each, with a
 * gain, until the device is full at 8. */
struct load {
    enum rule rule;
    double gain;
    int width;   /* images of a call */
    double work; /* that arrives, of what one at a time does */
    int limit;   /* requests there at a time; others are refused */
    int requests;
};

struct latencies {
    double values[2][100000]; /* of short and of long ones */
    int count[2];
    int refused;
    double end; /* when the last was done */
};

static double call_seconds(const struct load *load, int images) {
    const int gains = images < 8 ? images : 8;
    return images * (1 - load->gain * (1 - 1.0 / gains));
}

static double uniform(uint64_t *state) {
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (double)((x ^ x >> 31) >> 11) * 0x1p-53;
}

static struct request draw_request(const struct load *load, double after, uint64_t *state) {
    const double rate = load->work / ((SHORT + LONG) / 2.0);
    const double arrived = after - log(1 - uniform(state)) / rate;
    const int size = uniform(state) < 0.5 ? SHORT : LONG;
    return (struct request){ arrived, size, size, 0 };
}

static double rank_of(const struct request *r, enum rule rule, double now) {
    return rule == ONE_AT_A_TIME ? r->arrived
           : rule == LEAST_WORK  ? ldexp(r->left, -r->priority)
                                 : policy_rank(r->left, now - r->arrived, r->priority);
}

/* One call; the requests that it ends are marked with left 0. The time it takes. */
static double one_call(const struct load *load, struct request *there, int count, double now) {
    static struct policy_image images[WAITING_MAX];
    struct policy_call call;
    for (int i = 0; i < count; i++)
        images[i] = (struct policy_image){ .rank = rank_of(&there[i], load->rule, now),
            .state = there[i].left < there[i].size ? POLICY_STEPPING : POLICY_NEW,
            .rows = 2,
            .call_images = load->width };
    policy_choose(images, count, UNET_CALL_MAX_ROWS, false, &call);
    for (int i = 0; i < call.count; i++)
        there[call.images[i]].left--;
    return call_seconds(load, call.count);
}

static void simulate(const struct load *load, struct latencies *out) {
    static struct request there[WAITING_MAX];
    uint64_t state = 1;
    int count = 0, drawn = 0;
    double now = 0;
    struct request next = draw_request(load, 0, &state);
    *out = (struct latencies){ 0 };
    while (count || drawn < load->requests) {
        if (!count && next.arrived > now)
            now = next.arrived;
        for (; drawn < load->requests && next.arrived <= now; drawn++) {
            if (count < load->limit)
                there[count++] = next;
            else
                out->refused++;
            next = draw_request(load, next.arrived, &state);
        }
        now += one_call(load, there, count, now);
        int kept = 0;
        for (int i = 0; i < count; i++) {
            const int kind = there[i].size == LONG;
            if (there[i].left)
                there[kept++] = there[i];
            else
                out->values[kind][out->count[kind]++] = now - there[i].arrived;
        }
        count = kept;
    }
    out->end = now;
}

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct summary {
    double mean, p95, short_p95, long_p95, per_second;
};

static double p95(double *values, int count) {
    qsort(values, (size_t)count, sizeof(double), ascending);
    return values[(int)(0.95 * count)];
}

static struct summary run(struct load load, enum rule rule) {
    static struct latencies l;
    static double all[200000];
    struct summary s = { 0 };
    load.rule = rule;
    load.width = rule == ONE_AT_A_TIME ? 1 : load.width;
    simulate(&load, &l);
    const int count = l.count[0] + l.count[1];
    memcpy(all, l.values[0], sizeof(double) * (size_t)l.count[0]);
    memcpy(all + l.count[0], l.values[1], sizeof(double) * (size_t)l.count[1]);
    for (int i = 0; i < count; i++)
        s.mean += all[i] / count;
    s.p95 = p95(all, count);
    s.short_p95 = p95(l.values[0], l.count[0]);
    s.long_p95 = p95(l.values[1], l.count[1]);
    s.per_second = count / l.end;
    printf("%-20s gain %.1f load %.1f: mean %6.1f p95 %6.1f, short p95 %6.1f, long p95 %6.1f, %.4f "
           "images a unit of time, %d refused\n",
        rule_names[rule], load.gain, load.work, s.mean, s.p95, s.short_p95, s.long_p95,
        s.per_second, l.refused);
    return s;
}

static void at_most(const char *what, double got, double bar, double base) {
    CHECK(got <= bar * base, "%s: %.1f, at most %.2f times %.1f", what, got, bar, base);
}

/* Where a wider call gains nothing: short requests gain, and the slowest lose nothing. */
static void beats_one_at_a_time(void) {
    struct load load = { .width = 1, .limit = WAITING_MAX, .requests = 60000, .work = 0.3 };
    struct summary one = run(load, ONE_AT_A_TIME), ours = run(load, AGEING);
    at_most("mean at 0.3", ours.mean, 1.03, one.mean);
    at_most("p95 at 0.3", ours.p95, 1.03, one.p95);
    load.work = 0.8;
    one = run(load, ONE_AT_A_TIME);
    ours = run(load, AGEING);
    run(load, LEAST_WORK);
    at_most("short requests' p95 at 0.8", ours.short_p95, 0.25, one.short_p95);
    at_most("mean at 0.8", ours.mean, 0.8, one.mean);
    at_most("p95 at 0.8", ours.p95, 1.05, one.p95);
    load.work = 2;
    load.limit = 16;
    one = run(load, ONE_AT_A_TIME);
    ours = run(load, AGEING);
    CHECK(ours.per_second >= 0.97 * one.per_second, "%g images a unit of time, not %g",
        ours.per_second, one.per_second);
    at_most("mean at 2", ours.mean, 1.05, one.mean);
    at_most("long requests' p95 at 2", ours.long_p95, 1.35, one.long_p95);
}

/* Where a call of eight takes 3.8 times one's time: twice the images, and nobody later. */
static void gains_where_the_device_does(void) {
    const struct load load = { .gain = 0.6, .width = 8, .limit = 16, .requests = 60000, .work = 4 };
    struct summary one = run(load, ONE_AT_A_TIME), ours = run(load, AGEING);
    CHECK(ours.per_second >= 2 * one.per_second, "%g images a unit of time, not twice %g",
        ours.per_second, one.per_second);
    at_most("mean", ours.mean, 1, one.mean);
    at_most("long requests' p95", ours.long_p95, 1, one.long_p95);
}

/* --- nobody starves --- */

/* When a request of `size` evaluations is done that comes at 0 and from then on meets a short one
 * the moment that there is room for it, more than can ever be drawn; or the horizon. */
static double under_siege(enum rule rule, int size, int priority, int limit, double horizon) {
    static struct request there[WAITING_MAX];
    const struct load load = { .rule = rule, .width = 1 };
    int count = 0;
    double now = 0;
    there[count++] = (struct request){ 0, size, size, priority };
    while (now < horizon) {
        while (count < limit)
            there[count++] = (struct request){ now, SHORT, SHORT, 0 };
        now += one_call(&load, there, count, now);
        if (there[0].left == 0)
            return now;
        int kept = 1;
        for (int i = 1; i < count; i++)
            if (there[i].left)
                there[kept++] = there[i];
        count = kept;
    }
    return horizon;
}

/* Only those that came within work / POLICY_AGEING after it pass a request, and of these no more
 * are left then than may be there: that, and its own work, is the longest it can take. */
static void nobody_starves(void) {
    static const int sizes[] = { LONG, 1000 }, limits[] = { 2, 16, 64 };
    for (int priority = -PRIORITY_MAX; priority <= PRIORITY_MAX; priority++)
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 3; k++) {
                const double work = ldexp(sizes[i], -priority);
                const double bound = work / POLICY_AGEING + limits[k] * SHORT + sizes[i];
                const double done = under_siege(AGEING, sizes[i], priority, limits[k], 10 * bound);
                CHECK(done <= bound,
                    "%d evaluations, priority %d, %d there: done after %g, the bound is %g",
                    sizes[i], priority, limits[k], done, bound);
                if (priority == 0)
                    printf("%d evaluations among %d short ones that never end: done after %g, the "
                           "bound is %g\n",
                        sizes[i], limits[k], done, bound);
            }
    CHECK(under_siege(LEAST_WORK, LONG, 0, 16, 1e5) == 1e5,
        "without ageing it would wait for ever, or this proves nothing");
}

int main(void) {
    small_cases();
    beats_one_at_a_time();
    gains_where_the_device_does();
    nobody_starves();
    return check_done();
}
