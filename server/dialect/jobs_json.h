/* Jobs as JSON. */
#ifndef SERVER_DIALECT_JOBS_JSON_H
#define SERVER_DIALECT_JOBS_JSON_H

#include "queue/queue.h"

#include <jansson.h>

/* A new reference; NULL when memory is short. position: 0 if it is not queued. */
json_t *job_json(const struct job *job, int position);
/* Without the request. */
json_t *job_summary_json(const struct job *job, int position);

#endif
