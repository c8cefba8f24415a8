/* The OpenAPI 3.1 document of the whole API, made from the table of routes. */
#ifndef SERVER_ROUTES_OPENAPI_H
#define SERVER_ROUTES_OPENAPI_H

#include "server/http/route.h"

#include <jansson.h>

/* `keys`: whether routes that are not open need an API key. Returns a new reference; NULL when
 * memory is short. */
json_t *openapi_json(bool keys);

/* Writes the route's path as OpenAPI spells it: "/jobs/{id}/events". Returns `text`. */
const char *openapi_path(const struct route *route, char *text, size_t size);

#endif
