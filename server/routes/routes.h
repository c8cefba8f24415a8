/* The table of all routes. */
#ifndef SERVER_ROUTES_ROUTES_H
#define SERVER_ROUTES_ROUTES_H

#include "server/http/route.h"

/* Returns the first route that matches the path (without a query); NULL if there is none. */
const struct route *route_find(const char *path);

/* Returns the dialect of errors on a path, also for a path without a route; NULL: native. `route`
 * is the result of route_find. */
const struct dialect *route_dialect(const struct route *route, const char *path);

/* Returns route `index`; NULL past the last. */
const struct route *route_at(size_t index);

#endif
