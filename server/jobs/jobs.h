/* Jobs as JSON, and functions for all routes that create or describe jobs. */
#ifndef SERVER_JOBS_JOBS_H
#define SERVER_JOBS_JOBS_H

#include "queue/queue.h"
#include "server/http/caller.h"
#include "server/later/task.h"

/* What a job waits for: other jobs in the queue, or requests. */
struct job_standing {
    int position;     /* in the queue, from 1; 0: not queued */
    double held_up_s; /* how long requests have held it up; 0: they do not */
};

/* Returns a job as JSON, a new reference; NULL when memory is short. */
json_t *job_json(const struct job *job, const struct job_standing *standing);
/* Does what job_json does, but leaves out the request. */
json_t *job_summary_json(const struct job *job, const struct job_standing *standing);

/* Returns whether this daemon keeps jobs; if not, the error says why. Can be a route's
 * `may_come`. */
bool jobs_are_kept(const struct exchange *exchange, struct error *err)
    __attribute__((warn_unused_result));

typedef bool job_change(struct queue *queue, const char *id, struct job *out, struct error *err);

/* Returns the function with which a route changes a job. The route's suffix is /cancel, /pause or
 * /resume. */
job_change *jobs_change_of(const struct route *route);

/* Reads the Idempotency-Key of a request; "" if there is none. ERROR_INVALID if it is malformed. */
bool jobs_read_key(const struct exchange *exchange, char out[JOB_KEY_MAX_BYTES + 1],
    struct error *err) __attribute__((warn_unused_result));

/* Adds `url` to each picture of a validation, {"step", "pictures": [{"file"}]}. Returns false when
 * memory is short. */
bool jobs_add_validation_urls(const struct job *job, json_t *validation)
    __attribute__((warn_unused_result));

/* Does what queue_get does, for a viewer. A job that the viewer may not see is ERROR_NOT_FOUND
 * too. */
bool jobs_get(struct queue *queue, const char *id, const struct viewer *viewer, struct job *out,
    struct error *err) __attribute__((warn_unused_result));

/* Accepts a job of any type. Only a running training job can be held up by requests. */
bool jobs_get_standing(struct http_server *server, const struct job *job, struct job_standing *out,
    struct error *err) __attribute__((warn_unused_result));

/* Makes the job's JSON the answer of the task. */
bool jobs_tell(struct task *task, const struct job *job, struct error *err)
    __attribute__((warn_unused_result));

#endif
