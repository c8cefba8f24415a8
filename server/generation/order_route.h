/* POST /generate with ?async=1 or Prefer: respond-async: an order, answered with 202 and a job. */
#ifndef SERVER_GENERATION_ORDER_ROUTE_H
#define SERVER_GENERATION_ORDER_ROUTE_H

#include "server/http/exchange.h"

/* Sets *out if the request asks for an order. ERROR_INVALID for a malformed query. */
bool generation_is_order(const struct exchange *exchange, bool *out, struct error *err)
    __attribute__((warn_unused_result));

/* A route's handler; the method is marked `large`. */
enum MHD_Result generation_order(struct exchange *exchange);

#endif
