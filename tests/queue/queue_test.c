/* The same tests for every kind of store: the states of a job, the order in which jobs are claimed,
 * who may change them, and what listeners are told. A queue in a file is closed and opened again
 * between steps where that must make no difference. */
#include "queue/queue.h"
#include "tests/check.h"
#include "tests/queue/folder.h"

#include <jansson.h>
#include <time.h>

/* CHECK_STRING for character arrays. */
static void check_same(const char *a, const char *b) {
    CHECK_STRING(a, b);
}

/* How far the clocks have been moved forward. */
static struct { int64_t system_s, monotonic_s; } put_forward;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    const int result = __real_clock_gettime(clock, out);
    out->tv_sec += clock == CLOCK_REALTIME ? put_forward.system_s : put_forward.monotonic_s;
    return result;
}

struct kind {
    const char *name;
    char folder[FOLDER_BYTES]; /* "": in memory */
};

static struct queue *make(const struct kind *kind) {
    struct error err = { 0 };
    struct queue *queue = NULL;
    const bool ok = queue_open(kind->folder[0] ? kind->folder : NULL, &queue, &err);
    CHECK(ok, "%s: %s", kind->name, err.message);
    return queue;
}

/* Reopens the queue, as after a regular end of the process. A queue in memory is returned as it
 * is. */
static struct queue *again(const struct kind *kind, struct queue *queue) {
    if (!kind->folder[0])
        return queue;
    queue_destroy(queue);
    return make(kind);
}

static void begin(struct kind *kind) {
    if (strcmp(kind->name, "sqlite in a file") == 0)
        folder_make(kind->folder);
    printf("%s:", kind->name);
}

static void end(struct kind *kind, struct queue *queue, const char *what) {
    queue_destroy(queue);
    if (kind->folder[0])
        folder_remove(kind->folder);
    printf(" %s\n", what);
}

static struct job enqueue(struct queue *queue, const char *type, int priority) {
    struct error err = { 0 };
    struct job job = { 0 };
    bool known = true;
    const struct job_order order = { .type = type, .request = "{\"a\":1}", .priority = priority };
    CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%s", err.message);
    CHECK(!known && job.state == JOB_QUEUED && strlen(job.id) == 16, "id \"%s\"", job.id);
    return job;
}

static struct job get(struct queue *queue, const char *id) {
    struct error err = { 0 };
    struct job job = { 0 };
    CHECK(queue_get(queue, id, &job, &err), "%s", err.message);
    return job;
}

static void check_state(struct queue *queue, const char *id, enum job_state expected) {
    struct job job = get(queue, id);
    CHECK(job.state == expected, "job is %s, not %s", job_state_name(job.state),
        job_state_name(expected));
    job_finish(&job);
}

/* Claims a job. Its id is "" if there was none. */
static struct job claim(struct queue *queue, const char *type) {
    struct error err = { 0 };
    struct job job = { 0 };
    bool found;
    CHECK(queue_claim(queue, type, &job, &found, &err), "%s", err.message);
    if (!found)
        memset(&job, 0, sizeof(job));
    return job;
}

static void check_claims(struct queue *queue, const char *type, const char *id) {
    struct job job = claim(queue, type);
    check_same(job.id, id);
    job_finish(&job);
}

static void refuses(bool ok, const struct error *err, enum error_code code, const char *words) {
    CHECK(!ok, "the job was accepted instead of refused with: %s", words);
    CHECK(err->code == code, "%s: %s", error_code_name(err->code), err->message);
    CHECK_CONTAINS(err->message, words);
}

#define ON_JOB(call, queue, id)                                                                    \
    do {                                                                                           \
        struct error err_ = { 0 };                                                                 \
        struct job job_;                                                                           \
        const bool ok_ = call(queue, id, &job_, &err_);                                            \
        CHECK(ok_, "%s", err_.message);                                                            \
        if (ok_)                                                                                   \
            job_finish(&job_);                                                                     \
    } while (0)

#define REFUSES_JOB(call, queue, id, code, words)                                                  \
    do {                                                                                           \
        struct error err_ = { 0 };                                                                 \
        struct job job_ = { 0 };                                                                   \
        refuses(call(queue, id, &job_, &err_), &err_, code, words);                                \
        job_finish(&job_);                                                                         \
    } while (0)

/* --- What a queue guarantees --- */

static void check_counts(
    struct queue *queue, const char *type, int queued, int running, int succeeded) {
    int counts[JOB_STATE_COUNT];
    struct error err = { 0 };
    CHECK(queue_count(queue, type, counts, &err) && counts[JOB_QUEUED] == queued &&
              counts[JOB_RUNNING] == running && counts[JOB_SUCCEEDED] == succeeded,
        "%s: %d queued, %d running, %d done", type, counts[JOB_QUEUED], counts[JOB_RUNNING],
        counts[JOB_SUCCEEDED]);
}

static void jobs_are_claimed_by_priority_then_age(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct job a = enqueue(queue, "train", 0), b = enqueue(queue, "train", 2),
               c = enqueue(queue, "train", 2), other = enqueue(queue, "draw", 3);
    const struct job *order[] = { &b, &c, &a };
    struct error err = { 0 };
    queue = again(kind, queue);
    for (int i = 0; i < 3; i++) {
        int position = -1;
        struct job now = get(queue, order[i]->id);
        CHECK(queue_position(queue, &now, &position, &err) && position == i + 1,
            "position %d, not %d", position, i + 1);
        job_finish(&now);
    }
    for (int i = 0; i < 3; i++) {
        queue = again(kind, queue);
        struct job job = claim(queue, "train");
        check_counts(queue, "train", 2 - i, 1, i);
        check_counts(queue, "draw", 1, 0, 0);
        check_same(job.id, order[i]->id);
        CHECK(job.state == JOB_RUNNING && job.attempts == 1 && job.started_ms >= job.created_ms,
            "attempt %d", job.attempts);
        check_same(job.request, "{\"a\":1}");
        CHECK(queue_succeed(queue, job.id, 1, "{\"n\": 1}", &err), "%s", err.message);
        check_counts(queue, "train", 2 - i, 0, i + 1);
        job_finish(&job);
    }
    check_claims(queue, "train", "");
    check_claims(queue, "draw", other.id);
    check_counts(queue, "draw", 0, 1, 0);
    CHECK(queue_delete(queue, a.id, &err), "%s", err.message);
    check_counts(queue, "train", 0, 0, 2);
    job_finish(&a), job_finish(&b), job_finish(&c), job_finish(&other);
    end(kind, queue, "three priorities, two types");
}

static struct job enqueue_for(struct queue *queue, const char *caller, int priority) {
    struct error err = { 0 };
    struct job job = { 0 };
    bool known;
    const struct job_order order = {
        .type = "draw", .request = "{}", .priority = priority, .caller = caller
    };
    CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%s", err.message);
    return job;
}

#define TURNS 8

/* Asks the queue for the position of each job after `claimed` claims, and stores the positions in
 * said[claimed]. */
static void look_at_positions(
    struct queue *queue, const struct job jobs[TURNS], int claimed, int said[TURNS][TURNS]) {
    struct error err = { 0 };
    for (int i = 0; i < TURNS; i++) {
        struct job now = get(queue, jobs[i].id);
        CHECK(queue_position(queue, &now, &said[claimed][i], &err), "%s", err.message);
        job_finish(&now);
    }
}

/* Claims all jobs. Checks that the last letters of their callers, in the order of the claims, are
 * `expected`, and that the positions reported before the claims were right. `ends`: each job ends
 * before the next one is claimed. */
static void expect_turns(struct kind *kind, struct queue **queue, const struct job jobs[TURNS],
    bool ends, const char *expected) {
    char seen[TURNS + 1] = "";
    int said[TURNS][TURNS];
    struct error err = { 0 };
    for (int turn = 0; turn < TURNS; turn++) {
        *queue = ends ? again(kind, *queue) : *queue;
        look_at_positions(*queue, jobs, turn, said);
        struct job job = claim(*queue, "draw");
        seen[turn] = job.caller[strlen(job.caller) - 1];
        for (int i = 0; i < TURNS; i++)
            for (int at = 0; at <= turn && strcmp(job.id, jobs[i].id) == 0; at++)
                CHECK(said[at][i] == turn - at + 1,
                    "turn %d: after %d claims the queue said that the job of %s is number %d, not "
                    "%d",
                    turn, at, job.caller, said[at][i], turn - at + 1);
        usleep(2000); /* so that start times, stored in ms, differ */
        CHECK(!ends || queue_succeed(*queue, job.id, 1, NULL, &err), "%s", err.message);
        job_finish(&job);
    }
    CHECK(strcmp(seen, expected) == 0, "turns %s, not %s", seen, expected);
}

static void callers_take_turns(struct kind *kind) {
    static const char *const callers[TURNS] = { "key a", "key a", "key a", "key a", "key b", "ip 1",
        "key b", "key a" };
    struct job jobs[TURNS];
    for (int ends = 0; ends < 2; ends++) {
        begin(kind);
        struct queue *queue = make(kind);
        for (int i = 0; i < TURNS; i++)
            jobs[i] = enqueue_for(queue, callers[i], i == 7);
        /* The job with the higher priority is first. Then the caller with the fewest claimed jobs
         * is next, with its oldest job. */
        expect_turns(kind, &queue, jobs, ends, "ab1abaaa");
        for (int i = 0; i < TURNS; i++)
            job_finish(&jobs[i]);
        end(kind, queue, ends ? "three callers, one job at a time" : "three callers, all at once");
    }
}

static void a_key_stands_for_one_request(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job first, second, third = { 0 };
    bool known;
    struct job_order order = { .type = "train", .request = "{}", .key = "k", .body = "{\"a\":1}" };
    CHECK(queue_enqueue(queue, &order, &first, &known, &err) && !known, "%s", err.message);
    queue = again(kind, queue);
    CHECK(queue_enqueue(queue, &order, &second, &known, &err) && known, "%s", err.message);
    check_same(second.id, first.id);
    order.body = "{\"a\":2}";
    refuses(queue_enqueue(queue, &order, &third, &known, &err), &err, ERROR_CONFLICT,
        "another request");
    order.key = "l";
    CHECK(queue_enqueue(queue, &order, &third, &known, &err) && !known, "%s", err.message);
    CHECK(strcmp(third.id, first.id) != 0, "two jobs have the same id");
    CHECK(queue_delete(queue, first.id, &err), "%s", err.message);
    job_finish(&first);
    order.key = "k";
    CHECK(queue_enqueue(queue, &order, &first, &known, &err) && !known,
        "the key of a deleted job cannot be used again");
    job_finish(&first), job_finish(&second), job_finish(&third);
    end(kind, queue, "two keys, two bodies");
}

/* The key "k" is used by two owners and by orders without an owner, for each of two types. These
 * are six different jobs. */
static void a_key_belongs_to_its_owner_and_type(struct kind *kind) {
    static const char *const owners[] = { "alice", "bob", NULL }, *const types[] = { "train",
        "draw" };
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job jobs[6];
    bool known;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 6; i++) {
            const char *owner = owners[i % 3];
            struct job job = { 0 };
            const struct job_order order = { .type = types[i / 3],
                .request = "{}",
                .owner = owner,
                .key = "k",
                .body = owner ? owner : "nobody" };
            CHECK(queue_enqueue(queue, &order, &job, &known, &err) && known == (round == 1),
                "%s's %s: %s", order.body, order.type, known ? "it is known" : err.message);
            check_same(job.owner, owner ? owner : "");
            if (round == 1) {
                check_same(job.id, jobs[i].id);
                job_finish(&jobs[i]);
            }
            jobs[i] = job;
        }
        queue = again(kind, queue);
    }
    for (int i = 0; i < 6; i++) {
        struct job job = get(queue, jobs[i].id);
        check_same(job.owner, owners[i % 3] ? owners[i % 3] : "");
        job_finish(&job), job_finish(&jobs[i]);
    }
    end(kind, queue, "one key, three owners, two types: six jobs");
}

static void what_is_reported_stays(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    const struct job_report report = { 7, 100, 12.5, "{\"loss\": 0.25}" };
    CHECK(queue_report(queue, job.id, 1, &report, &err), "%s", err.message);
    struct job now = get(queue, job.id);
    CHECK(now.step == 7 && now.steps == 100 && now.eta_s == 12.5, "step %d", (int)now.step);
    check_same(now.metrics, "{\"loss\":0.25}");
    job_finish(&now);
    const struct error why = {
        .code = ERROR_NO_MEMORY, .message = "9 GB are missing", .param = "batch_size", .value = "64"
    };
    CHECK(queue_fail(queue, job.id, 1, &why, &err), "%s", err.message);
    queue = again(kind, queue);
    now = get(queue, job.id);
    CHECK(now.state == JOB_FAILED && now.finished_ms >= now.started_ms && now.started_ms > 0,
        "the failed job has not its state and times");
    check_same(now.error, "{\"code\":\"out_of_memory\",\"message\":\"9 GB are missing\","
                          "\"param\":\"batch_size\",\"value\":\"64\"}");
    CHECK(now.step == 7, "step %d", (int)now.step);
    job_finish(&now);
    job_finish(&job), job_finish(&queued);
    end(kind, queue, "a report and a failure");
}

static void who_lost_a_job_cannot_write_to_it(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    const struct job_report report = { 1, 2, -1, NULL };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    CHECK(queue_stopped(queue, job.id, 1, &err), "%s", err.message);
    refuses(queue_report(queue, job.id, 1, &report, &err), &err, ERROR_CONFLICT, "is over");
    job_finish(&job);
    job = claim(queue, "train");
    CHECK(job.attempts == 2, "attempt %d", job.attempts);
    refuses(queue_report(queue, job.id, 1, &report, &err), &err, ERROR_CONFLICT, "attempt 1");
    refuses(queue_add_event(queue, job.id, 1, "a", "{}", &err), &err, ERROR_CONFLICT, "attempt 1");
    refuses(queue_succeed(queue, job.id, 1, NULL, &err), &err, ERROR_CONFLICT, "attempt 1");
    refuses(queue_fail(queue, job.id, 1, &err, &err), &err, ERROR_CONFLICT, "attempt 1");
    refuses(queue_stopped(queue, job.id, 1, &err), &err, ERROR_CONFLICT, "attempt 1");
    check_state(queue, job.id, JOB_RUNNING);
    CHECK(queue_succeed(queue, job.id, 2, NULL, &err), "%s", err.message);
    refuses(queue_succeed(queue, job.id, 2, NULL, &err), &err, ERROR_CONFLICT, "is over");
    job_finish(&job), job_finish(&queued);
    end(kind, queue, "five writes after the end of an attempt");
}

static int64_t get_events(struct queue *queue, const char *id) {
    struct job job = get(queue, id);
    const int64_t events = job.events;
    job_finish(&job);
    return events;
}

static void check_strikes(struct queue *queue, const char *id, int expected) {
    struct job job = get(queue, id);
    CHECK(job.strikes == expected, "%d strikes, not %d", job.strikes, expected);
    job_finish(&job);
}

static void who_only_waits_has_no_strike(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    const int64_t events = get_events(queue, job.id);
    check_strikes(queue, job.id, 1);
    CHECK(queue_add_strikes(queue, job.id, 1, -1, &err), "%s", err.message);
    check_strikes(queue, job.id, 0);
    CHECK(queue_add_strikes(queue, job.id, 1, 1, &err), "%s", err.message);
    check_strikes(queue, job.id, 1);
    CHECK(queue_add_strikes(queue, job.id, 1, -2, &err), "%s", err.message);
    check_strikes(queue, job.id, 0);
    CHECK(get_events(queue, job.id) == events, "a change of strikes made an event");
    CHECK(queue_stopped(queue, job.id, 1, &err), "%s", err.message);
    refuses(queue_add_strikes(queue, job.id, 1, 1, &err), &err, ERROR_CONFLICT, "attempt 1");
    job_finish(&job), job_finish(&queued);
    end(kind, queue, "strikes");
}

/* If a job that has ended the daemon five times is resumed, it gets five more attempts. */
static void what_is_tried_again_has_no_strikes(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    const struct error why = { .code = ERROR_INTERNAL, .message = "the daemon ended" };
    struct error err = { 0 };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train"), again = { 0 };
    CHECK(queue_add_strikes(queue, job.id, 1, JOB_STRIKES_MAX - 1, &err), "%s", err.message);
    CHECK(queue_fail(queue, job.id, 1, &why, &err), "%s", err.message);
    check_strikes(queue, job.id, JOB_STRIKES_MAX);
    CHECK(queue_resume(queue, job.id, &again, &err), "%s", err.message);
    check_strikes(queue, job.id, 0);
    job_finish(&again), job_finish(&job), job_finish(&queued);
    end(kind, queue, "no strikes after a failure that is tried again");
}

static void a_job_moves_as_it_is_asked_to(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job job = enqueue(queue, "train", 0), claimed;
    ON_JOB(queue_resume, queue, job.id); /* no effect: it is queued */
    ON_JOB(queue_pause, queue, job.id);
    ON_JOB(queue_pause, queue, job.id);
    check_state(queue, job.id, JOB_PAUSED);
    check_claims(queue, "train", "");
    ON_JOB(queue_resume, queue, job.id);
    claimed = claim(queue, "train");
    check_same(claimed.id, job.id);
    ON_JOB(queue_pause, queue, job.id);
    struct job now = get(queue, job.id);
    CHECK(
        now.state == JOB_RUNNING && now.wish == JOB_PAUSE, "the running job is not asked to pause");
    job_finish(&now);
    ON_JOB(queue_resume, queue, job.id);
    now = get(queue, job.id);
    CHECK(now.wish == JOB_GO_ON, "the wish to pause is not taken back");
    job_finish(&now);
    refuses(queue_delete(queue, job.id, &err), &err, ERROR_CONFLICT, "cancel it first");
    ON_JOB(queue_pause, queue, job.id);
    CHECK(queue_stopped(queue, job.id, 1, &err), "%s", err.message);
    check_state(queue, job.id, JOB_PAUSED);
    ON_JOB(queue_resume, queue, job.id);
    job_finish(&claimed);
    claimed = claim(queue, "train");
    ON_JOB(queue_cancel, queue, job.id);
    ON_JOB(queue_pause, queue, job.id); /* no effect: a cancel cannot be revoked */
    REFUSES_JOB(queue_resume, queue, job.id, ERROR_CONFLICT, "is being cancelled");
    CHECK(queue_stopped(queue, job.id, claimed.attempts, &err), "%s", err.message);
    check_state(queue, job.id, JOB_CANCELLED);
    ON_JOB(queue_cancel, queue, job.id);
    REFUSES_JOB(
        queue_resume, queue, job.id, ERROR_CONFLICT, "cannot be resumed: its state is cancelled");
    REFUSES_JOB(
        queue_pause, queue, job.id, ERROR_CONFLICT, "cannot be paused: its state is cancelled");
    CHECK(queue_delete(queue, job.id, &err), "%s", err.message);
    REFUSES_JOB(queue_get, queue, job.id, ERROR_NOT_FOUND, "there is no job");
    REFUSES_JOB(queue_cancel, queue, "nope", ERROR_NOT_FOUND, "there is no job nope");
    job_finish(&claimed), job_finish(&job);
    end(kind, queue, "pause, resume, cancel, delete");
}

/* A job that succeeds counts as having taken all its steps, even if it did not report the last
 * ones. This happens if the daemon is killed between a job's last checkpoint and its end: the
 * resumed job has no steps left to report. */
static void what_succeeded_has_taken_all_its_steps(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    const struct job_report report = { 395, 400, 0.5, NULL };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    CHECK(queue_report(queue, job.id, 1, &report, &err), "%s", err.message);
    CHECK(queue_succeed(queue, job.id, 1, NULL, &err), "%s", err.message);
    struct job now = get(queue, job.id);
    CHECK(now.step == 400 && now.steps == 400, "%lld of %lld", (long long)now.step,
        (long long)now.steps);
    job_finish(&now), job_finish(&job), job_finish(&queued);
    end(kind, queue, "the steps of a success");
}

static void a_failed_job_can_be_resumed(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 }, why = { .code = ERROR_IO, .message = "the disk is full" };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    CHECK(queue_fail(queue, job.id, 1, &why, &err), "%s", err.message);
    REFUSES_JOB(
        queue_cancel, queue, job.id, ERROR_CONFLICT, "cannot be cancelled: its state is failed");
    ON_JOB(queue_resume, queue, job.id);
    job_finish(&job);
    job = claim(queue, "train");
    CHECK(job.attempts == 2 && !job.error && !job.finished_ms,
        "the resumed job has an error, an end or a wrong number of attempts");
    CHECK(queue_succeed(queue, job.id, 2, "{\"adapter\":\"x\"}", &err), "%s", err.message);
    queue = again(kind, queue);
    struct job now = get(queue, job.id);
    check_same(now.result, "{\"adapter\":\"x\"}");
    REFUSES_JOB(queue_resume, queue, job.id, ERROR_CONFLICT, "its state is succeeded");
    job_finish(&now), job_finish(&job), job_finish(&queued);
    end(kind, queue, "a second attempt");
}

#define YEAR_S (365LL * 86400)

static void check_seconds(const struct job *job, int64_t expected, const char *when) {
    const double seconds = (double)job->running_ms * 1e-3;
    CHECK(seconds >= (double)expected && seconds < (double)expected + 100,
        "%s: %.3f s at work, not %d", when, seconds, (int)expected);
    printf(" %.3f s", seconds);
}

/* A job's running time is measured with the monotonic clock, so changes of the system's clock do
 * not count. check_seconds accepts up to 100 s more than expected, because the test itself takes
 * some time. */
static void time_at_work_is_what_has_passed(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    put_forward.monotonic_s += 5000;
    put_forward.system_s += 40 * YEAR_S;
    CHECK(queue_report(queue, job.id, 1, &(struct job_report){ 1, 9, -1, NULL }, &err), "%s",
        err.message);
    struct job now = get(queue, job.id);
    check_seconds(&now, 5000, "40 years ahead");
    job_finish(&now);
    put_forward.monotonic_s += 2000; /* not reported: lost if the daemon ends now */
    put_forward.system_s -= 60 * YEAR_S;
    queue = again(kind, queue);
    int attempt = 1;
    if (kind->folder[0]) {
        now = get(queue, job.id);
        CHECK(now.state == JOB_QUEUED, "the job is %s, not queued", job_state_name(now.state));
        check_seconds(&now, 5000, "the daemon ended");
        job_finish(&now), job_finish(&job);
        job = claim(queue, "train");
        attempt = 2;
        put_forward.monotonic_s += 2000;
    }
    CHECK(queue_succeed(queue, job.id, attempt, NULL, &err), "%s", err.message);
    now = get(queue, job.id);
    check_seconds(&now, 7000, "20 years behind");
    job_finish(&now), job_finish(&job), job_finish(&queued);
    put_forward.system_s = put_forward.monotonic_s = 0;
    end(kind, queue, "at work");
}

static void check_age(
    struct queue *queue, const struct job *job, int64_t expected_s, const char *when) {
    const double seconds = 1e-3 * (double)queue_age_ms(queue, job);
    CHECK(seconds >= (double)expected_s && seconds < (double)expected_s + 100,
        "%s: %.3f s old, not %d", when, seconds, (int)expected_s);
    printf(" %.3f s", seconds);
}

/* The age of a job does not change with the system's clock. For the time before the queue was
 * opened again, nothing else is known. */
static void a_job_ages_by_the_time_that_has_passed(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job gone = enqueue(queue, "draw", 0), first = enqueue(queue, "draw", 0);
    put_forward.monotonic_s += 100;
    put_forward.system_s += 40 * YEAR_S;
    struct job second = enqueue(queue, "draw", 0);
    CHECK(queue_delete(queue, gone.id, &err), "%s", err.message);
    put_forward.monotonic_s += 1000;
    put_forward.system_s -= 60 * YEAR_S;
    check_age(queue, &first, 1100, "the first");
    check_age(queue, &second, 1000, "the second");
    put_forward.system_s = 2000;
    if (kind->folder[0]) {
        queue = again(kind, queue);
        check_age(queue, &first, 2000, "2000 s by the system's clock");
        check_age(queue, &second, 0, "from 40 years ahead");
        put_forward.monotonic_s += 500;
        put_forward.system_s += YEAR_S;
        check_age(queue, &first, 2500, "500 s more");
    }
    put_forward.system_s = put_forward.monotonic_s = 0;
    job_finish(&gone), job_finish(&first), job_finish(&second);
    end(kind, queue, "old");
}

/* Inserting a second job with the same id fails, because ids are unique. Nothing of the second job
 * may remain. */
static void a_refused_change_leaves_nothing_behind(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct job first = enqueue(queue, "train", 0), second = { 0 };
    const struct job_order same = { .type = "train", .request = "{}", .id = first.id };
    bool known;
    CHECK(!queue_enqueue(queue, &same, &second, &known, &err), "two jobs with one id are accepted");
    second = enqueue(queue, "train", 0);
    CHECK(queue_delete(queue, first.id, &err), "%s", err.message);
    queue = again(kind, queue);
    struct job_list list = { 0 };
    CHECK(queue_list(queue, &(struct job_filter){ 0 }, &list, &err) && list.count == 1,
        "%d jobs, not the second alone", list.count);
    CHECK(list.count != 1 || strcmp(list.jobs[0].id, second.id) == 0,
        "the list has another job than the second");
    job_list_finish(&list);
    job_finish(&first), job_finish(&second);
    end(kind, queue, "one refusal, one more job");
}

struct log {
    char text[2048];
    int64_t last;
};

static bool note_event(void *user, const struct job_event *event, struct error *err) {
    struct log *log = user;
    const size_t used = strlen(log->text);
    (void)err;
    CHECK(event->number > log->last && event->at_ms > 0, "number %d", (int)event->number);
    log->last = event->number;
    snprintf(log->text + used, sizeof(log->text) - used, "%d %s %s\n", (int)event->number,
        event->type, event->data);
    return true;
}

static void events_are_numbered_and_kept(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct log log = { 0 };
    struct job queued = enqueue(queue, "train", 0), job = claim(queue, "train");
    struct job_report report = { 1, 4, 3.5, "{\"loss\": 0.5}" };
    CHECK(queue_report(queue, job.id, 1, &report, &err), "%s", err.message);
    CHECK(queue_add_event(queue, job.id, 1, "checkpoint", "{\n\"step\": 1}", &err), "%s",
        err.message);
    refuses(queue_add_event(queue, job.id, 1, "a", "[1]", &err), &err, ERROR_INVALID, "object");
    refuses(queue_add_event(queue, job.id, 1, "a", "{", &err), &err, ERROR_INVALID, "JSON");
    ON_JOB(queue_pause, queue, job.id);
    CHECK(queue_stopped(queue, job.id, 1, &err), "%s", err.message);
    queue = again(kind, queue);
    CHECK(queue_events(queue, &job, 0, 100, note_event, &log, &err), "%s", err.message);
    check_same(log.text,
        "1 state {\"state\":\"queued\"}\n"
        "2 state {\"state\":\"running\",\"attempt\":1}\n"
        "3 progress {\"step\":1,\"steps\":4,\"eta_s\":3.5,\"metrics\":{\"loss\":0.5}}\n"
        "4 checkpoint {\"step\":1}\n"
        "5 state {\"state\":\"running\",\"attempt\":1,\"asked_to\":\"pause\"}\n"
        "6 state {\"state\":\"paused\"}\n");
    log = (struct log){ 0 };
    CHECK(queue_events(queue, &job, 3, 2, note_event, &log, &err), "%s", err.message);
    CHECK(log.last == 5 && strncmp(log.text, "4 checkpoint", 12) == 0, "%s", log.text);
    ON_JOB(queue_resume, queue, job.id);
    job_finish(&job);
    job = claim(queue, "train"); /* 7 queued, 8 running */
    for (int i = 0; i < JOB_EVENTS_KEPT; i++)
        CHECK(queue_add_event(queue, job.id, 2, "tick", "{}", &err), "%s", err.message);
    log = (struct log){ 0 };
    CHECK(queue_events(queue, &job, 0, 1, note_event, &log, &err), "%s", err.message);
    check_same(log.text, "9 tick {}\n"); /* the oldest event that is kept */
    struct job now = get(queue, job.id);
    CHECK(now.events == JOB_EVENTS_KEPT + 8, "%d events", (int)now.events);
    job_finish(&now), job_finish(&job), job_finish(&queued);
    end(kind, queue, "six events, and more than are kept");
}

static void check_list(
    struct queue *queue, const struct job_filter *filter, const char *expected, bool has_more) {
    struct error err = { 0 };
    struct job_list list;
    char text[256] = "";
    CHECK(queue_list(queue, filter, &list, &err), "%s", err.message);
    for (int i = 0; i < list.count; i++) {
        const size_t used = strlen(text);
        snprintf(text + used, sizeof(text) - used, "%d ", (int)list.jobs[i].number);
    }
    check_same(text, expected);
    CHECK(list.has_more == has_more, "%s: more: %d", expected, list.has_more);
    job_list_finish(&list);
}

static void lists_have_pages(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    for (int i = 0; i < 7; i++) {
        struct job job = enqueue(queue, i % 2 ? "draw" : "train", 0);
        CHECK(job.number == i + 1, "number %d", (int)job.number);
        if (i == 3 || i == 4)
            ON_JOB(queue_cancel, queue, job.id);
        if (i == 5)
            ON_JOB(queue_pause, queue, job.id);
        job_finish(&job);
    }
    queue = again(kind, queue);
    const unsigned cancelled = 1u << JOB_CANCELLED, paused = 1u << JOB_PAUSED;
    check_list(queue, &(struct job_filter){ 0 }, "1 2 3 4 5 6 7 ", false);
    check_list(queue, &(struct job_filter){ .newest_first = true, .limit = 3 }, "7 6 5 ", true);
    check_list(queue, &(struct job_filter){ .newest_first = true, .limit = 3, .after = 5 },
        "4 3 2 ", true);
    check_list(
        queue, &(struct job_filter){ .newest_first = true, .limit = 3, .after = 2 }, "1 ", false);
    check_list(queue, &(struct job_filter){ .limit = 7 }, "1 2 3 4 5 6 7 ", false);
    check_list(queue, &(struct job_filter){ .states = cancelled }, "4 5 ", false);
    check_list(queue, &(struct job_filter){ .states = cancelled | paused, .newest_first = true },
        "6 5 4 ", false);
    check_list(queue, &(struct job_filter){ .type = "draw", .after = 2 }, "4 6 ", false);
    check_list(queue, &(struct job_filter){ .states = 1u << JOB_FAILED }, "", false);
    end(kind, queue, "nine lists");
}

static void lists_are_of_one_owner_or_of_all(struct kind *kind) {
    static const char *const owners[] = { "alice", "bob", "", "alice", NULL, "bob", "Alice" };
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    for (int i = 0; i < 7; i++) {
        struct job job;
        bool known;
        const struct job_order order = {
            .type = i < 4 ? "train" : "draw", .request = "{}", .owner = owners[i]
        };
        CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%s", err.message);
        job_finish(&job);
    }
    queue = again(kind, queue);
    check_list(queue, &(struct job_filter){ 0 }, "1 2 3 4 5 6 7 ", false);
    check_list(queue, &(struct job_filter){ .owner = "alice" }, "1 4 ", false);
    check_list(queue, &(struct job_filter){ .owner = "Alice" }, "7 ", false);
    check_list(queue, &(struct job_filter){ .owner = "" }, "3 5 ", false);
    check_list(queue, &(struct job_filter){ .owner = "bob", .type = "draw" }, "6 ", false);
    check_list(queue, &(struct job_filter){ .owner = "bob", .newest_first = true, .limit = 1 },
        "6 ", true);
    check_list(queue, &(struct job_filter){ .owner = "carol" }, "", false);
    end(kind, queue, "seven lists of four owners");
}

/* Lists by an object of texts in the bodies, whatever else is in them. */
static void lists_are_of_bodies_that_have_texts(struct kind *kind) {
    static const char *const bodies[] = {
        "{\"metadata\": {\"a\": \"1\"}}",                                                    /* 1 */
        "{\"metadata\": {\"a\": \"1\", \"b\": \"2\"}, \"a\": \"9\"}",                        /* 2 */
        "{\"metadata\": {}}",                                                                /* 3 */
        "{\"metadata\": null}",                                                              /* 4 */
        "{\"metadata\": \"a\"}",                                                             /* 5 */
        "no JSON",                                                                           /* 6 */
        "{\"metadata\": {\"a\": 1}}",                                                        /* 7 */
        "{\"metadata\": {\"q\\\"u.o[t\\\\e\": \"\\u00fc\\n'\", \"\": \"\", \"a\": \"01\"}}", /* 8 */
        NULL,                                                                                /* 9 */
    };
    static const struct {
        const char *has, *expected;
    } rows[] = {
        { "{}", "1 2 3 4 5 6 7 8 9 " },
        { "{\"a\": \"1\"}", "1 2 " },
        { "{\"a\": \"1\", \"b\": \"2\"}", "2 " },
        { "{\"a\": \"1\", \"b\": \"\"}", "" },
        { "{\"a\": \"\"}", "" },
        { "{\"A\": \"1\"}", "" },
        { "{\"q\\\"u.o[t\\\\e\": \"\xc3\xbc\\n'\"}", "8 " },
        { "{\"\": \"\"}", "8 " },
        { "{\"a\": \"01\"}", "8 " },
        { "{\"a\": \"2\", \"b\": \"1\"}", "" },
        { "{\"a\": \"1\", \"\": \"\"}", "" },
    };
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct job job;
        bool known;
        char key[16];
        snprintf(key, sizeof(key), "key %zu", i);
        const struct job_order order = {
            .type = "train", .request = "{}", .key = bodies[i] ? key : NULL, .body = bodies[i]
        };
        CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%s", err.message);
        job_finish(&job);
    }
    queue = again(kind, queue);
    struct job_filter filter = { .body = { .at = "$.metadata" } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        filter.body.has = rows[i].has;
        check_list(queue, &filter, rows[i].expected, false);
    }
    filter.body = (struct job_body_filter){ .at = "$.metadata", .is_empty = true };
    check_list(queue, &filter, "3 4 5 6 9 ", false);
    filter.newest_first = true;
    filter.body = (struct job_body_filter){ .at = "$.metadata", .has = "{\"a\": \"1\"}" };
    filter.limit = 1;
    check_list(queue, &filter, "2 ", true);
    filter.after = 2;
    check_list(queue, &filter, "1 ", false);
    end(kind, queue, "lists by nine bodies");
}

static void the_queue_is_bounded(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    const struct job_order order = { .type = "train", .request = "{}" };
    struct job job;
    bool known;
    char first[JOB_ID_BYTES] = "";
    for (int i = 0; i < JOBS_WAITING_MAX; i++) {
        CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%d: %s", i, err.message);
        if (i == 0)
            memcpy(first, job.id, sizeof(first));
        job_finish(&job);
    }
    refuses(queue_enqueue(queue, &order, &job, &known, &err), &err, ERROR_BUSY, "1000 jobs wait");
    for (int i = 0; i < JOBS_ENDED_MAX + 1; i++) {
        job = claim(queue, "train");
        CHECK(queue_succeed(queue, job.id, 1, NULL, &err), "%s", err.message);
        job_finish(&job);
        CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%d: %s", i, err.message);
        job_finish(&job);
    }
    check_list(
        queue, &(struct job_filter){ .limit = 2 }, "2 3 ", true); /* the oldest job was dropped */
    REFUSES_JOB(queue_get, queue, first, ERROR_NOT_FOUND, "there is no job");
    end(kind, queue, "as many jobs as there may be");
}

/* --- Listeners --- */

static void note_change(void *user, const struct job *job, bool deleted) {
    struct log *log = user;
    const size_t used = strlen(log->text);
    snprintf(log->text + used, sizeof(log->text) - used, "%d:%s%s ", (int)job->number,
        deleted ? "deleted " : "", job_state_name(job->state));
}

static void listeners_hear_of_every_change(struct kind *kind) {
    begin(kind);
    struct queue *queue = make(kind);
    struct error err = { 0 };
    struct log log = { 0 }, other = { 0 };
    struct queue_listener a = { .changed = note_change, .user = &log },
                          b = { .changed = note_change, .user = &other };
    queue_listen(queue, &a);
    queue_listen(queue, &b);
    struct job job = enqueue(queue, "train", 0);
    queue_unlisten(queue, &b);
    struct job claimed = claim(queue, "train");
    ON_JOB(queue_cancel, queue, job.id);
    CHECK(queue_stopped(queue, job.id, 1, &err), "%s", err.message);
    CHECK(queue_delete(queue, job.id, &err), "%s", err.message);
    queue_unlisten(queue, &a);
    check_same(log.text, "1:queued 1:running 1:running 1:cancelled 1:deleted cancelled ");
    check_same(other.text, "1:queued ");
    job_finish(&claimed), job_finish(&job);
    end(kind, queue, "five changes");
}

int main(void) {
    static void (*const promises[])(struct kind * kind) = {
        jobs_are_claimed_by_priority_then_age,
        callers_take_turns,
        a_key_stands_for_one_request,
        a_key_belongs_to_its_owner_and_type,
        lists_are_of_one_owner_or_of_all,
        lists_are_of_bodies_that_have_texts,
        what_is_reported_stays,
        who_lost_a_job_cannot_write_to_it,
        who_only_waits_has_no_strike,
        what_is_tried_again_has_no_strikes,
        a_job_moves_as_it_is_asked_to,
        what_succeeded_has_taken_all_its_steps,
        a_failed_job_can_be_resumed,
        time_at_work_is_what_has_passed,
        a_job_ages_by_the_time_that_has_passed,
        a_refused_change_leaves_nothing_behind,
        events_are_numbered_and_kept,
        lists_have_pages,
        the_queue_is_bounded,
        listeners_hear_of_every_change,
    };
    struct kind kinds[] = { { "sqlite in memory", "" }, { "sqlite in a file", "" } };
    for (size_t i = 0; i < sizeof(promises) / sizeof(promises[0]); i++)
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
            promises[i](&kinds[k]);
    return check_done();
}
