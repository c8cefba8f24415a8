/* POST /generate with ?async=1 or Prefer: respond-async. Such a request is an order: it becomes a
 * job and is answered with 202. */
#ifndef SERVER_GENERATION_ORDER_ROUTE_H
#define SERVER_GENERATION_ORDER_ROUTE_H

#include "server/http/exchange.h"

/* Sets *out if the request asks for an order. ERROR_INVALID for a malformed query. */
bool generation_is_order(const struct exchange *exchange, bool *out, struct error *err)
    __attribute__((warn_unused_result));

/* A route's handler, for a method that is marked `large`. */
enum MHD_Result generation_order(struct exchange *exchange);

#endif
