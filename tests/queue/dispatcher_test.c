/* The dispatcher with a runner that works only when the test lets it. */
#include "base/monotonic.h"
#include "queue/dispatcher.h"
#include "tests/check.h"
#include "tests/queue/folder.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>

/* CHECK_STRING for character arrays. */
static void check_same(const char *a, const char *b) {
    CHECK_STRING(a, b);
}

/* The mutex guards the other fields. */
struct pretended {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct job_claim *claim;
    int starts, wakes, overlaps;
};

static void on_start(void *user, struct job_claim *claim) {
    struct pretended *p = user;
    pthread_mutex_lock(&p->mutex);
    p->overlaps += p->claim != NULL;
    p->claim = claim;
    p->starts++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

static void on_wake(void *user) {
    struct pretended *p = user;
    pthread_mutex_lock(&p->mutex);
    p->wakes++;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->mutex);
}

#define PATIENCE_S 20

/* Waits until `starts` jobs have been started in all. Returns the latest job's claim; NULL if too
 * few start in time. */
static struct job_claim *await_start(struct pretended *p, int starts) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&p->mutex);
    while (p->starts < starts && pthread_cond_timedwait(&p->changed, &p->mutex, &until) == 0) {
    }
    struct job_claim *claim = p->starts >= starts ? p->claim : NULL;
    p->claim = NULL;
    pthread_mutex_unlock(&p->mutex);
    CHECK(claim, "job %d does not start", starts);
    return claim;
}

static void await_wakes(struct pretended *p, int wakes) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&p->mutex);
    while (p->wakes < wakes && pthread_cond_timedwait(&p->changed, &p->mutex, &until) == 0) {
    }
    CHECK(p->wakes >= wakes, "woken %d times, not %d", p->wakes, wakes);
    pthread_mutex_unlock(&p->mutex);
}

static void pause_ms(int ms) {
    const struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&time, NULL);
}

struct bench {
    struct queue *queue;
    struct dispatcher *dispatcher;
    struct pretended runner;
};

static void begin(struct bench *b, const char *folder) {
    struct error err = { 0 };
    memset(b, 0, sizeof(*b));
    pthread_mutex_init(&b->runner.mutex, NULL);
    pthread_cond_init(&b->runner.changed, NULL);
    CHECK(queue_open(folder, &b->queue, &err), "%s", err.message);
    CHECK(dispatcher_create(b->queue, &b->dispatcher, &err), "%s", err.message);
    const struct job_runner runner = {
        .type = "train", .start = on_start, .wake = on_wake, .user = &b->runner
    };
    CHECK(!dispatcher_find(b->dispatcher, "train"), "a runner is found before one was added");
    CHECK(dispatcher_add(b->dispatcher, &runner, &err), "%s", err.message);
    CHECK(dispatcher_find(b->dispatcher, "train") && !dispatcher_find(b->dispatcher, "draw"),
        "found");
}

static void end(struct bench *b) {
    dispatcher_destroy(b->dispatcher);
    CHECK(b->runner.overlaps == 0, "two jobs ran at the same time");
    queue_destroy(b->queue);
    pthread_cond_destroy(&b->runner.changed);
    pthread_mutex_destroy(&b->runner.mutex);
}

static void enqueue(struct bench *b, char id[JOB_ID_BYTES]) {
    struct error err = { 0 };
    struct job job = { 0 };
    bool known;
    const struct job_order order = { .type = "train", .request = "{}" };
    CHECK(queue_enqueue(b->queue, &order, &job, &known, &err), "%s", err.message);
    memcpy(id, job.id, JOB_ID_BYTES);
    job_finish(&job);
}

static struct job get(struct bench *b, const char *id) {
    struct error err = { 0 };
    struct job job = { 0 };
    CHECK(queue_get(b->queue, id, &job, &err), "%s", err.message);
    return job;
}

/* Polls until the job has the state. */
static void await_state(struct bench *b, const char *id, enum job_state state) {
    const int64_t end_ms = monotonic_ms() + PATIENCE_S * 1000;
    struct job job = get(b, id);
    while (job.state != state && monotonic_ms() < end_ms) {
        job_finish(&job);
        pause_ms(2);
        job = get(b, id);
    }
    CHECK(job.state == state, "%s, not %s", job_state_name(job.state), job_state_name(state));
    job_finish(&job);
}

/* Polls until the job has the strikes. */
static void await_strikes(struct bench *b, const char *id, int strikes) {
    const int64_t end_ms = monotonic_ms() + PATIENCE_S * 1000;
    struct job job = get(b, id);
    while (job.strikes != strikes && monotonic_ms() < end_ms) {
        job_finish(&job);
        pause_ms(2);
        job = get(b, id);
    }
    CHECK(job.strikes == strikes, "%d strikes, not %d", job.strikes, strikes);
    job_finish(&job);
}

static void ask(struct bench *b, const char *id,
    bool (*how)(struct queue *queue, const char *id, struct job *out, struct error *err)) {
    struct error err = { 0 };
    struct job job;
    const bool ok = how(b->queue, id, &job, &err);
    CHECK(ok, "%s", err.message);
    if (ok)
        job_finish(&job);
}

struct seen {
    char types[512];
};

static bool note(void *user, const struct job_event *event, struct error *err) {
    struct seen *seen = user;
    const size_t used = strlen(seen->types);
    (void)err;
    snprintf(seen->types + used, sizeof(seen->types) - used, "%s ", event->type);
    return true;
}

static void jobs_are_done_one_after_the_other(void) {
    struct bench b;
    struct error err = { 0 };
    char ids[3][JOB_ID_BYTES];
    begin(&b, NULL);
    for (int i = 0; i < 3; i++)
        enqueue(&b, ids[i]);
    for (int i = 0; i < 3; i++) {
        struct job_claim *claim = await_start(&b.runner, i + 1);
        check_same(job_claim_job(claim)->id, ids[i]);
        CHECK(job_claim_wish(claim) == JOB_GO_ON,
            "a running job has a wish although nobody asked for anything");
        for (int step = 1; step <= 50; step++) {
            char metrics[32];
            snprintf(metrics, sizeof(metrics), "{\"loss\":%d}", step);
            job_claim_report(claim, &(struct job_report){ step, 50, 50 - step, metrics });
            if (step == 25)
                CHECK(job_claim_event(claim, "checkpoint", "{\"step\":25}"),
                    "an event is refused although there is room");
        }
        job_claim_succeed(claim, strdup("{\"adapter\":\"a\"}"));
        await_state(&b, ids[i], JOB_SUCCEEDED);
        struct job job = get(&b, ids[i]);
        CHECK(job.step == 50 && job.steps == 50,
            "the stored step is %d, not that of the last report", (int)job.step);
        check_same(job.metrics, "{\"loss\":50}");
        check_same(job.result, "{\"adapter\":\"a\"}");
        struct seen seen = { 0 };
        CHECK(queue_events(b.queue, &job, 0, 100, note, &seen, &err), "%s", err.message);
        CHECK_CONTAINS(seen.types, " checkpoint ");
        CHECK(
            job.events <= 8, "fifty quick reports were %d events: %s", (int)job.events, seen.types);
        job_finish(&job);
    }
    end(&b);
}

/* When a job succeeds, the last report before it is written at once. A report of a job that goes on
 * would wait, because another report has just been written. */
static void the_last_report_does_not_wait(void) {
    const int64_t end_ms = monotonic_ms() + PATIENCE_S * 1000;
    struct bench b;
    char id[JOB_ID_BYTES];
    begin(&b, NULL);
    enqueue(&b, id);
    struct job_claim *claim = await_start(&b.runner, 1);
    job_claim_report(claim, &(struct job_report){ 1, 2, -1, NULL });
    int64_t step = 0;
    while (step != 1 && monotonic_ms() < end_ms) {
        struct job job = get(&b, id);
        step = job.step;
        job_finish(&job);
    }
    CHECK(step == 1, "the first report was stored as step %d", (int)step);
    job_claim_report(claim, &(struct job_report){ 2, 2, 0, "{\"loss\":2}" });
    job_claim_succeed(claim, NULL);
    await_state(&b, id, JOB_SUCCEEDED);
    struct job job = get(&b, id);
    check_same(job.metrics, "{\"loss\":2}"); /* checks metrics: success itself sets the step */
    job_finish(&job);
    end(&b);
}

static void wishes_reach_the_runner(void) {
    struct bench b;
    char id[JOB_ID_BYTES];
    begin(&b, NULL);
    enqueue(&b, id);
    struct job_claim *claim = await_start(&b.runner, 1);
    ask(&b, id, queue_pause);
    await_wakes(&b.runner, 1);
    CHECK(job_claim_wish(claim) == JOB_PAUSE, "pause");
    ask(&b, id, queue_resume);
    await_wakes(&b.runner, 2);
    CHECK(job_claim_wish(claim) == JOB_GO_ON,
        "the resumed job has a wish although nobody asked for anything");
    ask(&b, id, queue_pause);
    job_claim_stopped(claim);
    await_state(&b, id, JOB_PAUSED);
    ask(&b, id, queue_resume);
    claim = await_start(&b.runner, 2);
    CHECK(job_claim_job(claim)->attempts == 2, "the resumed job is not in its second attempt");
    ask(&b, id, queue_cancel);
    CHECK(job_claim_wish(claim) == JOB_CANCEL, "cancel");
    job_claim_stopped(claim);
    await_state(&b, id, JOB_CANCELLED);
    enqueue(&b, id);
    const struct error why = { .code = ERROR_INTERNAL, .message = "the loss is NaN" };
    job_claim_fail(await_start(&b.runner, 3), &why);
    await_state(&b, id, JOB_FAILED);
    end(&b);
}

/* --- Between a queue call and the dispatcher's next step --- */

typedef bool asked(struct queue *queue, const char *id, struct job *out, struct error *err);

/* Calls on a job, made by the wrappers below after the real queue_claim or queue_get has returned,
 * and before the dispatcher sees the result. Only the dispatcher's thread and the test's thread use
 * the queue. */
static struct between { asked *after_claim[3], *after_get[3]; } between;

static void ask_all(struct queue *queue, const char *id, asked **asks) {
    for (int i = 0; i < 3 && asks[i]; i++) {
        struct job job;
        asked *how = asks[i];
        asks[i] = NULL;
        if (how(queue, id, &job, NULL))
            job_finish(&job);
    }
}

bool __real_queue_claim(
    struct queue *queue, const char *type, struct job *out, bool *found, struct error *err);
bool __wrap_queue_claim(
    struct queue *queue, const char *type, struct job *out, bool *found, struct error *err);
bool __real_queue_get(struct queue *queue, const char *id, struct job *out, struct error *err);
bool __wrap_queue_get(struct queue *queue, const char *id, struct job *out, struct error *err);

bool __wrap_queue_claim(
    struct queue *queue, const char *type, struct job *out, bool *found, struct error *err) {
    const bool ok = __real_queue_claim(queue, type, out, found, err);
    if (ok && *found)
        ask_all(queue, out->id, between.after_claim);
    return ok;
}

bool __wrap_queue_get(struct queue *queue, const char *id, struct job *out, struct error *err) {
    const bool ok = __real_queue_get(queue, id, out, err);
    if (ok)
        ask_all(queue, id, between.after_get);
    return ok;
}

/* If a client expresses several wishes while the job is being claimed, the last one counts. Only a
 * cancel cannot be revoked by a later wish. */
static void wishes_at_the_moment_of_the_claim_keep_their_order(void) {
    static const struct {
        struct between asks;
        enum job_wish then;
        const char *what;
    } cases[] = {
        { { .after_claim = { queue_cancel } }, JOB_CANCEL, "cancel, before it is read" },
        { { .after_get = { queue_cancel } }, JOB_CANCEL, "cancel, after it was read" },
        { { .after_claim = { queue_pause } }, JOB_PAUSE, "pause" },
        { { .after_get = { queue_pause } }, JOB_PAUSE, "pause, after it was read" },
        { { .after_claim = { queue_pause, queue_resume } }, JOB_GO_ON, "pause, resume" },
        { { .after_claim = { queue_pause }, .after_get = { queue_resume } }, JOB_GO_ON,
            "pause, resume after it was read" },
        { { .after_claim = { queue_pause, queue_resume, queue_cancel } }, JOB_CANCEL,
            "pause, resume, cancel" },
        { { .after_claim = { queue_cancel, queue_pause } }, JOB_CANCEL, "cancel, pause" },
    };
    struct bench b;
    int starts = 0;
    begin(&b, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char id[JOB_ID_BYTES];
        between = cases[i].asks;
        enqueue(&b, id);
        struct job_claim *claim = await_start(&b.runner, ++starts);
        const enum job_wish now = job_claim_wish(claim);
        /* If the dispatcher did not call queue_get, the wishes planned for after that call are made
         * now. */
        ask_all(b.queue, id, between.after_get);
        const enum job_wish later = job_claim_wish(claim);
        CHECK(later == cases[i].then, "%s: wish %d, then %d, not %d", cases[i].what, (int)now,
            (int)later, (int)cases[i].then);
        job_claim_stopped(claim);
        if (cases[i].then == JOB_GO_ON) /* the job is given back and claimed again */
            job_claim_succeed(await_start(&b.runner, ++starts), NULL);
        await_state(&b, id,
            cases[i].then == JOB_CANCEL  ? JOB_CANCELLED
            : cases[i].then == JOB_PAUSE ? JOB_PAUSED
                                         : JOB_SUCCEEDED);
        printf("%s: wish %d\n", cases[i].what, (int)later);
    }
    end(&b);
}

/* --- Without memory --- */

static _Thread_local bool has_no_memory;

char *__real_strdup(const char *text);
char *__wrap_strdup(const char *text);

char *__wrap_strdup(const char *text) {
    return has_no_memory ? NULL : __real_strdup(text);
}

static void a_result_is_kept_where_memory_is_short(void) {
    struct bench b;
    char id[JOB_ID_BYTES];
    begin(&b, NULL);
    enqueue(&b, id);
    struct job_claim *claim = await_start(&b.runner, 1);
    char *result = strdup("{\"adapter\":\"a\"}");
    has_no_memory = true;
    job_claim_succeed(claim, result);
    has_no_memory = false;
    await_state(&b, id, JOB_SUCCEEDED);
    struct job job = get(&b, id);
    CHECK(job.result, "a job has succeeded without a result");
    check_same(job.result ? job.result : "", "{\"adapter\":\"a\"}");
    job_finish(&job);
    end(&b);
}

/* Cancels a job as soon as a listener reports that it is running. At that time the runner does not
 * have the job yet. */
struct hasty {
    struct queue *queue;
    pthread_mutex_t mutex;
    pthread_cond_t heard;
    char id[JOB_ID_BYTES]; /* "": nothing reported yet */
};

static void on_running(void *user, const struct job *job, bool deleted) {
    struct hasty *hasty = user;
    if (deleted || job->state != JOB_RUNNING || job->wish != JOB_GO_ON)
        return;
    pthread_mutex_lock(&hasty->mutex);
    memcpy(hasty->id, job->id, JOB_ID_BYTES);
    pthread_cond_signal(&hasty->heard);
    pthread_mutex_unlock(&hasty->mutex);
}

static void *cancel_hastily(void *user) {
    struct hasty *hasty = user;
    struct job job;
    pthread_mutex_lock(&hasty->mutex);
    while (!hasty->id[0])
        pthread_cond_wait(&hasty->heard, &hasty->mutex);
    pthread_mutex_unlock(&hasty->mutex);
    if (queue_cancel(hasty->queue, hasty->id, &job, NULL))
        job_finish(&job);
    return NULL;
}

static void a_cancel_at_the_moment_of_the_claim_is_heard(void) {
    struct bench b;
    begin(&b, NULL);
    for (int i = 0; i < 50; i++) {
        char id[JOB_ID_BYTES];
        pthread_t thread;
        struct hasty hasty = { .queue = b.queue };
        pthread_mutex_init(&hasty.mutex, NULL);
        pthread_cond_init(&hasty.heard, NULL);
        struct queue_listener listener = { .changed = on_running, .user = &hasty };
        queue_listen(b.queue, &listener);
        pthread_create(&thread, NULL, cancel_hastily, &hasty);
        enqueue(&b, id);
        struct job_claim *claim = await_start(&b.runner, i + 1);
        pthread_join(thread, NULL);
        CHECK(job_claim_wish(claim) == JOB_CANCEL, "round %d: the cancel did not reach the job", i);
        queue_unlisten(b.queue, &listener);
        job_claim_stopped(claim);
        await_state(&b, id, JOB_CANCELLED);
        pthread_cond_destroy(&hasty.heard);
        pthread_mutex_destroy(&hasty.mutex);
    }
    end(&b);
}

static void too_many_events_are_refused(void) {
    static char large[JOB_EVENT_MAX_BYTES + 2];
    struct bench b;
    char id[JOB_ID_BYTES], folder[FOLDER_BYTES];
    struct rlimit before;
    snprintf(large, sizeof(large), "{\"a\":\"%0*d\"}", (int)sizeof(large) - 9, 0);
    folder_make(folder);
    begin(&b, folder);
    enqueue(&b, id);
    struct job_claim *claim = await_start(&b.runner, 1);
    CHECK(!job_claim_event(claim, "log", large), "%zu bytes", strlen(large));
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
    CHECK(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 0, before.rlim_max }) == 0, "setrlimit");
    int taken = 0;
    while (taken < 2 * JOB_EVENTS_PENDING_MAX && job_claim_event(claim, "log", "{}"))
        taken++;
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0, "setrlimit");
    CHECK(taken >= JOB_EVENTS_PENDING_MAX && taken < 2 * JOB_EVENTS_PENDING_MAX,
        "%d events were accepted", taken);
    job_claim_succeed(claim, NULL);
    await_state(&b, id, JOB_SUCCEEDED);
    struct job job = get(&b, id);
    CHECK(job.events == taken + 3, "%d events of %d", (int)job.events, taken);
    job_finish(&job);
    end(&b);
    folder_remove(folder);
}

static void *destroy_dispatcher(void *user) {
    dispatcher_destroy(user);
    return NULL;
}

static void a_stop_gives_everything_back(void) {
    struct bench b;
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES], other[JOB_ID_BYTES];
    folder_make(folder);
    begin(&b, folder);
    enqueue(&b, id);
    enqueue(&b, other);
    struct job_claim *first = await_start(&b.runner, 1);
    pthread_t thread;
    pthread_create(&thread, NULL, destroy_dispatcher, b.dispatcher);
    await_wakes(&b.runner, 1);
    CHECK(job_claim_wish(first) == JOB_GIVE_BACK, "the claim is not asked to give the job back");
    job_claim_report(first, &(struct job_report){ 3, 9, -1, NULL });
    job_claim_stopped(first);
    pthread_join(thread, NULL);
    b.dispatcher = NULL;
    end(&b);
    begin(&b, folder);
    struct job_claim *claim = await_start(&b.runner, 1); /* the job resumes by itself */
    check_same(job_claim_job(claim)->id, id);
    CHECK(job_claim_job(claim)->step == 3 && job_claim_job(claim)->strikes == 1,
        "the second attempt does not begin at step 3 with one strike");
    job_claim_succeed(claim, NULL);
    await_state(&b, id, JOB_SUCCEEDED);
    job_claim_succeed(await_start(&b.runner, 2), NULL);
    await_state(&b, other, JOB_SUCCEEDED);
    end(&b);
    folder_remove(folder);
}

static void who_waits_for_long_has_no_strike(void) {
    struct bench b;
    char id[JOB_ID_BYTES];
    begin(&b, NULL);
    enqueue(&b, id);
    struct job_claim *claim = await_start(&b.runner, 1);
    await_strikes(&b, id, 1);
    job_claim_waits(claim);
    await_strikes(&b, id, 0);
    job_claim_report(claim, &(struct job_report){ 0, 9, -1, NULL });
    await_strikes(&b, id, 1); /* the report ends the wait */
    job_claim_waits(claim);
    await_strikes(&b, id, 0);
    job_claim_report(claim, &(struct job_report){ 1, 9, -1, NULL });
    job_claim_succeed(claim, NULL);
    await_state(&b, id, JOB_SUCCEEDED);
    /* If a job waits only briefly, its strike is not removed. */
    enqueue(&b, id);
    claim = await_start(&b.runner, 2);
    job_claim_waits(claim);
    job_claim_report(claim, &(struct job_report){ 0, 9, -1, NULL });
    pause_ms(20);
    await_strikes(&b, id, 1);
    job_claim_succeed(claim, NULL);
    await_state(&b, id, JOB_SUCCEEDED);
    end(&b);
}

static void what_is_abandoned_begins_again(void) {
    struct bench b;
    char folder[FOLDER_BYTES], ids[2][JOB_ID_BYTES];
    folder_make(folder);
    begin(&b, folder);
    enqueue(&b, ids[0]);
    struct job_claim *claim = await_start(&b.runner, 1);
    job_claim_report(claim, &(struct job_report){ 0, 9, -1, NULL });
    job_claim_abandon(claim);
    enqueue(&b, ids[1]);
    claim = await_start(&b.runner, 2);
    job_claim_waits(claim);
    job_claim_abandon(claim); /* it only waited, so it gets no strike */
    dispatcher_stop(b.dispatcher);
    dispatcher_wait(b.dispatcher, "train");
    for (int i = 0; i < 2; i++) {
        struct job job = get(&b, ids[i]);
        CHECK(job.state == JOB_RUNNING && job.strikes == !i, "%s, %d strikes",
            job_state_name(job.state), job.strikes);
        job_finish(&job);
    }
    end(&b);
    begin(&b, folder);
    for (int i = 0; i < 2; i++) {
        claim = await_start(&b.runner, i + 1);
        check_same(job_claim_job(claim)->id, ids[i]);
        CHECK(job_claim_job(claim)->strikes == 2 - i, "%d strikes", job_claim_job(claim)->strikes);
        job_claim_succeed(claim, NULL);
        await_state(&b, ids[i], JOB_SUCCEEDED);
    }
    end(&b);
    folder_remove(folder);
}

/* A limit on the file size imitates a full disk. */
static void an_end_is_written_once_there_is_room(void) {
    struct bench b;
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    struct rlimit before, none;
    folder_make(folder);
    begin(&b, folder);
    enqueue(&b, id);
    struct job_claim *claim = await_start(&b.runner, 1);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0, "getrlimit");
    none = (struct rlimit){ 0, before.rlim_max };
    CHECK(setrlimit(RLIMIT_FSIZE, &none) == 0, "setrlimit");
    job_claim_report(claim, &(struct job_report){ 9, 9, 0, NULL });
    pause_ms(200); /* lets the first try fail */
    CHECK(job_claim_event(claim, "checkpoint", "{\"step\":9}"),
        "an event is refused although there is room");
    job_claim_succeed(claim, strdup("{\"adapter\":\"a\"}"));
    pause_ms(20);
    struct job job = get(&b, id);
    CHECK(job.state == JOB_RUNNING && job.step == 0,
        "the job's state changed although nothing could be written");
    job_finish(&job);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0, "setrlimit");
    await_state(&b, id, JOB_SUCCEEDED);
    job = get(&b, id);
    CHECK(job.step == 9 && job.result,
        "the end written later lacks the step or the result: step %d", (int)job.step);
    job_finish(&job);
    end(&b);
    folder_remove(folder);
}

/* A job is enqueued just while the dispatcher searches the queue without success. It must still be
 * started. */
static void a_job_that_comes_in_the_middle_is_begun(void) {
    struct bench b;
    char folder[FOLDER_BYTES], id[JOB_ID_BYTES];
    folder_make(folder);
    begin(&b, folder);
    for (int i = 0; i < 1000 && checks_failed == 0; i++) {
        const double until = monotonic_seconds() + i % 100 * 2e-6;
        while (monotonic_seconds() < until) {
        }
        enqueue(&b, id);
        struct job_claim *claim = await_start(&b.runner, i + 1);
        if (claim)
            job_claim_succeed(claim, strdup("{}"));
    }
    end(&b);
    folder_remove(folder);
}

int main(void) {
    jobs_are_done_one_after_the_other();
    the_last_report_does_not_wait();
    a_job_that_comes_in_the_middle_is_begun();
    wishes_reach_the_runner();
    a_cancel_at_the_moment_of_the_claim_is_heard();
    wishes_at_the_moment_of_the_claim_keep_their_order();
    a_result_is_kept_where_memory_is_short();
    a_stop_gives_everything_back();
    who_waits_for_long_has_no_strike();
    what_is_abandoned_begins_again();
    an_end_is_written_once_there_is_room();
    too_many_events_are_refused();
    return check_done();
}
