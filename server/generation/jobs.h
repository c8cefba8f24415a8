/* Jobs of type "generate": requests that are written down before they are answered, drawn beside
 * all others when their turn comes, and whose pictures are kept for a while. */
#ifndef SERVER_GENERATION_JOBS_H
#define SERVER_GENERATION_JOBS_H

#include "server/server.h"

#define GENERATE_JOBS_AT_ONCE 8 /* that are being drawn */

struct generation_jobs;

/* Of a server with a queue and a dispatcher. Jobs begin as soon as its engine is ready. */
bool generation_jobs_create(struct http_server *server, struct generation_jobs **out,
    struct error *err) __attribute__((warn_unused_result));
/* Stops the dispatcher, and returns when every job was given back. NULL is fine. */
void generation_jobs_stop(struct generation_jobs *jobs);
/* Only when it is stopped and nobody calls the queue any more. NULL is fine. */
void generation_jobs_destroy(struct generation_jobs *jobs);

#endif
