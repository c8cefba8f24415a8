/* Pages of other origins that may call the daemon (the Fetch standard's CORS): those that the
 * operator lists. Each is answered with its own origin, never with "*" and never with
 * credentials. */
#ifndef SERVER_ACCESS_CORS_H
#define SERVER_ACCESS_CORS_H

#include <stdbool.h>
#include <stddef.h>

struct exchange;

/* Checks an origin such as "https://app.example:8443": a scheme, a host in lower case and
 * optionally a port, as browsers write it. */
bool cors_origin_is_valid(const char *origin);

/* Returns the entry of the list (ends with NULL; may be NULL) that an Origin header names, or
 * NULL. */
const char *cors_find(const char *const *origins, const char *origin, size_t length);

/* Returns whether a browser asks if a page of a listed origin may send its next request. Such a
 * request carries no key. */
bool cors_is_preflight(const struct exchange *exchange);

#define CORS_MAX_AGE_S "600" /* how long a browser may cache the answer */

#endif
