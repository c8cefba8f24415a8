/* Jobs as JSON. */
#ifndef SERVER_JOBS_JOBS_JSON_H
#define SERVER_JOBS_JOBS_JSON_H

#include "queue/queue.h"

#include <jansson.h>

/* How other work delays a job. */
struct job_standing {
    int position;     /* in the queue, 1 is next; 0: it is not queued */
    double held_up_s; /* how long requests have left it no time; 0: they do not */
};

/* A new reference; NULL when memory is short. */
json_t *job_json(const struct job *job, const struct job_standing *standing);
/* Without the request. */
json_t *job_summary_json(const struct job *job, const struct job_standing *standing);

#endif
