/* GET /jobs/{id}/events: the events of a job as server-sent events (HTML, section 9.2).
 *
 * Each client has one buffer that holds at most one batch of events. When the buffer has been sent,
 * the watch thread (server/later/job_watch.h) refills it with events from the queue. So a slow
 * client needs no more memory than a fast one. The connection is suspended while there is nothing
 * to send.
 */
#ifndef SERVER_JOBS_EVENT_STREAM_H
#define SERVER_JOBS_EVENT_STREAM_H

#include "server/http/exchange.h"

/* Starts a stream; call it as a route's handler. `after` is the number of the last event that the
 * client has seen. If it is -1, the stream begins with the job's current state. */
enum MHD_Result event_stream_start(struct exchange *exchange, const char *id, int64_t after);

#endif
