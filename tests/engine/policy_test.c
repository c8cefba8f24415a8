/* Tests which images the next call contains: small cases by hand, and the effect of each rule by
 * simulation. Simulated requests arrive at random (Poisson arrivals); half of them need 4
 * evaluations, half need 30. The policy is compared with drawing one request after the other. In
 * another simulation some callers flood the queue, and one caller does not. Time is simulated, so
 * the figures are the same on every machine. */
#include "engine/drawing/policy.h"
#include "engine/drawing/turns.h"
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
#define OF(caller_, rank_, rows_)                                                                  \
    { .caller = caller_, .rank = rank_, .state = POLICY_STEPPING, .rows = rows_, .call_images = 4 }
#define ALONE(rank_)                                                                               \
    {                                                                                              \
        .rank = rank_, .state = POLICY_STEPPING, .size = 1, .rows = 2, .call_images = 4,           \
        .alone = true                                                                              \
    }

static const struct choice choices[] = {
    { "without images there is nothing to do", { { 0 } }, 0, 16, false, "nothing" },
    { "the image with the least work left comes first, and all images of its size join it",
        { STEPPING(3, 1, 2), STEPPING(1, 1, 2), NEW(2, 1, 1) }, 3, 16, false, "step 1 2 0" },
    { "images with equal work come in the order of admission", { NEW(1, 1, 2), NEW(1, 1, 2) }, 2,
        16, false, "step 0 1" },
    { "of two images with equal work, the one in progress comes before the new one",
        { NEW(1, 1, 2), STEPPING(1, 1, 2) }, 2, 16, false, "step 1 0" },
    { "only images that have the size of the first image join it",
        { STEPPING(2, 1, 2), STEPPING(1, 7, 2), STEPPING(3, 7, 2) }, 3, 16, false, "step 1 2" },
    { "a decode is chosen by its work like a step", { STEPPING(2, 1, 2), DECODING(1) }, 2, 16,
        false, "decode 1" },
    { "a decode waits for shorter work", { STEPPING(1, 1, 2), DECODING(2) }, 2, 16, false,
        "step 0" },
    { "a call has at most call_images images",
        { STEPPING(1, 1, 2), STEPPING(2, 1, 2), STEPPING(3, 1, 2), STEPPING(4, 1, 2),
            STEPPING(5, 1, 2) },
        5, 16, false, "step 0 1 2 3" },
    { "the rows of a call are filled up to their limit",
        { STEPPING(1, 1, 2), STEPPING(2, 1, 2), STEPPING(3, 1, 1) }, 3, 3, false, "step 0 2" },
    { "a call of several images has at most 2 * call_images rows",
        { STEPPING(1, 1, 4), STEPPING(2, 1, 5), STEPPING(3, 1, 4) }, 3, 16, false, "step 0 2" },
    { "a single image may have more than 2 * call_images rows",
        { STEPPING(1, 1, 9), STEPPING(2, 1, 1) }, 2, 16, false, "step 0" },
    { "one image is taken even if it exceeds the limit of rows",
        { STEPPING(1, 1, 2), STEPPING(2, 1, 1) }, 2, 1, false, "step 0" },
    { "an image that must be alone is alone in its call", { ALONE(1), STEPPING(2, 1, 2) }, 2, 16,
        false, "step 0" },
    { "an image that must be alone does not join others", { STEPPING(1, 1, 2), ALONE(2) }, 2, 16,
        false, "step 0" },
    { "new images are passed over when they must wait",
        { NEW(1, 1, 2), STEPPING(2, 7, 2), NEW(2, 7, 2) }, 3, 16, true, "step 1" },
    { "nothing is chosen if all images are new and must wait", { NEW(1, 1, 2) }, 1, 16, true,
        "nothing" },
    { "two callers get half of the call each",
        { OF(1, 1, 2), OF(2, 2, 2), OF(2, 3, 2), OF(1, 4, 2) }, 4, 16, false, "step 0 1" },
    { "the call is filled up by the caller that has more rows",
        { OF(1, 1, 2), OF(1, 2, 2), OF(2, 3, 2), OF(2, 4, 2) }, 4, 16, false, "step 0 1 2 3" },
    { "rows that a caller does not use are given to others",
        { OF(1, 1, 1), OF(2, 2, 2), OF(2, 3, 1) }, 3, 16, false, "step 0 2" },
    { "the first caller's images do not take longer", { OF(2, 1, 2), OF(1, 2, 2), OF(1, 3, 2) }, 3,
        16, false, "step 0 1" },
    { "three callers get a third of the call each",
        { OF(1, 1, 2), OF(2, 2, 2), OF(2, 3, 2), OF(3, 4, 2) }, 4, 16, false, "step 0 1 2" },
};

/* A device on which every call takes equally long. */
static const double flat[UNET_CALL_MAX_ROWS + 1] = { 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
    1 };

static void small_cases(void) {
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
        const struct choice *c = &choices[i];
        struct policy_call call;
        const struct policy_limits limits = { c->call_rows, c->no_new, NULL };
        char got[64] = "nothing";
        policy_choose(c->images, c->count, &limits, &call);
        if (call.count)
            strcpy(got, call.codes ? "decode" : "step");
        for (int k = 0; k < call.count; k++)
            snprintf(got + strlen(got), sizeof(got) - strlen(got), " %d", call.images[k]);
        CHECK(strcmp(got, c->want) == 0, "%s: %s, not %s", c->what, got, c->want);
    }
    const struct policy_image two[] = { OF(1, 1, 2), OF(2, 2, 2), OF(2, 3, 2), OF(2, 4, 2) };
    const struct policy_limits limits = { UNET_CALL_MAX_ROWS, false, flat };
    struct policy_call call;
    policy_choose(two, 4, &limits, &call);
    CHECK(call.count == 4, "images that do not make a call slower are left out: it has %d",
        call.count);
    static const double costs[][UNET_CALL_MAX_ROWS + 1] = {
        /* The time per row is the same in calls of any width. */
        { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 },
        /* A call of two images saves no time per row, a call of three or four does. */
        { 0, 1, 2, 3, 4.2, 4.6, 5.1, 5.8, 6.6, 8 },
        /* Wider calls save less time per row than POLICY_GAIN. */
        { 0, 1, 2, 2.9, 3.8, 4.7, 5.6, 6.5, 7.4, 8.3 },
    };
    static const int want[] = { 1, 4, 1 };
    const struct policy_image four[] = { OF(1, 1, 2), OF(1, 2, 2), OF(1, 3, 2), OF(1, 4, 2) };
    for (int i = 0; i < 3; i++) {
        policy_choose(
            four, 4, &(struct policy_limits){ UNET_CALL_MAX_ROWS, false, costs[i] }, &call);
        CHECK(call.count == want[i], "row %d of costs: the call has %d images, not %d", i,
            call.count, want[i]);
    }
    CHECK(policy_rank(8, 0, 1) == 4 && policy_rank(8, 0, -1) == 16 && policy_rank(8, 10, 0) == 7,
        "ranks %g, %g, %g, not 4, 16, 7", policy_rank(8, 0, 1), policy_rank(8, 0, -1),
        policy_rank(8, 10, 0));
}

/* --- by simulation --- */

#define SHORT 4
#define LONG 30
#define WAITING_MAX 4096

enum rule { ONE_AT_A_TIME, LEAST_WORK, AGEING, TURNS };
static const char *const rule_names[] = { "one at a time", "least work", "least work, ageing",
    "ageing and turns" };

struct request {
    double arrived;
    int size, left, priority;
    uint64_t caller;
};

/* A device and its load. One evaluation of one image takes 1 unit of time. If gain is above 0, a
 * call of n images takes less than n units; beyond 8 images, the time per image does not fall any
 * more. */
struct load {
    enum rule rule;
    double gain;
    int width;   /* most images in a call */
    double work; /* evaluations arriving per unit of time; 1: the limit for calls of one image */
    int limit;   /* most requests present; others are refused */
    int requests;
    int callers; /* 0: each request is a caller of its own */
};

struct latencies {
    double values[2][100000]; /* of short and of long requests */
    int count[2];
    int refused;
    double end; /* when the last request was done */
};

static double call_seconds(const struct load *load, int images) {
    const int gains = images < 1 ? 1 : images < 8 ? images : 8;
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
    return (struct request){ arrived, size, size, 0, 0 };
}

static struct turns turns; /* of the running simulation */

static struct request enter(struct request r) {
    struct error err = { 0 };
    CHECK(turns_enter(&turns, r.caller, &err), "%s", err.message);
    return r;
}

static double rank_of(const struct request *r, enum rule rule, double now) {
    return rule == ONE_AT_A_TIME ? r->arrived
           : rule == LEAST_WORK  ? ldexp(r->left, -r->priority)
                                 : policy_rank(r->left, now - r->arrived, r->priority);
}

static double weighted(const struct request *r, int work) {
    return ldexp(work, -r->priority);
}

static void take_turns(const struct request *there, int count, struct policy_image *images) {
    static struct turns_request requests[WAITING_MAX];
    for (int i = 0; i < count; i++)
        requests[i] = (struct turns_request){ .caller = there[i].caller,
            .rank = images[i].rank,
            .left = weighted(&there[i], there[i].left),
            .served = weighted(&there[i], there[i].size - there[i].left),
            .index = i,
            .of = &images[i] };
    turns_take(&turns, requests, count);
    for (int i = 0; i < count; i++)
        ((struct policy_image *)requests[i].of)->turn = requests[i].turn;
}

/* Simulates one call and returns the time it takes. `left` becomes 0 in every request that the call
 * completes. */
static double one_call(const struct load *load, struct request *there, int count, double now) {
    static struct policy_image images[WAITING_MAX];
    struct policy_call call;
    double cost[UNET_CALL_MAX_ROWS + 1];
    for (int rows = 0; rows <= UNET_CALL_MAX_ROWS; rows++)
        cost[rows] = call_seconds(load, (rows + 1) / 2);
    const struct policy_limits limits = { UNET_CALL_MAX_ROWS, false, cost };
    for (int i = 0; i < count; i++)
        images[i] = (struct policy_image){ .caller = load->rule == TURNS ? there[i].caller : 0,
            .rank = rank_of(&there[i], load->rule, now),
            .state = there[i].left < there[i].size ? POLICY_STEPPING : POLICY_NEW,
            .rows = 2,
            .call_images = load->width };
    if (load->rule == TURNS)
        take_turns(there, count, images);
    policy_choose(images, count, &limits, &call);
    for (int i = 0; i < call.count; i++)
        if (--there[call.images[i]].left == 0)
            turns_leave(&turns, there[call.images[i]].caller,
                weighted(&there[call.images[i]], there[call.images[i]].size));
    turns_move_clock(&turns, call.count);
    return call_seconds(load, call.count);
}

static void simulate(const struct load *load, struct latencies *out) {
    static struct request there[WAITING_MAX];
    uint64_t state = 1, callers_state = 2;
    int count = 0, drawn = 0;
    double now = 0;
    struct request next = draw_request(load, 0, &state);
    *out = (struct latencies){ 0 };
    while (count || drawn < load->requests) {
        if (!count && next.arrived > now)
            now = next.arrived;
        for (; drawn < load->requests && next.arrived <= now; drawn++) {
            next.caller = load->callers ? (uint64_t)(uniform(&callers_state) * load->callers)
                                        : (uint64_t)drawn;
            if (count < load->limit)
                there[count++] = enter(next);
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
    turns_finish(&turns);
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
    printf("%-20s gain %.1f load %.1f, %d callers: mean %6.1f p95 %6.1f, short p95 %6.1f, long p95 "
           "%6.1f, %.4f "
           "images a unit of time, %d refused\n",
        rule_names[rule], load.gain, load.work, load.callers, s.mean, s.p95, s.short_p95,
        s.long_p95, s.per_second, l.refused);
    return s;
}

static void at_most(const char *what, double got, double bar, double base) {
    CHECK(got <= bar * base, "%s: %.1f, at most %.2f times %.1f", what, got, bar, base);
}

/* On a device where wider calls gain nothing, short requests get faster and the slowest lose
 * nothing. Calls could be wide here, but the policy keeps them narrow. */
static void beats_one_at_a_time(void) {
    struct load load = { .width = 8, .limit = WAITING_MAX, .requests = 60000, .work = 0.3 };
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

/* On a device where a call of eight takes 3.8 times as long as a call of one, twice as many images
 * are drawn and no request gets slower. */
static void wide_calls_raise_throughput(void) {
    const struct load load = { .gain = 0.6, .width = 8, .limit = 16, .requests = 60000, .work = 4 };
    struct summary one = run(load, ONE_AT_A_TIME), ours = run(load, AGEING);
    CHECK(ours.per_second >= 2 * one.per_second, "%g images a unit of time, not twice %g",
        ours.per_second, one.per_second);
    at_most("mean", ours.mean, 1, one.mean);
    at_most("long requests' p95", ours.long_p95, 1, one.long_p95);
}

/* --- turns of callers --- */

struct turn_case {
    const char *what;
    double clock;
    struct turns_account accounts[2]; /* of the callers 0 and 1 */
    struct turns_request requests[4]; /* of callers from 0 on; unused ones are 0 */
    int count;
    double want[4]; /* turns, in the order of `index` */
};

static const struct turn_case turn_cases[] = {
    { "one caller: its requests follow each other in the order of their ranks", 0, { { 0, 3, 7 } },
        { { 0, 5, 10, 0, 0, NULL, 0 }, { 0, 1, 4, 0, 1, NULL, 0 }, { 0, 9, 2, 0, 2, NULL, 0 } }, 3,
        { 7 + 4 + 10, 7 + 4, 7 + 4 + 10 + 2 } },
    { "two callers with one request each: ordered by the work left", 0,
        { { 0, 1, 5 }, { 1, 1, 5 } }, { { 0, 0, 10, 0, 0, NULL, 0 }, { 1, 0, 4, 0, 1, NULL, 0 } },
        2, { 15, 9 } },
    { "one caller's second request comes after the other caller's first", 0,
        { { 0, 2, 0 }, { 1, 1, 0 } },
        { { 0, 0, 4, 0, 0, NULL, 0 }, { 0, 1, 4, 0, 1, NULL, 0 }, { 1, 0, 5, 0, 2, NULL, 0 } }, 3,
        { 4, 8, 5 } },
    { "the caller that was served more comes later", 0, { { 0, 1, 20 }, { 1, 1, 3 } },
        { { 0, 0, 1, 0, 0, NULL, 0 }, { 1, 0, 15, 0, 1, NULL, 0 } }, 2, { 21, 18 } },
    { "work already done counts if it is for a later request of the caller, not for its first", 0,
        { { 0, 2, 0 } }, { { 0, 0, 2, 8, 0, NULL, 0 }, { 0, 1, 5, 3, 1, NULL, 0 } }, 2,
        { 3 + 2, 3 + 2 + 5 } },
    { "requests of equal rank come in the order of the list", 0, { { 0, 2, 0 } },
        { { 0, 1, 6, 0, 0, NULL, 0 }, { 0, 1, 2, 0, 1, NULL, 0 } }, 2, { 6, 8 } },
};

static void small_turns(void) {
    for (size_t i = 0; i < sizeof(turn_cases) / sizeof(turn_cases[0]); i++) {
        const struct turn_case *c = &turn_cases[i];
        struct turns_account accounts[2];
        struct turns_request requests[4];
        memcpy(accounts, c->accounts, sizeof(accounts));
        memcpy(requests, c->requests, sizeof(requests));
        const struct turns given = { accounts, 2, c->clock };
        turns_take(&given, requests, c->count);
        for (int k = 0; k < c->count; k++)
            CHECK(requests[k].turn == c->want[requests[k].index], "%s: request %d at %g, not %g",
                c->what, requests[k].index, requests[k].turn, c->want[requests[k].index]);
    }
}

static double account_of(uint64_t caller) {
    for (int i = 0; i < turns.count; i++)
        if (turns.accounts[i].caller == caller)
            return turns.accounts[i].served;
    return -1;
}

/* A new caller's account starts at the clock (turns.h). A returning caller keeps its old account if
 * that is ahead of the clock. Only a limited number of absent callers is remembered. */
static void accounts_come_and_go(void) {
    struct error err = { 0 };
    CHECK(turns_enter(&turns, 7, &err) && turns_enter(&turns, 7, &err), "%s", err.message);
    turns_leave(&turns, 7, 50);
    CHECK(turns.clock == 50, "the clock does not follow the only caller that is served: %g",
        turns.clock);
    CHECK(turns_enter(&turns, 8, &err), "%s", err.message);
    CHECK(account_of(8) == 50, "a new caller does not begin at the clock: %g", account_of(8));
    turns_leave(&turns, 8, 30);
    CHECK(account_of(8) == 80 && turns.clock == 50, "%g, %g", account_of(8), turns.clock);
    CHECK(turns_enter(&turns, 8, &err) && account_of(8) == 80,
        "a returning caller does not have its former account: %g", account_of(8));
    turns_move_clock(&turns, 1000);
    CHECK(
        turns.clock == 50 + 1000 * POLICY_AGEING, "work does not move the clock: %g", turns.clock);
    CHECK(turns_enter(&turns, 9, &err), "%s", err.message);
    turns_leave(&turns, 9, 30);
    turns_move_clock(&turns, 1000);
    CHECK(turns_enter(&turns, 9, &err) && account_of(9) == turns.clock,
        "a returning caller's account is not raised to the clock: it is %g, the clock %g",
        account_of(9), turns.clock);
    turns_leave(&turns, 9, 0);
    turns_leave(&turns, 8, 0);
    CHECK(account_of(8) == -1, "a caller behind the clock is still remembered: %g", account_of(8));
    for (uint64_t i = 100; i < 100 + 3 * CALLERS_REMEMBERED_MAX; i++) {
        CHECK(turns_enter(&turns, i, &err), "%s", err.message);
        turns_leave(&turns, i, (double)i);
    }
    CHECK(turns.count == CALLERS_REMEMBERED_MAX + 1 && account_of(7) == 50 &&
              account_of(99 + 3 * CALLERS_REMEMBERED_MAX) > 0 && account_of(100) == -1,
        "the wrong callers are remembered, or too many or few: %d", turns.count);
    turns_leave(&turns, 7, 0);
    CHECK(turns.count == 0, "%d callers are remembered without any request", turns.count);
    turns_finish(&turns);
}

static void equal(const char *what, struct summary a, struct summary b) {
    CHECK(a.mean == b.mean && a.p95 == b.p95 && a.short_p95 == b.short_p95 &&
              a.long_p95 == b.long_p95 && a.per_second == b.per_second,
        "%s: without turns and with them, the mean is %g and %g, p95 %g and %g", what, a.mean,
        b.mean, a.p95, b.p95);
}

/* With one caller, all waits are exactly the same with turns as without. If each request has a
 * caller of its own, waits are nearly the same, except on a device where wider calls take less time
 * per image. On such a device, short requests may wait up to twice as long. It does about two
 * evaluations per unit of time: the clock of the turns counts evaluations, but ranks age by time.
 * (In the studio, the work in a rank is also given as time, at the speed of recent calls.) */
static void turns_cost_nothing(void) {
    for (int gains = 0; gains < 2; gains++) {
        struct load load = { .gain = 0.6 * gains, .width = gains ? 8 : 1, .requests = 30000 };
        static const double works[2][3] = { { 0.3, 0.8, 2 }, { 0.6, 1.6, 4 } };
        for (int i = 0; i < 3; i++) {
            load.work = works[gains][i];
            load.limit = i == 2 ? 16 : WAITING_MAX;
            load.callers = 1;
            const struct summary before = run(load, AGEING);
            equal("one caller", before, run(load, TURNS));
            load.callers = 0;
            const struct summary each = run(load, TURNS);
            at_most("mean, with a caller for each request", each.mean, 1.01, before.mean);
            at_most("p95, with a caller for each request", each.p95, 1.02, before.p95);
            at_most("p95 of short requests, with a caller for each request", each.short_p95,
                gains ? 2.1 : 1.02, before.short_p95);
            load.callers = 4;
            at_most("mean of four callers", run(load, TURNS).mean, 1.05, before.mean);
        }
    }
}

struct flood {
    enum rule rule;
    int callers, each; /* flooding callers; each one's open requests */
    int size;          /* of these */
    int asks;          /* size of one more caller's requests, one at a time */
    double pause;      /* after each of that caller's requests */
    double gain;
};

/* Returns the median wait of the caller that asks for one picture at a time, as a multiple of its
 * wait without a flood. */
static double times_alone(struct flood f) {
    static struct request there[WAITING_MAX];
    static double waits[100000];
    const struct load load = { .rule = f.rule, .gain = f.gain, .width = f.gain > 0 ? 8 : 1 };
    const double alone = f.asks * call_seconds(&load, 1);
    int count = 0, asked = 0;
    double now = 0, asks_at = 100;
    bool waits_now = false;
    while (now < 8000) {
        for (int k = 1; k <= f.callers; k++) {
            int own = 0;
            for (int i = 0; i < count; i++)
                own += there[i].caller == (uint64_t)k;
            for (; own < f.each; own++)
                there[count++] = enter((struct request){ now, f.size, f.size, 0, (uint64_t)k });
        }
        if (!waits_now && now >= asks_at) {
            there[count++] = enter((struct request){ now, f.asks, f.asks, 0, 0 });
            waits_now = true;
        }
        now += one_call(&load, there, count, now);
        int kept = 0;
        for (int i = 0; i < count; i++) {
            if (there[i].left == 0 && there[i].caller == 0) {
                waits[asked++] = now - there[i].arrived;
                waits_now = false;
                asks_at = now + f.pause;
            }
            if (there[i].left)
                there[kept++] = there[i];
        }
        count = kept;
    }
    turns_finish(&turns);
    qsort(waits, (size_t)asked, sizeof(double), ascending);
    return asked ? waits[asked / 2] / alone : INFINITY;
}

/* Beside one flooding caller, a request takes about twice as long as alone. Beside three it takes a
 * little more than four times as long, because the work already done for the request's caller
 * counts against it. On a device where wider calls take less time per image, a request takes hardly
 * longer than if each of its calls were a full one. */
static void a_flood_takes_one_caller_s_share(void) {
    static const int sizes[] = { SHORT, 12, LONG, 100 };
    const struct load full = { .gain = 0.6 };
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 3; k++)
            for (int pause = 0; pause <= 20; pause += 20) {
                struct flood f = { TURNS, 1, 64, sizes[i], sizes[k], pause, 0 };
                const double ours = times_alone(f);
                f.rule = AGEING;
                const double before = times_alone(f);
                f = (struct flood){ TURNS, 3, 16, sizes[i], sizes[k], pause, 0 };
                const double three = times_alone(f);
                f.gain = full.gain;
                const double wide = times_alone(f);
                f.callers = 1;
                f.each = 64;
                const double wide_of_one = times_alone(f);
                printf("requests of %d evaluations flood the queue; requests of another caller "
                       "have %d, pause %d, and take %.2f times as long as alone (%.1f without "
                       "turns), beside three flooding callers %.2f, in wide calls beside three "
                       "%.2f, in wide calls beside one %.2f\n",
                    f.size, f.asks, pause, ours, before, three, wide, wide_of_one);
                CHECK(ours <= 2.1, "the request takes %.2f times as long as alone", ours);
                CHECK(f.size > f.asks || before >= 10,
                    "without turns the request takes only %.1f times as long as alone, so this "
                    "test proves nothing",
                    before);
                CHECK(three <= 5,
                    "beside three floods the request takes %.2f times as long as alone", three);
                CHECK(wide <= 1.3 * call_seconds(&full, 8),
                    "in wide calls the request takes %.2f times as long as alone", wide);
                CHECK(wide_of_one <= 2.5,
                    "in wide calls beside one flood the request takes %.2f times as long as alone",
                    wide_of_one);
            }
}

/* --- nobody starves --- */

/* A request of `size` evaluations arrives at time 0. From then on a short request arrives whenever
 * there is room, so that more arrive than can ever be drawn. Returns the time at which the first
 * request is done, or `horizon` if it is not done by then. */
static double under_siege(enum rule rule, int size, int priority, int limit, double horizon) {
    static struct request there[WAITING_MAX];
    const struct load load = { .rule = rule, .width = 1 };
    int count = 0;
    double now = 0;
    uint64_t caller = 0; /* each request has its own caller */
    turns_finish(&turns);
    there[count++] = enter((struct request){ 0, size, size, priority, caller });
    while (now < horizon) {
        while (count < limit)
            there[count++] = enter((struct request){ now, SHORT, SHORT, 0, ++caller });
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

/* Only requests that arrive at most work / POLICY_AGEING after a request can overtake it. When that
 * time is over, at most `limit` of them are left. So the longest possible wait is that time, plus
 * the work of `limit` requests, plus the request's own work. */
static void nobody_starves(void) {
    static const int sizes[] = { LONG, 1000 }, limits[] = { 2, 16, 64 };
    for (int priority = -PRIORITY_MAX; priority <= PRIORITY_MAX; priority++)
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < 3; k++) {
                const double work = ldexp(sizes[i], -priority);
                const double bound = work / POLICY_AGEING + limits[k] * SHORT + sizes[i];
                const double done = under_siege(AGEING, sizes[i], priority, limits[k], 10 * bound);
                const double turned = under_siege(TURNS, sizes[i], priority, limits[k], 10 * bound);
                CHECK(done <= bound && turned <= bound,
                    "a request of %d evaluations, priority %d, with at most %d requests present: "
                    "done after %g, with turns after %g, but at most %g is allowed",
                    sizes[i], priority, limits[k], done, turned, bound);
                if (priority == 0)
                    printf("a request of %d evaluations, while short requests keep arriving, with "
                           "at most %d requests present: done after %g, at most %g is allowed\n",
                        sizes[i], limits[k], done, bound);
            }
    CHECK(under_siege(LEAST_WORK, LONG, 0, 16, 1e5) == 1e5,
        "without ageing the request does not wait for ever, so this test proves nothing");
    turns_finish(&turns);
}

int main(void) {
    small_cases();
    beats_one_at_a_time();
    wide_calls_raise_throughput();
    small_turns();
    accounts_come_and_go();
    turns_cost_nothing();
    a_flood_takes_one_caller_s_share();
    nobody_starves();
    return check_done();
}
