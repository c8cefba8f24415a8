/* A queue of jobs that survive the end of the process. Each is accepted once, claimed by a runner,
 * and then done or queued again.
 *
 *     queued -> running -> succeeded | failed | cancelled
 *        ^  \      |
 *        |   `-> paused           resume also queues a failed job again
 *
 * When a function returns true, its change is on the disk: an enqueued job survives a kill -9. Any
 * thread may call these functions; each may wait for the disk. ERROR_NOT_FOUND: the id is unknown.
 * ERROR_CONFLICT: the job's state does not allow the change. ERROR_IO: the change cannot be
 * written. After an error nothing has changed, unless the function's comment says otherwise.
 */
#ifndef QUEUE_QUEUE_H
#define QUEUE_QUEUE_H

#include "queue/store.h"

struct queue;

/* Opens FOLDER/jobs.sqlite, and creates it if needed. Only one process at a time may open it. Jobs
 * that were running when the last process ended are queued again, or paused or cancelled if that
 * was their wish. A job fails if the daemon ended JOB_STRIKES_MAX times in a row during it without
 * new progress. `folder` NULL: the queue is in memory, and lost when it is destroyed.
 * ERROR_INVALID: the folder is unusable, or another process uses it. ERROR_IO: the file is damaged
 * or cannot be written. */
bool queue_open(const char *folder, struct queue **out, struct error *err)
    __attribute__((warn_unused_result));
/* Opens a queue on any store. Takes over the store, even on failure. */
bool queue_create(struct store *store, struct queue **out, struct error *err)
    __attribute__((warn_unused_result));
/* NULL is fine. */
void queue_destroy(struct queue *queue);

/* --- For code that orders jobs --- */

struct job_order {
    const char *type, *request; /* request: JSON */
    const char *id;             /* from queue_make_id, if files are named after it; NULL: any */
    int priority;
    const char *owner, *caller; /* see struct job; NULL means "" */
    /* A request with the same owner, type and key is a repetition, and must have the same `body`.
     * Both are NULL if there is no key. */
    const char *key, *body;
};
/* Makes a random id of 64 bits, as JOB_ID_BYTES of text. */
bool queue_make_id(char id[JOB_ID_BYTES], struct error *err) __attribute__((warn_unused_result));
/* Adds a job; the caller finishes *out. *known: a job with this key already exists and is returned,
 * and nothing was added. ERROR_CONFLICT if its body differs. ERROR_BUSY if JOBS_WAITING_MAX jobs
 * wait. */
bool queue_enqueue(struct queue *queue, const struct job_order *order, struct job *out, bool *known,
    struct error *err) __attribute__((warn_unused_result));

/* Looks for a job with this key as queue_enqueue does, but adds none. */
bool queue_find_known(struct queue *queue, const struct job_order *order, struct job *out,
    bool *known, struct error *err) __attribute__((warn_unused_result));

bool queue_get(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Returns the time since the job was accepted, in ms, whatever the system's clock says
 * (queue/ages.h). */
int64_t queue_age_ms(struct queue *queue, const struct job *job);
/* Sets *out to the job's position among the queued jobs of its type: 1 is claimed next. 0: the job
 * is not queued. New orders and the ends of running jobs may change the position. */
bool queue_position(struct queue *queue, const struct job *job, int *out, struct error *err)
    __attribute__((warn_unused_result));

/* Counts the jobs of a type by state. The first call for a type waits for the disk. */
bool queue_count(struct queue *queue, const char *type, int counts[JOB_STATE_COUNT],
    struct error *err) __attribute__((warn_unused_result));

/* Cancel or pause a job. A running job is only asked to stop, and is still running when this
 * returns; any other job changes at once. Repeating the call changes nothing. ERROR_NO_SPACE if the
 * change cannot be stored. A running job is asked to stop even then: its wish is stored with its
 * next change, and is lost if the process ends before that. Any other job stays as it is. */
bool queue_cancel(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
bool queue_pause(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Queues a paused or failed job again. If the job is still running but was asked to pause, takes
 * back the wish. */
bool queue_resume(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Deletes a job. ERROR_CONFLICT if it is running. */
bool queue_delete(struct queue *queue, const char *id, struct error *err)
    __attribute__((warn_unused_result));

struct job_list {
    struct job *jobs; /* owned */
    int count;
    bool has_more; /* there are more than filter.limit */
};
bool queue_list(struct queue *queue, const struct job_filter *filter, struct job_list *out,
    struct error *err) __attribute__((warn_unused_result));
void job_list_finish(struct job_list *list);

/* Passes up to `limit` events with numbers above `after` to `visit`, which must not call the queue.
 * To stop, `visit` sets an error and returns false. */
bool queue_events(struct queue *queue, const struct job *job, int64_t after, int limit,
    bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* --- For runners (queue/dispatcher.h) --- */

/* Claims the next job of a type. *found: there was one; *out is running, and the caller finishes
 * it. The functions below take its id and its `attempts`. They fail with ERROR_CONFLICT once that
 * attempt is over. */
bool queue_claim(struct queue *queue, const char *type, struct job *out, bool *found,
    struct error *err) __attribute__((warn_unused_result));

struct job_report {
    int64_t step, steps;
    double eta_s;        /* negative: unknown */
    const char *metrics; /* a JSON object; may be NULL */
};
bool queue_report(struct queue *queue, const char *id, int attempt, const struct job_report *report,
    struct error *err) __attribute__((warn_unused_result));
/* Adds an event: a word and a JSON object. */
bool queue_add_event(struct queue *queue, const char *id, int attempt, const char *type,
    const char *data, struct error *err) __attribute__((warn_unused_result));
/* Adds `more` to the strikes of the job: -1 while the attempt only waits, 1 when it no longer does.
 * queue_claim has already added one, for the case that the daemon ends during the attempt. */
bool queue_add_strikes(struct queue *queue, const char *id, int attempt, int more,
    struct error *err) __attribute__((warn_unused_result));

/* Ends the job with all its steps done. `result` is a JSON object, or NULL. */
bool queue_succeed(struct queue *queue, const char *id, int attempt, const char *result,
    struct error *err) __attribute__((warn_unused_result));
bool queue_fail(struct queue *queue, const char *id, int attempt, const struct error *why,
    struct error *err) __attribute__((warn_unused_result));
/* Reports that the job has stopped as its wish asked. It is then cancelled, paused, or queued
 * again. */
bool queue_stopped(struct queue *queue, const char *id, int attempt, struct error *err)
    __attribute__((warn_unused_result));

/* --- Listeners --- */

struct queue_listener {
    /* Called when a job has changed or, if `deleted`, was deleted. Called on the thread that
     * changed it, with the queue locked: must neither wait nor call the queue. */
    void (*changed)(void *user, const struct job *job, bool deleted);
    void *user;
    struct queue_listener *next;
};
/* The caller owns `listener`, which must not move until queue_unlisten. */
void queue_listen(struct queue *queue, struct queue_listener *listener);
void queue_unlisten(struct queue *queue, struct queue_listener *listener);

#endif
