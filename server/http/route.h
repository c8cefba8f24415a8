/* A route: what a path answers. Each file that handles requests defines one struct route per path,
 * and is listed once, in server/routes/routes.c. */
#ifndef SERVER_HTTP_ROUTE_H
#define SERVER_HTTP_ROUTE_H

#include "server/http/exchange.h"

#include <stdbool.h>
#include <stddef.h>

struct json_t;

#define ROUTE_METHODS_MAX 4

struct answer_header {
    const char *name, *value; /* borrowed; an entry with a NULL value is skipped */
};

/* Consumes a body piece by piece as it comes; other bodies are held in memory. Its state is
 * exchange->upload. */
struct body_sink {
    uint64_t (*max_bytes)(const struct exchange *exchange);
    /* The head is valid, and the body is about to come. */
    bool (*begin)(struct exchange *exchange, struct error *err);
    /* On failure the rest is discarded and the error answered. */
    bool (*write)(struct exchange *exchange, const void *bytes, size_t size, struct error *err);
    /* The body will not be completed; not called after the method's handler. */
    void (*give_up)(struct exchange *exchange);
};

struct route_method {
    const char *name; /* "GET" also answers HEAD; OPTIONS needs no entry. NULL ends the list */
    /* The allowed media types of its body, ending with NULL; "" for a body without one. NULL: it
     * takes no body. */
    const char *const *content_types;
    /* Called before the body is read; returns false with an error to refuse the request. NULL:
     * allowed. */
    bool (*may_come)(const struct exchange *exchange, struct error *err);
    /* Called when the whole request is in. */
    enum MHD_Result (*handle)(struct exchange *exchange);
    /* Also accepts chunked bodies, and may refuse before the body is sent. NULL: the body is in
     * exchange->body. */
    const struct body_sink *sink;
    /* For GET /openapi.json (server/routes/openapi.c), which lists every route and method, and for
     * docs/api.md. `about`: what it does, in one line; never NULL. `query`: the names its query may
     * have, separated by spaces, "limit:integer" for one that is not a string; NULL: none.
     * `answers`: the media types of its answer, likewise; NULL: application/json. */
    const char *about, *query, *answers;
    /* The schema of its JSON body or form: a shape (base/text/shape.h), or a function that
     * returns a new reference; both NULL if there is none. */
    const char *takes;
    struct json_t *(*schema)(void);
    /* Its statuses below 400, separated by semicolons, each with the shape of its JSON: "200
     * Drawing; 202 Job". Only the first has the media types of `answers`, the others have JSON; 204
     * and 304 have no body. 200 need not be said. NULL: 200 without JSON; "": it always refuses. */
    const char *returns;
    /* Its body may have HTTP_BODY_MAX_BYTES, because `handle` leaves it to server/later/reading.h.
     * Other bodies in memory may have HTTP_READ_AT_ONCE_BYTES. */
    bool large;
};

struct route {
    const char *path;
    bool is_prefix; /* also answers everything below `path`, which then ends with a slash */
    /* What follows the one path segment below `path`: "/events" answers PATH/segment/events; with a
     * slash at its end also everything below. NULL: as is_prefix says. */
    const char *suffix;
    /* Headers of its answers below 400; they replace those that every answer carries. Ends with a
     * NULL name; may be NULL. */
    const struct answer_header *headers;
    const struct dialect *dialect; /* NULL: the native one */
    struct route_method methods[ROUTE_METHODS_MAX];
    bool open;         /* needs no API key */
    const char *piece; /* that segment's name in /openapi.json; NULL: "name" */
};

/* For content_types. */
extern const char *const content_types_json[];
extern const char content_type_form[];

bool route_matches(const struct route *route, const char *path);
/* Returns the segment below `path` in a matching target, without a suffix, what is below one, or a
 * query; *length bytes. */
const char *route_piece(const struct route *route, const char *target, size_t *length);
/* Returns what is below a suffix that ends with a slash, without a query; *length bytes. */
const char *route_below(const struct route *route, const char *target, size_t *length);
/* NULL if the route does not have this method. */
const struct route_method *route_find_method(const struct route *route, const char *name);
/* Writes the value of Allow: "GET, HEAD, OPTIONS". Returns `text`. */
const char *route_allow(const struct route *route, char *text, size_t size);
/* Returns whether a Content-Type header (NULL if missing) is one of the method's. The only
 * parameters allowed are charset=utf-8 and the boundary of multipart/form-data. */
bool route_takes(const struct route_method *method, const char *content_type);

#endif
