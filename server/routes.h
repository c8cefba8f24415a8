/* All paths that the daemon answers. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "server/http/route.h"

/* The first in the table that matches the path (without a query); NULL if there is none. */
const struct route *route_find(const char *path);

/* Whose errors a path gets, also one that is no route; NULL: ours. `route` is what was found. */
const struct dialect *route_dialect(const struct route *route, const char *path);

/* One after the other; NULL past the last. */
const struct route *route_at(size_t index);

#endif
