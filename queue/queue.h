/* Jobs that outlive the process: accepted once, claimed by who works on them, done or put back.
 *
 *     queued -> running -> succeeded | failed | cancelled
 *        ^  \      |
 *        |   `-> paused           resume also takes a failed job up again
 *
 * What returns true has been written down: an enqueued job is there after a kill -9. Any thread may
 * call; a call may wait for the disk. Errors: ERROR_NOT_FOUND for an id that there is not,
 * ERROR_CONFLICT for what a job in its state cannot do, ERROR_IO when nothing can be written. After
 * an error nothing has changed.
 */
#ifndef QUEUE_QUEUE_H
#define QUEUE_QUEUE_H

#include "queue/store.h"

struct queue;

/* In FOLDER/jobs.sqlite, which is made if it is not there, and which one process at a time may
 * open. Jobs that were running when the last one ended are queued again; one with which it ended
 * JOB_STRIKES_MAX times in a row, without getting any further, has failed. ERROR_INVALID: the
 * folder is not one to use, or another process does; ERROR_IO: the file is damaged or cannot be
 * written. NULL: in memory, and gone with the queue. */
bool queue_open(const char *folder, struct queue **out, struct error *err)
    __attribute__((warn_unused_result));
/* The same on any store, which it takes over, also on failure. */
bool queue_create(struct store *store, struct queue **out, struct error *err)
    __attribute__((warn_unused_result));
/* NULL is fine. */
void queue_destroy(struct queue *queue);

/* --- For who wants something done --- */

struct job_order {
    const char *type, *request; /* the request is JSON */
    const char *id;             /* of queue_make_id, for who keeps files under it; NULL: any */
    int priority;
    const char *owner, *caller; /* as struct job has them; NULL is "" */
    /* A request of the same owner and type with the same key is the same one, sent again. `body` is
     * compared; both NULL where there is no key. */
    const char *key, *body;
};
/* An id that no job has; JOB_ID_BYTES. */
bool queue_make_id(char id[JOB_ID_BYTES], struct error *err) __attribute__((warn_unused_result));
/* *out is the caller's to finish. *known: there is one of this key already, and nothing was added;
 * ERROR_CONFLICT if it was asked for something else. ERROR_BUSY when JOBS_WAITING_MAX wait. */
bool queue_enqueue(struct queue *queue, const struct job_order *order, struct job *out, bool *known,
    struct error *err) __attribute__((warn_unused_result));

/* The first half of that: whether there is one of this key already. */
bool queue_find_known(struct queue *queue, const struct job_order *order, struct job *out,
    bool *known, struct error *err) __attribute__((warn_unused_result));

bool queue_get(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* 1 for the next to be claimed of its type; 0 if it is not queued. What comes later, and running
 * jobs that end, may change the turns of other jobs. */
bool queue_position(struct queue *queue, const struct job *job, int *out, struct error *err)
    __attribute__((warn_unused_result));

/* How many jobs of a type are in each state. Waits for the disk the first time. */
bool queue_count(struct queue *queue, const char *type, int counts[JOB_STATE_COUNT],
    struct error *err) __attribute__((warn_unused_result));

/* A running job is asked to stop, and is still running when this returns; another is at once
 * cancelled, or paused. Once more changes nothing.
 * ERROR_NO_SPACE if it cannot be written down: a running job is asked all the same, until the
 * process ends, and it is written with the job's next change; another stays as it is. */
bool queue_cancel(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
bool queue_pause(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Queues a paused or failed one again; of one that is only asked to pause the wish is taken back.
 */
bool queue_resume(struct queue *queue, const char *id, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
/* Not a running one. */
bool queue_delete(struct queue *queue, const char *id, struct error *err)
    __attribute__((warn_unused_result));

struct job_list {
    struct job *jobs; /* owned */
    int count;
    bool has_more; /* than filter.limit */
};
bool queue_list(struct queue *queue, const struct job_filter *filter, struct job_list *out,
    struct error *err) __attribute__((warn_unused_result));
void job_list_finish(struct job_list *list);

/* Shows up to `limit` events whose number is above `after` to `visit`, which must not call the
 * queue; false ends it, with the error that it has set. */
bool queue_events(struct queue *queue, const struct job *job, int64_t after, int limit,
    bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* --- For who works on them (queue/dispatcher.h) --- */

/* *found: *out is running, and the caller's by its id and `attempts`, which the calls below take:
 * ERROR_CONFLICT if that attempt is over. */
bool queue_claim(struct queue *queue, const char *type, struct job *out, bool *found,
    struct error *err) __attribute__((warn_unused_result));

struct job_report {
    int64_t step, steps;
    double eta_s;        /* below 0: not known */
    const char *metrics; /* a JSON object; may be NULL */
};
bool queue_report(struct queue *queue, const char *id, int attempt, const struct job_report *report,
    struct error *err) __attribute__((warn_unused_result));
/* Something else that happened: a word and a JSON object. */
bool queue_add_event(struct queue *queue, const char *id, int attempt, const char *type,
    const char *data, struct error *err) __attribute__((warn_unused_result));
/* Whether this attempt counts, should the daemon end with it: 1 more, or 1 less for as long as it
 * only waits. queue_claim has counted it. */
bool queue_add_strikes(struct queue *queue, const char *id, int attempt, int more,
    struct error *err) __attribute__((warn_unused_result));

/* Ends it, all its steps taken; `result` is a JSON object, NULL for none. */
bool queue_succeed(struct queue *queue, const char *id, int attempt, const char *result,
    struct error *err) __attribute__((warn_unused_result));
bool queue_fail(struct queue *queue, const char *id, int attempt, const struct error *why,
    struct error *err) __attribute__((warn_unused_result));
/* It has stopped as it was asked to: cancelled, paused, or queued again. */
bool queue_stopped(struct queue *queue, const char *id, int attempt, struct error *err)
    __attribute__((warn_unused_result));

/* --- For who wants to know --- */

struct queue_listener {
    /* A job was changed, or, if `deleted`, is gone. From the thread that did it, with the queue
     * locked: must neither wait nor call the queue. */
    void (*changed)(void *user, const struct job *job, bool deleted);
    void *user;
    struct queue_listener *next;
};
/* `listener` stays the caller's, and where it is. */
void queue_listen(struct queue *queue, struct queue_listener *listener);
void queue_unlisten(struct queue *queue, struct queue_listener *listener);

#endif
