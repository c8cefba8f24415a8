#include "queue/dispatcher.h"

#include "base/condition.h"
#include "base/log.h"
#include "base/monotonic.h"
#include "base/thread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define REPORT_MS 250 /* least time between two written reports */
#define RETRY_MS 1000 /* pause after a failed write */
#define WAITS_MS 1000 /* shorter waits are not written */

enum claim_end { CLAIM_GOES_ON, CLAIM_SUCCEEDED, CLAIM_FAILED, CLAIM_STOPPED, CLAIM_ABANDONED };

struct pending_event {
    char *type, *data;
    struct pending_event *next;
};

/* `job` never changes and `wish` is atomic; the dispatcher's mutex guards the other members. Only
 * the dispatcher's thread removes events from the list. */
struct job_claim {
    struct dispatcher *dispatcher;
    struct job job;
    atomic_int wish;
    struct pending_event *first, *last;
    int event_count;
    bool has_report;
    struct job_report report; /* its metrics are owned */
    int64_t next_report_ms;
    bool waits;       /* the job waits for other work */
    int64_t waits_ms; /* when to tell the queue that it waits */
    bool is_excused;  /* the queue knows that it waits, and counts no strike for this attempt */
    enum claim_end end;
    char *result;
    struct error why;
    int64_t retry_ms; /* 0: the last write succeeded */
};

/* A runner's place for one job. */
struct slot {
    struct job_runner runner;
    struct job_claim *claim; /* owned; NULL: the slot is free */
    bool may_claim;          /* a job may be waiting for it */
    bool is_claiming;        /* queue_claim is being called for it */
    int64_t retry_ms;
};

/* The last change reported for a running job whose claim has no slot yet. */
struct unclaimed {
    int64_t number; /* 0: nothing */
    int attempts;
    enum job_wish wish;
};

/* Lock order: first the queue's mutex, then `mutex`. Never call the queue with `mutex` held. A
 * slot's runner never changes. */
struct dispatcher {
    struct queue *queue;
    struct queue_listener listener;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct slot slots[DISPATCHER_JOBS_MAX];
    int slot_count;
    struct unclaimed unclaimed; /* of the job being claimed */
    bool stopping;
    unsigned changes; /* count; shows changes made while the lock was released */
};

/* Call with the lock held. Wakes the dispatcher's thread and those in dispatcher_wait. */
static void tell(struct dispatcher *d) {
    d->changes++;
    pthread_cond_broadcast(&d->changed);
}

/* --- Claims --- */

static void free_event(struct pending_event *event) {
    if (!event)
        return;
    free(event->type);
    free(event->data);
    free(event);
}

static void free_claim(struct job_claim *claim) {
    while (claim->first) {
        struct pending_event *event = claim->first;
        claim->first = event->next;
        free_event(event);
    }
    job_finish(&claim->job);
    free((char *)claim->report.metrics);
    free(claim->result);
    free(claim);
}

/* Takes over the contents of `job`. Returns NULL if there is no memory. */
static struct job_claim *new_claim(struct dispatcher *dispatcher, struct job *job) {
    struct job_claim *claim = calloc(1, sizeof(*claim));
    if (!claim) {
        job_finish(job);
        return NULL;
    }
    claim->dispatcher = dispatcher;
    claim->job = *job;
    atomic_init(&claim->wish, JOB_GO_ON);
    return claim;
}

const struct job *job_claim_job(const struct job_claim *claim) {
    return &claim->job;
}

enum job_wish job_claim_wish(const struct job_claim *claim) {
    return (enum job_wish)atomic_load(&claim->wish);
}

void job_claim_waits(struct job_claim *claim) {
    struct dispatcher *d = claim->dispatcher;
    pthread_mutex_lock(&d->mutex);
    claim->waits = true;
    claim->waits_ms = monotonic_ms() + WAITS_MS;
    tell(d);
    pthread_mutex_unlock(&d->mutex);
}

void job_claim_report(struct job_claim *claim, const struct job_report *report) {
    struct dispatcher *d = claim->dispatcher;
    char *metrics = report->metrics ? strdup(report->metrics) : NULL;
    pthread_mutex_lock(&d->mutex);
    free((char *)claim->report.metrics);
    claim->report = *report;
    claim->report.metrics = metrics;
    claim->has_report = true;
    claim->waits = false;
    tell(d);
    pthread_mutex_unlock(&d->mutex);
}

bool job_claim_event(struct job_claim *claim, const char *type, const char *data) {
    struct dispatcher *d = claim->dispatcher;
    struct pending_event *event = NULL;
    if (strlen(data) <= JOB_EVENT_MAX_BYTES)
        event = calloc(1, sizeof(*event));
    if (event) {
        event->type = strdup(type);
        event->data = strdup(data);
    }
    pthread_mutex_lock(&d->mutex);
    const bool taken = event && event->type && event->data &&
                       claim->event_count < JOB_EVENTS_PENDING_MAX;
    if (taken) {
        if (claim->last)
            claim->last->next = event;
        else
            claim->first = event;
        claim->last = event;
        claim->event_count++;
        tell(d);
    }
    pthread_mutex_unlock(&d->mutex);
    if (!taken)
        free_event(event);
    return taken;
}

static void end_claim(
    struct job_claim *claim, enum claim_end end, char *result, const struct error *why) {
    struct dispatcher *d = claim->dispatcher;
    pthread_mutex_lock(&d->mutex);
    claim->end = end;
    claim->result = result;
    if (why)
        claim->why = *why;
    tell(d);
    pthread_mutex_unlock(&d->mutex);
}

void job_claim_succeed(struct job_claim *claim, char *result) {
    end_claim(claim, CLAIM_SUCCEEDED, result, NULL);
}

void job_claim_fail(struct job_claim *claim, const struct error *why) {
    end_claim(claim, CLAIM_FAILED, NULL, why);
}

void job_claim_stopped(struct job_claim *claim) {
    end_claim(claim, CLAIM_STOPPED, NULL, NULL);
}

void job_claim_abandon(struct job_claim *claim) {
    end_claim(claim, CLAIM_ABANDONED, NULL, NULL);
}

/* --- Changes that the queue reports --- */

/* Call with the lock held. Returns true if the wish has changed, so that the runner must be
 * woken. */
static bool set_wish(struct job_claim *claim, enum job_wish wish) {
    if (claim->dispatcher->stopping && wish < JOB_GIVE_BACK)
        wish = JOB_GIVE_BACK;
    return atomic_exchange(&claim->wish, (int)wish) != (int)wish && claim->end == CLAIM_GOES_ON;
}

/* Call with the lock held. Remembers the wish of a running job that has no slot yet. The first
 * report of a claim has no wish. A report with a wish counts only if it is of the same job and
 * attempt as the report remembered last. */
static void note_unclaimed(struct dispatcher *d, const struct job *job) {
    struct unclaimed *heard = &d->unclaimed;
    if (job->wish == JOB_GO_ON ||
        (heard->number == job->number && heard->attempts == job->attempts))
        *heard = (struct unclaimed){ job->number, job->attempts, job->wish };
}

/* Called by the queue for each change, in the order of the changes. Wishes are taken only from
 * these calls: a wish read from the queue may be older than the last one reported here. */
static void on_change(void *user, const struct job *job, bool deleted) {
    struct dispatcher *d = user;
    const struct job_runner *woken = NULL;
    bool is_claimed = false;
    if (deleted)
        return;
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < d->slot_count; i++) {
        struct slot *slot = &d->slots[i];
        struct job_claim *claim = slot->claim;
        if (job->state == JOB_QUEUED && strcmp(slot->runner.type, job->type) == 0) {
            slot->may_claim = true;
            tell(d);
        }
        if (job->state == JOB_RUNNING && claim && claim->job.number == job->number &&
            claim->job.attempts == job->attempts) {
            is_claimed = true;
            if (set_wish(claim, job->wish))
                woken = &slot->runner;
        }
    }
    if (job->state == JOB_RUNNING && !is_claimed)
        note_unclaimed(d, job);
    pthread_mutex_unlock(&d->mutex);
    if (woken)
        woken->wake(woken->user);
}

/* --- The dispatcher's thread --- */

/* Logs a failed write. Returns false if it must be tried again, true if trying again is useless. */
static bool is_settled(struct job_claim *claim, const struct error *err) {
    if (err->code == ERROR_IO || err->code == ERROR_NO_SPACE || err->code == ERROR_NO_MEMORY) {
        if (!claim->retry_ms)
            log_error("job %s: %s; trying again", claim->job.id, err->message);
        return false;
    }
    log_warning("job %s: %s", claim->job.id, err->message);
    return true;
}

/* The write functions release the lock while they write. They return true if the write succeeded or
 * will not be tried again. */
static bool write_event(struct dispatcher *d, struct job_claim *claim) {
    struct error err;
    struct pending_event *event = claim->first;
    pthread_mutex_unlock(&d->mutex);
    const bool ok = queue_add_event(d->queue, claim->job.id, claim->job.attempts, event->type,
                        event->data, &err) ||
                    is_settled(claim, &err);
    pthread_mutex_lock(&d->mutex);
    if (!ok)
        return false;
    claim->first = event->next;
    if (!claim->first)
        claim->last = NULL;
    claim->event_count--;
    free_event(event);
    return true;
}

static bool write_report(struct dispatcher *d, struct job_claim *claim) {
    struct error err;
    struct job_report report = claim->report;
    claim->report.metrics = NULL;
    claim->has_report = false;
    claim->next_report_ms = monotonic_ms() + REPORT_MS;
    pthread_mutex_unlock(&d->mutex);
    const bool ok = queue_report(d->queue, claim->job.id, claim->job.attempts, &report, &err) ||
                    is_settled(claim, &err);
    pthread_mutex_lock(&d->mutex);
    if (!ok && !claim->has_report) { /* unless a newer report has come */
        claim->report = report;
        claim->has_report = true;
    } else {
        free((char *)report.metrics);
    }
    return ok;
}

/* Tells the queue that the job waits, or that it no longer does. */
static bool write_waits(struct dispatcher *d, struct job_claim *claim) {
    struct error err;
    const bool waits = claim->waits;
    pthread_mutex_unlock(&d->mutex);
    const bool ok = queue_add_strikes(
                        d->queue, claim->job.id, claim->job.attempts, waits ? -1 : 1, &err) ||
                    is_settled(claim, &err);
    pthread_mutex_lock(&d->mutex);
    if (ok)
        claim->is_excused = waits;
    return ok;
}

static bool write_end(struct dispatcher *d, struct job_claim *claim) {
    struct error err;
    const char *id = claim->job.id;
    const int attempt = claim->job.attempts;
    bool ok = false;
    pthread_mutex_unlock(&d->mutex);
    switch (claim->end) {
    case CLAIM_SUCCEEDED:
        ok = queue_succeed(d->queue, id, attempt, claim->result, &err);
        break;
    case CLAIM_FAILED:
        ok = queue_fail(d->queue, id, attempt, &claim->why, &err);
        break;
    case CLAIM_ABANDONED:
        ok = true;
        break;
    default:
        ok = queue_stopped(d->queue, id, attempt, &err);
    }
    ok = ok || is_settled(claim, &err);
    pthread_mutex_lock(&d->mutex);
    return ok;
}

/* Whether to tell the queue now that the job waits, or no longer does. If that is due later, lowers
 * *wait_ms to that time. */
static bool is_waits_due(const struct job_claim *claim, int64_t now, int64_t *wait_ms) {
    const bool is_ended = claim->end && claim->end != CLAIM_ABANDONED;
    if (claim->waits == claim->is_excused || is_ended)
        return false;
    if (!claim->waits || claim->end || now >= claim->waits_ms)
        return true;
    if (claim->waits_ms < *wait_ms)
        *wait_ms = claim->waits_ms;
    return false;
}

/* Writes one thing that is due for the claim: its wait, an event, a report or its end. Lowers
 * *wait_ms to the time when the next thing is due. Returns true if something was done. */
static bool write_one(struct dispatcher *d, struct slot *slot, int64_t now, int64_t *wait_ms) {
    struct job_claim *claim = slot->claim;
    const bool waits_due = is_waits_due(claim, now, wait_ms);
    const bool report_due = claim->has_report && (claim->end || now >= claim->next_report_ms);
    if (claim->has_report && !report_due && claim->next_report_ms < *wait_ms)
        *wait_ms = claim->next_report_ms;
    if (!waits_due && !claim->first && !report_due && !claim->end)
        return false;
    if (now < claim->retry_ms && !d->stopping) {
        if (claim->retry_ms < *wait_ms)
            *wait_ms = claim->retry_ms;
        return false;
    }
    const bool ends = !waits_due && !claim->first && !report_due;
    const bool ok = waits_due      ? write_waits(d, claim)
                    : claim->first ? write_event(d, claim)
                    : report_due   ? write_report(d, claim)
                                   : write_end(d, claim);
    claim->retry_ms = ok ? 0 : monotonic_ms() + RETRY_MS;
    if (!ok && !(d->stopping && claim->end))
        return !d->stopping;
    if (!ok)
        log_error("job %s: its end is not written down; it will begin again", claim->job.id);
    if (!ok || ends) {
        slot->claim = NULL;
        slot->may_claim = true;
        free_claim(claim);
        tell(d); /* for dispatcher_wait */
    }
    return true;
}

/* Claims the next job for a free slot and starts it. Releases the lock meanwhile. Returns true if
 * there was a job. */
static bool claim_one(struct dispatcher *d, struct slot *slot, int64_t now) {
    struct error err;
    struct job job;
    bool found = false;
    slot->may_claim = false;
    pthread_mutex_unlock(&d->mutex);
    const bool ok = queue_claim(d->queue, slot->runner.type, &job, &found, &err);
    struct job_claim *claim = ok && found ? new_claim(d, &job) : NULL;
    pthread_mutex_lock(&d->mutex);
    if (!ok || (found && !claim)) {
        if (!slot->retry_ms)
            log_error("no job can be begun: %s", ok ? "no memory for it" : err.message);
        slot->may_claim = true;
        slot->retry_ms = now + RETRY_MS;
        return false;
    }
    slot->retry_ms = 0;
    if (!found)
        return false;
    slot->claim = claim;
    /* Since queue_claim, the job may have been asked to stop, or the daemon may have begun to
     * stop. */
    const struct unclaimed *heard = &d->unclaimed;
    const bool is_it = heard->number == claim->job.number && heard->attempts == claim->job.attempts;
    set_wish(claim, is_it ? heard->wish : JOB_GO_ON);
    pthread_mutex_unlock(&d->mutex);
    slot->runner.start(slot->runner.user, claim);
    pthread_mutex_lock(&d->mutex);
    return true;
}

static bool begin_one(struct dispatcher *d, struct slot *slot, int64_t now) {
    slot->is_claiming = true;
    const bool began = claim_one(d, slot, now);
    slot->is_claiming = false;
    return began;
}

static bool has_claims(const struct dispatcher *d) {
    for (int i = 0; i < d->slot_count; i++)
        if (d->slots[i].claim)
            return true;
    return false;
}

/* Does one thing for each slot. Returns true if there was anything to do. *wait_ms: when the next
 * thing is due. */
static bool work(struct dispatcher *d, int64_t *wait_ms) {
    const int64_t now = monotonic_ms();
    *wait_ms = INT64_MAX;
    bool worked = false;
    for (int i = 0; i < d->slot_count; i++) {
        struct slot *slot = &d->slots[i];
        if (slot->claim)
            worked = write_one(d, slot, now, wait_ms) || worked;
        else if (slot->may_claim && !d->stopping && now >= slot->retry_ms)
            worked = begin_one(d, slot, now) || worked;
        if (!slot->claim && slot->may_claim && slot->retry_ms && slot->retry_ms < *wait_ms)
            *wait_ms = slot->retry_ms;
    }
    return worked;
}

static void *run(void *user) {
    struct dispatcher *d = user;
    pthread_mutex_lock(&d->mutex);
    while (!d->stopping || has_claims(d)) {
        int64_t wait_ms;
        const unsigned changes = d->changes;
        if (work(d, &wait_ms) || d->changes != changes)
            continue;
        (void)condition_wait_until(&d->changed, &d->mutex, wait_ms);
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

/* --- Creating and stopping --- */

bool dispatcher_create(struct queue *queue, struct dispatcher **out, struct error *err) {
    struct dispatcher *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the jobs");
    d->queue = queue;
    d->listener = (struct queue_listener){ .changed = on_change, .user = d };
    pthread_mutex_init(&d->mutex, NULL);
    condition_init(&d->changed);
    queue_listen(queue, &d->listener);
    const int failed = thread_start(&d->thread, "dispatcher", run, d);
    if (!failed) {
        *out = d;
        return true;
    }
    queue_unlisten(queue, &d->listener);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mutex);
    free(d);
    return error_set_thread(err, failed);
}

bool dispatcher_add(struct dispatcher *d, const struct job_runner *runner, struct error *err) {
    const int slots = runner->at_once > 0 ? runner->at_once : 1;
    pthread_mutex_lock(&d->mutex);
    const bool has_room = d->slot_count + slots <= DISPATCHER_JOBS_MAX;
    for (int i = 0; has_room && i < slots; i++)
        d->slots[d->slot_count++] = (struct slot){ .runner = *runner, .may_claim = true };
    tell(d);
    pthread_mutex_unlock(&d->mutex);
    return has_room ||
           error_set(err, ERROR_INTERNAL, "more than %d jobs at once", DISPATCHER_JOBS_MAX);
}

const struct job_runner *dispatcher_find(struct dispatcher *d, const char *type) {
    const struct job_runner *found = NULL;
    pthread_mutex_lock(&d->mutex);
    for (int i = 0; i < d->slot_count; i++)
        if (strcmp(d->slots[i].runner.type, type) == 0)
            found = &d->slots[i].runner;
    pthread_mutex_unlock(&d->mutex);
    return found;
}

void dispatcher_stop(struct dispatcher *d) {
    const struct job_runner *woken[DISPATCHER_JOBS_MAX];
    int count = 0;
    pthread_mutex_lock(&d->mutex);
    d->stopping = true;
    for (int i = 0; i < d->slot_count; i++)
        if (d->slots[i].claim && set_wish(d->slots[i].claim, job_claim_wish(d->slots[i].claim)))
            woken[count++] = &d->slots[i].runner;
    tell(d);
    pthread_mutex_unlock(&d->mutex);
    for (int i = 0; i < count; i++)
        woken[i]->wake(woken[i]->user);
}

static bool is_busy(const struct dispatcher *d, const char *type) {
    for (int i = 0; i < d->slot_count; i++)
        if (strcmp(d->slots[i].runner.type, type) == 0 &&
            (d->slots[i].claim || d->slots[i].is_claiming))
            return true;
    return false;
}

void dispatcher_wait(struct dispatcher *d, const char *type) {
    pthread_mutex_lock(&d->mutex);
    while (is_busy(d, type))
        pthread_cond_wait(&d->changed, &d->mutex);
    pthread_mutex_unlock(&d->mutex);
}

void dispatcher_destroy(struct dispatcher *d) {
    if (!d)
        return;
    dispatcher_stop(d);
    pthread_join(d->thread, NULL);
    queue_unlisten(d->queue, &d->listener);
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->mutex);
    free(d);
}
