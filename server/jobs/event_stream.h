/* GET /jobs/{id}/events: the events of a job as server-sent events (HTML, section 9.2).
 *
 * Each client has one buffer of at most a batch of events. When the client has taken it, the watch
 * thread (server/later/job_watch.h) refills it from the events that the queue has kept. So a slow
 * client costs no more than a quick one, and the connection is suspended whenever there is nothing
 * to send.
 */
#ifndef SERVER_JOBS_EVENT_STREAM_H
#define SERVER_JOBS_EVENT_STREAM_H

#include "server/http/exchange.h"

/* Starts a stream, as a route's handler. `after` is the number of the last event that the client
 * has seen; -1 for none: the stream then begins with the job's current state. */
enum MHD_Result event_stream_start(struct exchange *exchange, const char *id, int64_t after);

#endif
