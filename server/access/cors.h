/* CORS (the Fetch standard): lets pages of other origins call the daemon, if the operator has
 * listed the origin. An answer names the page's own origin, never "*", and never allows
 * credentials. */
#ifndef SERVER_ACCESS_CORS_H
#define SERVER_ACCESS_CORS_H

#include <stdbool.h>
#include <stddef.h>

struct exchange;

/* Checks an origin such as "https://app.example:8443": a scheme, a host in lower case and
 * optionally a port, as browsers write it. */
bool cors_origin_is_valid(const char *origin);

/* Returns the entry of the list that an Origin header names, or NULL if there is none. The list
 * ends with NULL and may itself be NULL. */
const char *cors_find(const char *const *origins, const char *origin, size_t length);

/* Returns whether this is a preflight request: a browser asks whether a page of a listed origin may
 * send its next request. A preflight request carries no key. */
bool cors_is_preflight(const struct exchange *exchange);

#define CORS_MAX_AGE_S "600" /* how long a browser may cache the answer */

#endif
