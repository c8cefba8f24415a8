/* GET /jobs/{id}/events: what happens to a job, as server-sent events (HTML, section 9.2).
 *
 * A client has one buffer, of at most a batch of events. When it has taken that in, the watch's
 * thread (server/jobs/job_watch.h) fills it anew with what the queue has kept since; so a slow
 * client costs no more than a quick one, and the connection is suspended whenever there is nothing
 * to send.
 */
#ifndef SERVER_EVENT_STREAM_H
#define SERVER_EVENT_STREAM_H

#include "server/http/exchange.h"

/* `after`: the number of the last event that the client has seen, -1 for none: then it is first
 * told how the job stands. As a route's handler. */
enum MHD_Result event_stream_start(struct exchange *exchange, const char *id, int64_t after);

#endif
