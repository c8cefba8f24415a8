/* Jobs of type "generate": requests that are written to the queue before they are answered. They
 * are drawn beside all other requests when their turn comes, and their pictures are kept for a
 * while. */
#ifndef SERVER_GENERATION_JOBS_H
#define SERVER_GENERATION_JOBS_H

#include "server/http/server.h"

#define GENERATE_JOBS_AT_ONCE 8 /* jobs drawn at the same time */

struct generation_jobs;

/* Requires a server with a queue and a dispatcher. No job begins before the engine is ready. */
bool generation_jobs_create(struct http_server *server, struct generation_jobs **out,
    struct error *err) __attribute__((warn_unused_result));
/* Stops the dispatcher and waits until every job has been given back. NULL is fine. */
void generation_jobs_stop(struct generation_jobs *jobs);
/* Call it only after generation_jobs_stop, when no thread calls the queue any more. NULL is
 * fine. */
void generation_jobs_destroy(struct generation_jobs *jobs);

#endif
