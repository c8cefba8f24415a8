/* Tests how much time --training-share gives to the background while there are requests. Only this
 * test moves the clock. The pipeline has no models; its calls and the background's pieces take a
 * fixed time each. They are executed at once, as on a processor, or later, as on a device with a
 * queue.
 *
 * With share s, pieces are owed s / (1 - s) of the calls' time. A piece begins only when time is
 * owed, and before the next call begins. So when a call begins, the pieces have had at least the
 * time that is owed to them, and less than one piece more. Linked with --wrap=clock_gettime. */
#include "engine/loop/engine.h"
#include "kernels/kernels.h"
#include "tests/check.h"
#include "tests/engine/idle_pipeline.h"
#include "tests/engine/idle_stages.h"

#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <time.h>

#define REQUESTS 3
#define CALLS 200 /* of each */
#define PIECES_MAX 100000
#define START_S 1000

#define MS 1000000 /* ns */

/* Used by the engine thread only, except for the atomics. Times are in ns. */
static struct {
    int64_t call, piece;
    bool is_late;            /* the device works while the host continues */
    int64_t queued;          /* the device's remaining work */
    int64_t most_queued;     /* the most work that a call waited for */
    int calls, taken, ended; /* ended: requests that got their result */
    int pieces;              /* from the first call to the last picture */
    atomic_int idle_pieces;  /* before that */
    _Atomic(int64_t) now;
    sem_t called, may_call;
} pretended;

/* --- the clock --- */

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    if (clock != CLOCK_MONOTONIC)
        return __real_clock_gettime(clock, out);
    const int64_t now = atomic_load(&pretended.now);
    out->tv_sec = START_S + now / (1000 * MS);
    out->tv_nsec = now % (1000 * MS);
    return 0;
}

/* --- the device --- */

static bool synchronize(struct error *err) {
    (void)err;
    atomic_fetch_add(&pretended.now, pretended.queued);
    pretended.queued = 0;
    return true;
}

static const struct device_memory memory = { .synchronize = synchronize };
static const struct kernels kernels = { .name = "pretended", .memory = &memory };

static void compute(int64_t ns) {
    struct error err;
    pretended.queued += ns;
    if (!pretended.is_late)
        (void)synchronize(&err);
}

/* --- requests --- */

static const struct scheduler_plan plan = { .count = CALLS };

static int call_images(void *user, const struct resolved_request *request) {
    (void)user, (void)request;
    return 1;
}

/* The first call waits until all requests and the background have been submitted. */
static bool step(void *user, struct image *const *images, int count, struct error *err) {
    if (pretended.calls++ == 0) {
        sem_post(&pretended.called);
        sem_wait(&pretended.may_call);
    }
    if (pretended.most_queued < pretended.queued)
        pretended.most_queued = pretended.queued;
    compute(pretended.call);
    return idle_step(user, images, count, err);
}

static bool take(void *user, struct image *image, struct error *err) {
    (void)user, (void)image, (void)err;
    pretended.taken++;
    return true;
}

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    (void)options;
    *out = (struct pipeline *)&pretended;
    const struct stages stages = idle_stages(call_images, step, take);
    return studio_create(&stages, 0, &idle_studio, err);
}

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    (void)err;
    pretended.ended += result != NULL;
    if (result)
        generate_result_finish(result);
    sem_post(user);
}

static void submit(struct engine *engine, struct resolved_request *request, sem_t *done) {
    struct error err = { 0 };
    *request = (struct resolved_request){ .asked.latent_output = true,
        .plan = (struct scheduler_plan *)&plan,
        .images = 1,
        .latent_channels = 1,
        .latent_height = 1,
        .latent_width = 1 };
    const struct engine_callbacks callbacks = { .done = on_done, .user = done };
    CHECK(engine_submit(engine, request, &callbacks, NULL, &err), "%s", err.message);
}

/* --- the background --- */

static bool work(bool *more, void *user, struct error *err) {
    (void)user, (void)err;
    if (!pretended.calls)
        atomic_fetch_add(&pretended.idle_pieces, 1);
    else if (pretended.taken < REQUESTS)
        pretended.pieces++;
    compute(pretended.piece);
    *more = pretended.pieces < PIECES_MAX; /* a limit, in case the engine never stops it */
    return true;
}

static struct engine *start(int64_t call, int64_t piece, bool is_late) {
    const struct engine_options options = { .pipeline.model_path = "pretended",
        .queue_max = REQUESTS };
    struct engine *engine = NULL;
    struct error err = { 0 };
    pretended.call = call;
    pretended.piece = piece;
    pretended.is_late = is_late;
    pretended.queued = pretended.most_queued = 0;
    pretended.calls = pretended.taken = pretended.ended = pretended.pieces = 0;
    atomic_store(&pretended.idle_pieces, 0);
    idle_kernels = &kernels;
    CHECK(engine_create(&options, &engine, &err), "%s", err.message);
    while (engine_get_state(engine, NULL) == ENGINE_LOADING)
        sched_yield();
    return engine;
}

static void finish(struct engine *engine, sem_t *done, int requests) {
    sem_post(&pretended.may_call);
    for (int i = 0; i < requests; i++)
        sem_wait(done);
    engine_destroy(engine, true);
    sem_destroy(done);
    CHECK(pretended.ended == requests && pretended.calls == requests * CALLS, "%d ended, %d calls",
        pretended.ended, pretended.calls);
}

/* --- promises --- */

static void has_its_share(double share, int64_t call, int64_t piece, bool is_late) {
    struct engine *engine = start(call, piece, is_late);
    struct resolved_request requests[REQUESTS];
    sem_t done;
    sem_init(&done, 0, 0);
    submit(engine, &requests[0], &done);
    sem_wait(&pretended.called);
    for (int i = 1; i < REQUESTS; i++)
        submit(engine, &requests[i], &done);
    engine_set_background(engine, &(struct engine_background){ .work = work, .share = share });
    finish(engine, &done, REQUESTS);
    /* Two calls earn no piece that could be counted here: the last one, because nothing follows it,
     * and the first, which began before the engine knew of the background. On a late device the
     * first call does count, because the device works on it during the second call. */
    const int counted = pretended.calls - (is_late ? 1 : 2);
    const double calls = (double)counted * (double)call;
    const double pieces = (double)pretended.pieces * (double)piece;
    const double owed = calls * share / (1 - share), rounding = 1000;
    const double had = pieces / (pieces + calls);
    printf("share %.1f: %d pieces of %g ms between %d calls of %g ms%s: %.4f\n", share,
        pretended.pieces, (double)piece / MS, counted, (double)call / MS,
        is_late ? ", on a device that is late" : "", had);
    CHECK(pieces > owed - rounding && pieces < owed + (double)piece + rounding,
        "training got %g ms, its share is %g ms", pieces / MS, owed / MS);
    CHECK(share > 0 || pretended.pieces == 0, "training got %d pieces at a share of 0",
        pretended.pieces);
}

/* Before a request starts, the device has finished all background pieces that ran while there were
 * no requests. */
static void leaves_nothing_queued(double share) {
    struct engine *engine = start(10 * MS, 10 * MS, true);
    struct resolved_request request;
    sem_t done;
    sem_init(&done, 0, 0);
    engine_set_background(engine, &(struct engine_background){ .work = work, .share = share });
    while (atomic_load(&pretended.idle_pieces) < 10)
        sched_yield();
    submit(engine, &request, &done);
    sem_wait(&pretended.called);
    finish(engine, &done, 1);
    /* Without a share, calls may run ahead of the device. */
    const int64_t own = share > 0 ? 0 : (CALLS - 1) * pretended.call;
    CHECK(pretended.most_queued <= own, "share %g: a call waits for %g ms, %g of them of its own",
        share, (double)pretended.most_queued / MS, (double)own / MS);
}

int main(void) {
    static const double shares[] = { 0, 0.1, 0.3, 0.5, 0.9 };
    static const int64_t pieces[] = { 1 * MS, 10 * MS, 37 * MS };
    sem_init(&pretended.called, 0, 0);
    sem_init(&pretended.may_call, 0, 0);
    for (int is_late = 0; is_late < 2; is_late++)
        for (size_t i = 0; i < sizeof(shares) / sizeof(shares[0]); i++)
            for (size_t j = 0; j < sizeof(pieces) / sizeof(pieces[0]); j++)
                has_its_share(shares[i], 10 * MS, pieces[j], is_late);
    leaves_nothing_queued(0);
    leaves_nothing_queued(0.3);
    return check_done();
}
