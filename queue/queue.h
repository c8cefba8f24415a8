/* Jobs that outlive the process: accepted once, claimed by a runner, done or put back.
 *
 *     queued -> running -> succeeded | failed | cancelled
 *        ^  \      |
 *        |   `-> paused           resume also queues a failed job again
 *
 * When a function returns true, the change is written down: an enqueued job survives a kill -9. Any
 * thread may call; a call may wait for the disk. Errors: ERROR_NOT_FOUND for an unknown id,
 * ERROR_CONFLICT for what the job's state does not allow, ERROR_IO if nothing can be written. After
 * an error nothing has changed, except where a function says so.
 */
#ifndef QUEUE_QUEUE_H
#define QUEUE_QUEUE_H

#include "queue/store.h"

struct queue;

/* Opens FOLDER/jobs.sqlite, creating it if needed; only one process at a time may open it. Jobs
 * that were running when the last process ended are queued again, or paused or cancelled if that
 * was asked of them; a job during which the daemon ended JOB_STRIKES_MAX times in a row without new
 * progress has failed. ERROR_INVALID: the folder is unusable, or another process uses it; ERROR_IO:
 * the file is damaged or cannot be written. NULL: in memory, and lost with the queue. */
bool queue_open(const char *folder, struct queue **out, struct error *err)
    __attribute__((warn_unused_result));
/* The same on any store; takes it over, also on failure. */
bool queue_create(struct store *store, struct queue **out, struct error *err)
    __attribute__((warn_unused_result));
/* NULL is fine. */
void queue_destroy(struct queue *queue);

/* --- For those who order jobs --- */

struct job_order {
    const char *type, *request; /* the request is JSON */
    const char *id; /* from queue_make_id, if the caller keeps files under it; NULL: any */
    int priority;
    const char *owner, *caller; /* as in struct job; NULL means "" */
    /* A request of the same owner and type with the same key is a repetition. `body` is compared.
     * Both are NULL if there is no key. */
    const char *key, *body;
};
/* Makes a random id of 64 bits, as JOB_ID_BYTES of text. */
bool queue_make_id(char id[JOB_ID_BYTES], struct error *err) __attribute__((warn_unused_result));
/* Adds a job; the caller finishes *out. *known: a job with this key exists, and nothing was added;
 * ERROR_CONFLICT if its body differs. ERROR_BUSY when JOBS_WAITING_MAX jobs wait. */
bool queue_enqueue(struct queue *queue, const struct job_order *order, struct job *out, bool *known,
    struct error *err) __attribute__((warn_unused_result));

/* The first half of queue_enqueue: looks for a job with this key. */
bool queue_find_known(struct queue *queue, const struct job_order *order, struct job *out,
    bool *known, struct error *err) __attribute__((warn_unused_result));

bool queue_get(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Sets *out to the job's position among the queued jobs of its type, 1 for the next to be claimed;
 * 0 if it is not queued. Later orders and the ends of running jobs may change whose turn it is. */
bool queue_position(struct queue *queue, const struct job *job, int *out, struct error *err)
    __attribute__((warn_unused_result));

/* Counts the jobs of a type by state. Waits for the disk the first time. */
bool queue_count(struct queue *queue, const char *type, int counts[JOB_STATE_COUNT],
    struct error *err) __attribute__((warn_unused_result));

/* Ask a running job to stop, which it has not yet done when this returns; any other job is
 * cancelled or paused at once. Repeating it changes nothing. ERROR_NO_SPACE if it cannot be written
 * down: a running job is asked all the same, until the process ends, and the wish is written with
 * the job's next change; any other job stays as it is. */
bool queue_cancel(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
bool queue_pause(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Queues a paused or failed job again; for a job that was asked to pause but still runs, takes back
 * the wish. */
bool queue_resume(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Not for a running job. */
bool queue_delete(struct queue *queue, const char *id, struct error *err)
    __attribute__((warn_unused_result));

struct job_list {
    struct job *jobs; /* owned */
    int count;
    bool has_more; /* more than filter.limit */
};
bool queue_list(struct queue *queue, const struct job_filter *filter, struct job_list *out,
    struct error *err) __attribute__((warn_unused_result));
void job_list_finish(struct job_list *list);

/* Passes up to `limit` events with numbers above `after` to `visit`, which must not call the queue.
 * `visit` returns false, with an error set, to end it. */
bool queue_events(struct queue *queue, const struct job *job, int64_t after, int limit,
    bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* --- For runners (queue/dispatcher.h) --- */

/* Claims the next job of a type. *found: *out is running, and belongs to the caller by its id and
 * `attempts`. The calls below take both: ERROR_CONFLICT if that attempt is over. */
bool queue_claim(struct queue *queue, const char *type, struct job *out, bool *found,
    struct error *err) __attribute__((warn_unused_result));

struct job_report {
    int64_t step, steps;
    double eta_s;        /* negative: not known */
    const char *metrics; /* a JSON object; may be NULL */
};
bool queue_report(struct queue *queue, const char *id, int attempt, const struct job_report *report,
    struct error *err) __attribute__((warn_unused_result));
/* Adds another event: a word and a JSON object. */
bool queue_add_event(struct queue *queue, const char *id, int attempt, const char *type,
    const char *data, struct error *err) __attribute__((warn_unused_result));
/* Changes how many strikes this attempt counts if the daemon ends during it: 1 more, or 1 less
 * while it only waits. queue_claim has counted one already. */
bool queue_add_strikes(struct queue *queue, const char *id, int attempt, int more,
    struct error *err) __attribute__((warn_unused_result));

/* Ends the job with all its steps done; `result` is a JSON object, NULL for none. */
bool queue_succeed(struct queue *queue, const char *id, int attempt, const char *result,
    struct error *err) __attribute__((warn_unused_result));
bool queue_fail(struct queue *queue, const char *id, int attempt, const struct error *why,
    struct error *err) __attribute__((warn_unused_result));
/* Reports that it has stopped as asked: it becomes cancelled, paused, or queued again. */
bool queue_stopped(struct queue *queue, const char *id, int attempt, struct error *err)
    __attribute__((warn_unused_result));

/* --- For those who want news --- */

struct queue_listener {
    /* A job has changed or, if `deleted`, is gone. Called on the thread that changed it, with the
     * queue locked: must neither wait nor call the queue. */
    void (*changed)(void *user, const struct job *job, bool deleted);
    void *user;
    struct queue_listener *next;
};
/* `listener` stays the caller's and must not move. */
void queue_listen(struct queue *queue, struct queue_listener *listener);
void queue_unlisten(struct queue *queue, struct queue_listener *listener);

#endif
