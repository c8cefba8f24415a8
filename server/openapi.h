/* All that the daemon answers, as an OpenAPI 3.1 document, made from the table of routes. */
#ifndef SERVER_OPENAPI_H
#define SERVER_OPENAPI_H

#include "server/http/route.h"

#include <jansson.h>

/* `keys`: whether routes that are not open want one. A new reference; NULL when memory is short. */
json_t *openapi_json(bool keys);

/* The route's path as it stands there: "/jobs/{id}/events". Returns `text`. */
const char *openapi_path(const struct route *route, char *text, size_t size);

#endif
