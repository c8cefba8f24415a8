/* The engine thread's promises: order, queue limit, cancel, timeout, drain, and exactly one `done`
 * per accepted request. The pipeline has no models, and the test lets its steps through one by one.
 * It replaces engine/loop/pipeline.c; the studio is the real one. Also meant to run under
 * ThreadSanitizer. */
#include "base/monotonic.h"
#include "engine/loop/engine.h"
#include "tests/check.h"
#include "tests/engine/idle_pipeline.h"
#include "tests/engine/idle_stages.h"

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#define STEPS 3

static struct {
    sem_t may_load, step_begun, may_step;
    bool fail_load;
    atomic_bool free_running; /* steps do not wait */
    atomic_int drawn;
    bool sees_faults, sees_stops; /* signals that the engine's thread does not block */
} fake;

static const struct scheduler_plan plan = { .count = STEPS };

/* --- the stages --- */

static int call_images(void *user, const struct resolved_request *request) {
    (void)user, (void)request;
    return 1;
}

static bool step(void *user, struct image *const *images, int count, struct error *err) {
    if (!atomic_load(&fake.free_running)) {
        sem_post(&fake.step_begun);
        sem_wait(&fake.may_step);
    }
    return idle_step(user, images, count, err);
}

static bool take(void *user, struct image *image, struct error *err) {
    (void)user, (void)image, (void)err;
    atomic_fetch_add(&fake.drawn, 1);
    return true;
}

/* --- the pipeline --- */

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    fake.sees_faults = !sigismember(&blocked, SIGBUS) && !sigismember(&blocked, SIGSEGV);
    fake.sees_stops = !sigismember(&blocked, SIGTERM) || !sigismember(&blocked, SIGINT);
    sem_wait(&fake.may_load);
    if (fake.fail_load)
        return error_set(err, ERROR_INVALID, "%s: no such model", options->model_path);
    *out = (struct pipeline *)&fake;
    const struct stages stages = idle_stages(call_images, step, take);
    return studio_create(&stages, 0, &idle_studio, err);
}

/* The result of one request. The engine thread writes it; it is read after `ended` is posted. */
struct outcome {
    struct resolved_request request;
    sem_t ended;
    atomic_int done_count, progress_count;
    enum error_code code;
    uint64_t seed;
    int order;
    double queue_s;
};
static atomic_int order;

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct outcome *outcome = user;
    outcome->code = err ? err->code : ERROR_NONE;
    outcome->order = atomic_fetch_add(&order, 1);
    if (result) {
        outcome->seed = result->seeds[0];
        outcome->queue_s = result->timings.queue_s;
        generate_result_finish(result);
    }
    atomic_fetch_add(&outcome->done_count, 1);
    sem_post(&outcome->ended);
}

static void on_progress(int step, int steps, void *user) {
    (void)step, (void)steps;
    atomic_fetch_add(&((struct outcome *)user)->progress_count, 1);
}

static uint64_t caller; /* of the next request */

static bool submit(struct engine *engine, uint64_t seed, double timeout_s, struct outcome *outcome,
    struct engine_ticket **ticket, struct error *err) {
    *outcome = (struct outcome){ .request = {
                                     .asked = { .seed = seed,
                                         .timeout_s = timeout_s,
                                         .latent_output = true },
                                     .plan = (struct scheduler_plan *)&plan,
                                     .images = 1,
                                     .latent_channels = 1,
                                     .latent_height = 1,
                                     .latent_width = 1,
                                 } };
    sem_init(&outcome->ended, 0, 0);
    const struct engine_callbacks callbacks = {
        .done = on_done, .progress = on_progress, .caller = caller, .user = outcome
    };
    return engine_submit(engine, &outcome->request, &callbacks, ticket, err);
}

static void note(void *changes) {
    sem_post(changes);
}

/* Waits until the engine leaves this state. Looks at the state again only when the engine reports a
 * change, so a missing report fails the test after 10 s. */
static void wait_while(struct engine *engine, enum engine_state state) {
    sem_t changes;
    struct timespec due;
    struct engine_listener listener = { .changed = note, .user = &changes };
    sem_init(&changes, 0, 0);
    clock_gettime(CLOCK_REALTIME, &due);
    due.tv_sec += 10;
    engine_listen(engine, &listener);
    bool told = true;
    while (engine_get_state(engine, NULL) == state && told)
        told = sem_timedwait(&changes, &due) == 0;
    engine_unlisten(engine, &listener);
    CHECK(told, "the engine does not report that it is no longer %s", engine_state_name(state));
    sem_destroy(&changes);
}

static struct engine *start(int queue_max, bool load) {
    struct engine *engine = NULL;
    struct error err = { 0 };
    const struct engine_options options = { .pipeline = { .model_path = "fake" },
        .queue_max = queue_max };
    sem_init(&fake.may_load, 0, 0);
    sem_init(&fake.step_begun, 0, 0);
    sem_init(&fake.may_step, 0, 0);
    fake.fail_load = false;
    atomic_store(&fake.free_running, false);
    atomic_store(&order, 0);
    CHECK(engine_create(&options, &engine, &err), "%s", err.message);
    if (load) {
        sem_post(&fake.may_load);
        wait_while(engine, ENGINE_LOADING);
    }
    return engine;
}

static void let_steps(int count) {
    for (int i = 0; i < count; i++) {
        sem_wait(&fake.step_begun);
        sem_post(&fake.may_step);
    }
}

static void loading_and_failing_refuse(void) {
    struct error err = { 0 };
    struct outcome outcome;
    struct engine_ticket *ticket = NULL;
    struct pipeline_info info;
    struct engine *engine = start(2, false);
    CHECK(engine_get_state(engine, NULL) == ENGINE_LOADING, "state %d",
        engine_get_state(engine, NULL));
    CHECK(!engine_get_info(engine, &info), "engine_get_info answers while the model is loading");
    CHECK(!submit(engine, 1, 0, &outcome, &ticket, &err),
        "a request is accepted while the model is loading");
    CHECK(err.code == ERROR_UNAVAILABLE && !ticket, "%s", err.message);
    fake.fail_load = true;
    sem_post(&fake.may_load);
    wait_while(engine, ENGINE_LOADING);
    CHECK(engine_get_state(engine, &err) == ENGINE_FAILED, "%s", err.message);
    CHECK_STRING(err.message, "fake: no such model");
    CHECK(
        !submit(engine, 1, 0, &outcome, NULL, &err), "a request is accepted after the load failed");
    CHECK_CONTAINS(err.message, "no such model");
    engine_destroy(engine, true);
    CHECK(atomic_load(&outcome.done_count) == 0, "`done` is called for a refused request");
    engine_destroy(NULL, true);
}

static void order_bound_and_results(void) {
    struct error err = { 0 };
    struct outcome outcomes[4];
    struct pipeline_info info;
    struct engine *engine = start(2, true);
    CHECK(engine_get_info(engine, &info) && info.max_tokens == 77,
        "engine_get_info does not answer once the model is loaded");
    CHECK(fake.sees_faults && !fake.sees_stops,
        "the engine's thread does not receive SIGBUS, or receives SIGTERM");
    CHECK(submit(engine, 10, 0, &outcomes[0], NULL, &err), "%s", err.message);
    sem_wait(&fake.step_begun); /* the first is drawn and no longer counts as waiting */
    CHECK(submit(engine, 11, 0, &outcomes[1], NULL, &err), "%s", err.message);
    CHECK(submit(engine, 12, 0, &outcomes[2], NULL, &err), "%s", err.message);
    CHECK(engine_queue_depth(engine) == 3, "%d", engine_queue_depth(engine));
    CHECK(!submit(engine, 13, 0, &outcomes[3], NULL, &err),
        "a third request is accepted where two may wait");
    CHECK(err.code == ERROR_BUSY, "%s", err.message);
    CHECK_CONTAINS(err.message, "2 requests wait, 2 may");
    sem_post(&fake.may_step);
    let_steps(3 * STEPS - 1);
    for (int i = 0; i < 3; i++) {
        sem_wait(&outcomes[i].ended);
        CHECK(outcomes[i].code == ERROR_NONE && outcomes[i].seed == 10 + (uint64_t)i,
            "%s, seed %llu", error_code_name(outcomes[i].code),
            (unsigned long long)outcomes[i].seed);
        CHECK(outcomes[i].order == i, "request %d ended as number %d", i, outcomes[i].order);
        CHECK(outcomes[i].progress_count == STEPS + 1, "%d", outcomes[i].progress_count);
        CHECK(outcomes[i].queue_s >= 0, "%g", outcomes[i].queue_s);
    }
    CHECK(engine_queue_depth(engine) == 0, "%d", engine_queue_depth(engine));
    engine_destroy(engine, true);
}

/* One caller has six requests in a queue of six places. Another caller may still add two, and they
 * are drawn before most of the first caller's. When a place becomes free, the first caller may not
 * take it. */
static void callers_have_shares(void) {
    struct error err = { 0 };
    struct outcome first[8], second[3], refused;
    struct engine *engine = start(6, true);
    CHECK(engine_wait_s(engine, 0) == 0, "an empty engine expects %g s of work",
        engine_wait_s(engine, 0));
    caller = 1;
    CHECK(submit(engine, 0, 0, &first[0], NULL, &err), "%s", err.message);
    sem_wait(&fake.step_begun); /* it is drawn and takes no place in the queue */
    for (int i = 1; i < 7; i++)
        CHECK(submit(engine, (uint64_t)i, 0, &first[i], NULL, &err), "%d: %s", i, err.message);
    CHECK(!submit(engine, 7, 0, &refused, NULL, &err) && err.code == ERROR_BUSY,
        "a seventh request is accepted where six may wait");
    caller = 2;
    for (int i = 0; i < 2; i++)
        CHECK(submit(engine, 20, 0, &second[i], NULL, &err), "%d: %s", i, err.message);
    CHECK(!submit(engine, 22, 0, &refused, NULL, &err) && err.code == ERROR_BUSY,
        "a third request of the caller is accepted where two may wait");
    CHECK_CONTAINS(err.message, "2 of your requests wait, 2 may");
    sem_post(&fake.may_step);
    let_steps(2 * STEPS - 1); /* ends the first request of each caller */
    sem_wait(&second[0].ended);
    sem_wait(&fake.step_begun); /* the first step of the next request */
    caller = 1;
    CHECK(!submit(engine, 7, 0, &refused, NULL, &err) && err.code == ERROR_BUSY,
        "the free place is given to the caller with the most requests");
    caller = 2;
    const double mine_s = engine_wait_s(engine, 2), all_s = engine_wait_s(engine, 1);
    CHECK(mine_s > 0 && all_s > mine_s && engine_wait_s(engine, 3) == 0,
        "the callers wait %g s and %g s: the one with fewer requests must wait less", all_s,
        mine_s);
    printf("with 6 and 1 requests left: %.2g s for who has one, %.2g s for who has six\n", mine_s,
        all_s);
    CHECK(submit(engine, 22, 0, &second[2], NULL, &err), "%s", err.message);
    atomic_store(&fake.free_running, true);
    sem_post(&fake.may_step);
    caller = 0;
    engine_destroy(engine, true);
    CHECK(first[0].order == 0 && second[0].order == 1 && second[1].order < first[2].order &&
              second[2].order < first[3].order,
        "the second caller's requests ended as number %d, %d and %d", second[0].order,
        second[1].order, second[2].order);
    for (int i = 0; i < 7; i++)
        CHECK(first[i].code == ERROR_NONE && first[i].done_count == 1, "%d", i);
}

static void cancel_and_timeout(void) {
    struct error err = { 0 };
    struct outcome running, waiting, late, last;
    struct engine_ticket *running_ticket, *waiting_ticket;
    struct engine *engine = start(8, true);
    CHECK(submit(engine, 1, 0, &running, &running_ticket, &err), "%s", err.message);
    sem_wait(&fake.step_begun);
    CHECK(submit(engine, 2, 0, &waiting, &waiting_ticket, &err), "%s", err.message);
    CHECK(submit(engine, 3, 1e-6, &late, NULL, &err), "%s", err.message);
    CHECK(submit(engine, 4, 1000, &last, NULL, &err), "%s", err.message);
    engine_cancel(engine, waiting_ticket);
    engine_ticket_release(waiting_ticket); /* the request stays cancelled */
    sem_post(&fake.may_step);
    /* The cancelled request and the late one end while the first request is still being drawn. */
    sem_wait(&waiting.ended);
    sem_wait(&late.ended);
    CHECK(waiting.code == ERROR_CANCELLED, "%s", error_code_name(waiting.code));
    CHECK(late.code == ERROR_TIMEOUT, "%s", error_code_name(late.code));
    CHECK(atomic_load(&running.done_count) == 0, "the request being drawn is already done");
    CHECK(engine_queue_depth(engine) == 2, "%d", engine_queue_depth(engine));
    sem_wait(&fake.step_begun);
    engine_cancel(engine, running_ticket);
    sem_post(&fake.may_step);
    sem_wait(&running.ended);
    CHECK(running.code == ERROR_CANCELLED, "%s", error_code_name(running.code));
    let_steps(STEPS);
    sem_wait(&last.ended);
    CHECK(last.code == ERROR_NONE && last.seed == 4, "%s", error_code_name(last.code));
    engine_cancel(engine, running_ticket); /* it has ended: nothing happens */
    engine_ticket_release(running_ticket);
    engine_ticket_release(NULL);
    engine_destroy(engine, true);
}

static void *destroy_now(void *engine) {
    engine_destroy(engine, false);
    return NULL;
}

static void stopping_drains_or_cancels(void) {
    struct error err = { 0 };
    struct outcome outcomes[3];
    struct engine *engine = start(8, true);
    atomic_store(&fake.free_running, true);
    for (int i = 0; i < 3; i++)
        CHECK(submit(engine, 20 + (uint64_t)i, 0, &outcomes[i], NULL, &err), "%s", err.message);
    engine_destroy(engine, true);
    for (int i = 0; i < 3; i++)
        CHECK(outcomes[i].code == ERROR_NONE && outcomes[i].done_count == 1, "drained");

    engine = start(8, true);
    for (int i = 0; i < 3; i++)
        CHECK(submit(engine, 30, 0, &outcomes[i], NULL, &err), "%s", err.message);
    sem_wait(&fake.step_begun);
    pthread_t destroyer;
    pthread_create(&destroyer, NULL, destroy_now, engine);
    wait_while(engine, ENGINE_READY);
    struct outcome refused;
    CHECK(!submit(engine, 1, 0, &refused, NULL, &err) && err.code == ERROR_UNAVAILABLE,
        "while stopping: %s", err.message);
    sem_post(&fake.may_step);
    pthread_join(destroyer, NULL);
    for (int i = 0; i < 3; i++)
        CHECK(outcomes[i].code == ERROR_CANCELLED && outcomes[i].done_count == 1, "%s, %d times",
            error_code_name(outcomes[i].code), outcomes[i].done_count);
}

#define SUBMITTERS 4
#define PER_SUBMITTER 50

struct submitter {
    pthread_t thread;
    struct engine *engine;
    struct outcome outcomes[PER_SUBMITTER];
    bool accepted[PER_SUBMITTER];
};

static void *submit_many(void *user) {
    struct submitter *s = user;
    for (int i = 0; i < PER_SUBMITTER; i++) {
        struct engine_ticket *ticket = NULL;
        struct error err;
        s->accepted[i] = submit(s->engine, 1, 0, &s->outcomes[i], &ticket, &err);
        if (i % 3 == 0 && ticket)
            engine_cancel(s->engine, ticket);
        engine_ticket_release(ticket);
        if (s->accepted[i] && i % 5 == 0)
            sem_wait(&s->outcomes[i].ended);
    }
    return NULL;
}

static void many_threads_get_one_done_each(void) {
    static struct submitter submitters[SUBMITTERS];
    struct engine *engine = start(5, true);
    atomic_store(&fake.free_running, true);
    atomic_store(&fake.drawn, 0);
    for (int i = 0; i < SUBMITTERS; i++) {
        submitters[i].engine = engine;
        pthread_create(&submitters[i].thread, NULL, submit_many, &submitters[i]);
    }
    for (int i = 0; i < SUBMITTERS; i++)
        pthread_join(submitters[i].thread, NULL);
    engine_destroy(engine, true);
    int accepted = 0, finished = 0, succeeded = 0;
    for (int i = 0; i < SUBMITTERS; i++)
        for (int k = 0; k < PER_SUBMITTER; k++) {
            accepted += submitters[i].accepted[k];
            finished += submitters[i].outcomes[k].done_count;
            succeeded += submitters[i].accepted[k] && !submitters[i].outcomes[k].code;
            CHECK(submitters[i].outcomes[k].done_count == submitters[i].accepted[k],
                "submitter %d, request %d: done %d times", i, k,
                submitters[i].outcomes[k].done_count);
        }
    printf("%d accepted, %d finished, %d drawn\n", accepted, finished, succeeded);
    CHECK(accepted == finished && succeeded == fake.drawn, "%d drawn", fake.drawn);
}

/* --- the background --- */

static struct {
    sem_t begun, may_go;
    atomic_bool free_running;
    atomic_int pieces, stops;
    atomic_bool more;
} background;

static bool background_work(bool *more, void *user, struct error *err) {
    (void)user, (void)err;
    if (!atomic_load(&background.free_running)) {
        sem_post(&background.begun);
        sem_wait(&background.may_go);
    }
    atomic_fetch_add(&background.pieces, 1);
    *more = atomic_load(&background.more);
    return true;
}

static void background_stop(void *user) {
    (void)user;
    atomic_fetch_add(&background.stops, 1);
}

static struct engine *start_with_background(double share) {
    struct engine *engine = start(5, true);
    atomic_store(&fake.free_running, false);
    atomic_store(&background.free_running, false);
    atomic_store(&background.more, true);
    atomic_store(&background.pieces, 0);
    atomic_store(&background.stops, 0);
    engine_set_background(engine, &(struct engine_background){
                                      .work = background_work,
                                      .stop = background_stop,
                                      .share = share,
                                  });
    return engine;
}

/* A request waits for at most one piece of background work, and no piece runs between the request's
 * calls. */
static void requests_go_before_the_background(void) {
    struct engine *engine = start_with_background(0);
    struct outcome outcome = { 0 };
    struct error err;
    sem_wait(&background.begun); /* a piece is in progress */
    CHECK(submit(engine, 1, 0, &outcome, NULL, &err), "%s", err.message);
    sem_post(&background.may_go);
    for (int i = 0; i < STEPS; i++) {
        sem_wait(&fake.step_begun);
        CHECK(atomic_load(&background.pieces) == 1, "%d pieces", atomic_load(&background.pieces));
        sem_post(&fake.may_step);
    }
    sem_wait(&outcome.ended);
    sem_wait(&background.begun); /* the background continues after the request */
    atomic_store(&background.more, false);
    sem_post(&background.may_go);
    while (atomic_load(&background.pieces) != 2)
        ;
    engine_wake_background(engine);
    sem_wait(&background.begun); /* it works again when it is woken */
    sem_post(&background.may_go);
    engine_destroy(engine, true);
    CHECK(background.pieces == 3 && background.stops == 1, "%d pieces, %d stops", background.pieces,
        background.stops);
}

/* With a share of one half, the background works about as long as the calls of requests: here one
 * piece per call. */
static void the_background_has_its_share(void) {
    struct engine *engine = start_with_background(0.5);
    struct outcome outcome = { 0 };
    struct error err;
    sem_wait(&background.begun);
    CHECK(submit(engine, 1, 0, &outcome, NULL, &err), "%s", err.message);
    sem_post(&background.may_go);
    sem_wait(&fake.step_begun);
    sem_post(&fake.may_step);
    sem_wait(&background.begun); /* before the second step; would hang without a share */
    CHECK(!outcome.done_count, "the request is not done");
    atomic_store(&background.free_running, true);
    atomic_store(&fake.free_running, true);
    sem_post(&background.may_go);
    for (int i = 0; i < STEPS; i++)
        sem_post(&fake.may_step);
    sem_wait(&outcome.ended);
    engine_destroy(engine, true);
    CHECK(background.stops == 1, "%d stops", background.stops);
    while (!sem_trywait(&fake.may_step) || !sem_trywait(&fake.step_begun))
        ;
}

int main(void) {
    sem_init(&background.begun, 0, 0);
    sem_init(&background.may_go, 0, 0);
    loading_and_failing_refuse();
    order_bound_and_results();
    callers_have_shares();
    cancel_and_timeout();
    stopping_drains_or_cancels();
    many_threads_get_one_done_each();
    requests_go_before_the_background();
    the_background_has_its_share();
    return check_done();
}
