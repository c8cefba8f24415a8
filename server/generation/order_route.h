/* POST /generate with ?async=1 or Prefer: respond-async: an order, answered by 202 and a job. */
#ifndef SERVER_GENERATION_ORDER_ROUTE_H
#define SERVER_GENERATION_ORDER_ROUTE_H

#include "server/http/exchange.h"

/* Whether the request asks for that. ERROR_INVALID for a query that is none. */
bool generation_is_order(const struct exchange *exchange, bool *out, struct error *err)
    __attribute__((warn_unused_result));

/* As a route's handler, once the whole body is there. Its method is marked `large`. */
enum MHD_Result generation_order(struct exchange *exchange);

#endif
