#include "engine/scheduler/brownian.h"

#include "base/thread.h"
#include "engine/scheduler/seed_sequence.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define GRID 1e6         /* points per unit of sigma, as in k-diffusion */
#define SIGMA_MAX 0x1p33 /* doubles above this are further apart than grid points */
#define DEPTH_MAX 56     /* halvings from SIGMA_MAX down to the grid */
#define POOL_WORDS 24    /* of the seed sequence, as in k-diffusion */
#define AHEAD 4          /* number of draws kept ready */

/* The increment W(high) - W(low) that one evaluation needs. */
struct span {
    double low, high; /* on the grid */
    float root;       /* divisor: sqrt(distance), negative if sigma falls */
};

struct node {
    double low, high;
    double parent_low, parent_high;
    uint64_t key; /* index among the nodes of this depth */
    int depth;
};

struct brownian {
    enum rng_kind kind;
    uint64_t seed;
    int64_t count;
    int span_count;
    struct span *spans; /* owned, descending */
    /* State of the walk: the nodes still to be visited, highest sigma last, with the increment of
     * each. */
    struct node nodes[DEPTH_MAX];
    float *increments[DEPTH_MAX]; /* owned */
    int node_count, increment_count;
    float *noise;       /* owned: scratch for one draw */
    float *sums[AHEAD]; /* owned: sums[i % AHEAD] adds up span i */
    int summed;         /* number of complete spans */
    bool started[AHEAD];
    /* Shared by the walking thread and the calling thread. */
    bool has_thread;
    pthread_t thread;
    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t changed;
    int ready, taken; /* number of spans completed and handed out */
    bool stopping;
};

/* Python's round(x, 6): rounds the exact value of x to the nearest millionth, half to even. */
static double round_to_grid(double x) {
    int exponent;
    if (!(fabs(x) < SIGMA_MAX))
        return x;
    int64_t mantissa = (int64_t)ldexp(frexp(x, &exponent), 53);
    int shift = 53 - exponent; /* x = mantissa / 2^shift, and shift >= 20 */
    if (shift > 120)
        return 0;
    __extension__ typedef __int128 wide;
    wide scaled = (wide)mantissa * (int64_t)GRID;
    wide floor = scaled >> shift, rest = scaled - (floor << shift), half = (wide)1 << (shift - 1);
    if (rest > half || (rest == half && (floor & 1)))
        floor++;
    return (double)(int64_t)floor / GRID;
}

static double into_range(float sigma, double low, double high) {
    return fmin(fmax(round_to_grid((double)sigma), low), high);
}

bool brownian_resolves(float low, float high, float from, float to) {
    double bottom = round_to_grid((double)low), top = round_to_grid((double)high);
    return (double)high < SIGMA_MAX && into_range(from, bottom, top) != into_range(to, bottom, top);
}

static bool check_spans(const struct brownian *b, struct error *err) {
    for (int i = 0; i < b->span_count; i++) {
        const struct span *s = &b->spans[i];
        bool ok = s->low < s->high && isfinite(s->root);
        if (i > 0)
            ok = ok && s->low <= s[-1].low && s->high <= s[-1].high;
        if (i + AHEAD <= b->span_count)
            ok = ok && s[AHEAD - 1].high <= s->low; /* see gather */
        if (!ok)
            return error_set(err, ERROR_INTERNAL,
                "Brownian noise: span %d of %d, sigma %g to %g, is out of order", i, b->span_count,
                s->high, s->low);
    }
    return true;
}

static bool fill_spans(struct brownian *b, const struct scheduler_plan *plan, struct error *err) {
    double low = round_to_grid((double)plan->brownian_low);
    double high = round_to_grid((double)plan->brownian_high);
    b->spans = calloc((size_t)plan->count + 1, sizeof(*b->spans));
    if (!b->spans)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d draws of noise", plan->count);
    for (int i = 0; i < plan->count; i++) {
        const struct scheduler_evaluation *e = &plan->evaluations[i];
        if (!evaluation_is_brownian(e))
            continue;
        double from = into_range(e->brownian_from, low, high);
        double to = into_range(e->brownian_to, low, high);
        float root = sqrtf(fabsf(e->brownian_to - e->brownian_from));
        b->spans[b->span_count++] = (struct span){
            .low = fmin(from, to),
            .high = fmax(from, to),
            .root = from > to ? -root : root,
        };
    }
    b->nodes[0] = (struct node){ .low = low, .high = high };
    b->node_count = 1;
    return check_spans(b, err);
}

/* Allocates the increments of the nodes that wait at one time: one node per depth, and the sibling
 * of the last. */
static bool allocate(struct brownian *b, struct error *err) {
    double points = (b->nodes[0].high - b->nodes[0].low) * GRID;
    int depths = 3;
    for (; points > 1 && depths < DEPTH_MAX; points /= 2)
        depths++;
    size_t bytes = sizeof(float) * (size_t)b->count;
    bool ok = (b->noise = malloc(bytes));
    for (int i = 0; i < AHEAD && ok; i++)
        ok = (b->sums[i] = malloc(bytes));
    for (int i = 0; i < depths && ok; i++)
        ok = (b->increments[b->increment_count++] = malloc(bytes));
    return ok ||
           error_set(err, ERROR_NO_MEMORY, "no memory for the noise of %lld latents at %d depths",
               (long long)b->count, depths);
}

/* --- the walk --- */

/* Fills `noise` with the numbers of torch.randn from a generator with this seed. */
static void draw_noise(struct brownian *b, uint32_t seed) {
    struct noise_generator generator;
    noise_init(&generator, b->kind, seed);
    noise_draw(&generator, b->noise, b->count);
}

static void draw_root(struct brownian *b) {
    struct node *root = &b->nodes[0];
    uint32_t seed;
    seed_sequence(b->seed, NULL, 0, POOL_WORDS, &seed, 1);
    draw_noise(b, seed);
    root->parent_low = -INFINITY;
    root->parent_high = INFINITY;
    float scale = (float)sqrt(root->high - root->low);
    for (int64_t i = 0; i < b->count; i++)
        b->increments[0][i] = b->noise[i] * scale;
}

/* Splits the last node into a lower and an upper half, the upper one last. The lower increment is
 * drawn from the normal distribution around its share of the whole; the rest is the upper one's. */
static void split(struct brownian *b) {
    int last = b->node_count - 1;
    struct node *lower = &b->nodes[last], *upper = lower + 1;
    double low = lower->low, high = lower->high;
    double middle = round_to_grid(0.5 * (high + low));
    double reciprocal = 1 / (high - low), left = middle - low, right = high - middle;
    uint32_t seed;
    seed_sequence(
        b->seed, (const uint64_t[]){ lower->key, (uint64_t)lower->depth }, 2, POOL_WORDS, &seed, 1);
    draw_noise(b, seed);
    *upper = (struct node){ middle, high, low, high, 2 * lower->key + 1, lower->depth + 1 };
    *lower = (struct node){ low, middle, low, high, 2 * lower->key, lower->depth + 1 };
    b->node_count++;
    float share = (float)left, scale = (float)reciprocal;
    float deviation = (float)sqrt(left * right * reciprocal);
    for (int64_t i = 0; i < b->count; i++) {
        float whole = b->increments[last][i];
        b->increments[last][i] = share * whole * scale + deviation * b->noise[i];
        b->increments[last + 1][i] = whole - b->increments[last][i];
    }
}

/* Waits until a sum is free for span `index`. Returns false if the walk must stop. */
static bool wait_for_room(struct brownian *b, int index) {
    if (!b->has_thread)
        return true;
    pthread_mutex_lock(&b->mutex);
    while (!b->stopping && index >= b->taken + AHEAD)
        pthread_cond_wait(&b->changed, &b->mutex);
    bool go_on = !b->stopping;
    pthread_mutex_unlock(&b->mutex);
    return go_on;
}

/* Adds the last node's increment to span `index`. Fewer than AHEAD spans overlap, so when a span
 * waits for a free sum, the span that still uses that sum is already complete. */
static bool gather(struct brownian *b, int index) {
    const float *increment = b->increments[b->node_count - 1];
    int slot = index % AHEAD;
    if (!b->started[slot] && !wait_for_room(b, index))
        return false;
    if (b->started[slot])
        for (int64_t i = 0; i < b->count; i++)
            b->sums[slot][i] += increment[i];
    else
        memcpy(b->sums[slot], increment, sizeof(float) * (size_t)b->count);
    b->started[slot] = true;
    return true;
}

/* Completes the spans that lie above all nodes still to be visited, and hands them out. */
static void complete_spans(struct brownian *b) {
    double reached = b->node_count ? b->nodes[b->node_count - 1].high : -INFINITY;
    int before = b->summed;
    for (; b->summed < b->span_count && b->spans[b->summed].low >= reached; b->summed++) {
        int slot = b->summed % AHEAD;
        for (int64_t i = 0; i < b->count; i++)
            b->sums[slot][i] /= b->spans[b->summed].root;
        b->started[slot] = false;
    }
    if (b->summed == before)
        return;
    pthread_mutex_lock(&b->mutex);
    b->ready = b->summed;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
}

/* Visits the last node. Adds its increment to each span that contains the node but not its parent.
 * Splits the node if a span contains only a part of it. Returns false if the walk must stop. */
static bool visit(struct brownian *b) {
    struct node node = b->nodes[b->node_count - 1];
    bool splits = false;
    for (int i = b->summed; i < b->span_count && b->spans[i].high > node.low; i++) {
        const struct span *s = &b->spans[i];
        if (s->low >= node.high)
            continue;
        bool holds = s->low <= node.low && s->high >= node.high;
        bool holds_parent = s->low <= node.parent_low && s->high >= node.parent_high;
        if (holds && !holds_parent && !gather(b, i))
            return false;
        splits = splits || !holds;
    }
    if (splits)
        split(b);
    else
        b->node_count--;
    complete_spans(b);
    return true;
}

static bool is_stopping(struct brownian *b) {
    pthread_mutex_lock(&b->mutex);
    bool stopping = b->stopping;
    pthread_mutex_unlock(&b->mutex);
    return stopping;
}

static void *walk(void *user) {
    struct brownian *b = user;
    draw_root(b);
    while (b->summed < b->span_count && !is_stopping(b) && visit(b))
        ;
    return NULL;
}

/* --- the caller's side --- */

bool brownian_create(const struct scheduler_plan *plan, enum rng_kind kind, uint64_t seed,
    int64_t count, bool ahead, struct brownian **out, struct error *err) {
    *out = NULL;
    struct brownian *b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a Brownian tree");
    b->kind = kind;
    b->seed = seed;
    b->count = count;
    pthread_mutex_init(&b->mutex, NULL);
    pthread_cond_init(&b->changed, NULL);
    if (!fill_spans(b, plan, err) || !allocate(b, err)) {
        brownian_destroy(b);
        return false;
    }
    b->has_thread = ahead; /* set before the thread can read it */
    if (ahead && thread_start(&b->thread, "Brownian", walk, b) != 0)
        b->has_thread = false;
    if (!b->has_thread)
        draw_root(b);
    *out = b;
    return true;
}

void brownian_destroy(struct brownian *b) {
    if (!b)
        return;
    if (b->has_thread) {
        pthread_mutex_lock(&b->mutex);
        b->stopping = true;
        pthread_cond_broadcast(&b->changed);
        pthread_mutex_unlock(&b->mutex);
        pthread_join(b->thread, NULL);
    }
    for (int i = 0; i < b->increment_count; i++)
        free(b->increments[i]);
    for (int i = 0; i < AHEAD; i++)
        free(b->sums[i]);
    free(b->noise);
    free(b->spans);
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

void brownian_draw(struct brownian *b, float *out) {
    while (!b->has_thread && b->ready <= b->taken)
        visit(b);
    pthread_mutex_lock(&b->mutex);
    while (b->ready <= b->taken)
        pthread_cond_wait(&b->changed, &b->mutex);
    pthread_mutex_unlock(&b->mutex);
    memcpy(out, b->sums[b->taken % AHEAD], sizeof(float) * (size_t)b->count);
    pthread_mutex_lock(&b->mutex);
    b->taken++;
    pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->mutex);
}
