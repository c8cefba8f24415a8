/* How many answers were sent, by route and status: latentd_http_responses_total of GET /metrics. */
#ifndef SERVER_ROUTES_ANSWERS_H
#define SERVER_ROUTES_ANSWERS_H

#include <stdio.h>

struct route;

/* Counts an answer. `route` is NULL for a path that no route has. A status that HTTP does not have
 * (0: the client left before the answer) is not counted. Any thread; takes no lock. */
void answers_count(const struct route *route, int status);

/* Writes the family in Prometheus' text format: a line for each route and status seen so far. */
void answers_put(FILE *out);

#endif
