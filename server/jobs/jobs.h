/* Jobs as JSON, and what all routes that make jobs, or speak of them, share. */
#ifndef SERVER_JOBS_JOBS_H
#define SERVER_JOBS_JOBS_H

#include "queue/queue.h"
#include "server/http/caller.h"
#include "server/later/task.h"

/* How other work delays a job. */
struct job_standing {
    int position;     /* in the queue, 1 is next; 0: it is not queued */
    double held_up_s; /* how long requests have left it no time; 0: they do not */
};

/* A new reference; NULL when memory is short. */
json_t *job_json(const struct job *job, const struct job_standing *standing);
/* Without the request. */
json_t *job_summary_json(const struct job *job, const struct job_standing *standing);

/* Whether this daemon keeps jobs; if not, why. Also as a route's `may_come`. */
bool jobs_are_kept(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));

typedef bool job_change(struct queue *queue, const char *id, struct job *out, struct error *err);

/* What a route asks for whose suffix is /cancel, /pause or /resume. */
job_change *jobs_change_of(const struct route *route);

/* The Idempotency-Key of a request, "" if it has none; ERROR_INVALID for one that cannot be. */
bool jobs_read_key(const struct exchange *exchange, char out[JOB_KEY_MAX_BYTES + 1],
    struct error *err) __attribute__((warn_unused_result));

/* Adds to each picture of a validation, {"step", "pictures": [{"file"}]}, the `url` where it can be
 * had. False when memory is short. */
bool jobs_add_validation_urls(const struct job *job, json_t *validation)
    __attribute__((warn_unused_result));

/* As queue_get, for a viewer: ERROR_NOT_FOUND also for a job that it does not see. */
bool jobs_get(struct queue *queue, const char *id, const struct viewer *viewer, struct job *out,
    struct error *err) __attribute__((warn_unused_result));

/* Of any job; one training job at most runs at a time, which is the one that can be held up. */
bool jobs_get_standing(struct http_server *server, const struct job *job, struct job_standing *out,
    struct error *err) __attribute__((warn_unused_result));

/* Makes the job the task's answer. */
bool jobs_tell(struct task *task, const struct job *job, struct error *err)
    __attribute__((warn_unused_result));

#endif
