/* A route: the methods of a path. Each file that handles requests defines one struct route per
 * path. All routes are listed in server/routes/routes.c. */
#ifndef SERVER_HTTP_ROUTE_H
#define SERVER_HTTP_ROUTE_H

#include "server/http/exchange.h"

#include <stdbool.h>
#include <stddef.h>

struct json_t;

#define ROUTE_METHODS_MAX 4

struct answer_header {
    const char *name, *value; /* borrowed; a NULL value skips the entry */
};

/* Receives a body piece by piece as it arrives. Bodies of methods without a sink are held in
 * memory. The sink's state is exchange->upload. */
struct body_sink {
    uint64_t (*max_bytes)(const struct exchange *exchange);
    /* Called when the head is valid, before the body arrives. */
    bool (*begin)(struct exchange *exchange, struct error *err);
    /* Receives the next bytes. If it fails, the rest of the body is discarded and the error is the
     * answer. */
    bool (*write)(struct exchange *exchange, const void *bytes, size_t size, struct error *err);
    /* Called if the body will not be completed. Not called any more once the method's handler was
     * called. */
    void (*give_up)(struct exchange *exchange);
};

struct route_method {
    const char *name; /* "GET" includes HEAD; OPTIONS needs no entry; NULL ends the list */
    /* The allowed media types of the body. The list ends with NULL; the entry "" allows a missing
     * Content-Type. If the pointer is NULL, the method takes no body. */
    const char *const *content_types;
    /* Called before the body is read. Returns false with an error to refuse the request. NULL:
     * never refuses. */
    bool (*may_come)(const struct exchange *exchange, struct error *err);
    /* Called when the whole request has arrived. */
    enum MHD_Result (*handle)(struct exchange *exchange);
    /* Receives the body. With a sink, chunked bodies are accepted too, and a request may be refused
     * before its body is sent. NULL: the body is in exchange->body. */
    const struct body_sink *sink;
    /* For GET /openapi.json (server/routes/openapi.c) and docs/api.md. `about` says in one line
     * what the method does; never NULL. `query` lists the names that its query may have, separated
     * by spaces, with "limit:integer" for a value that is not a string; NULL: none. `answers` lists
     * the media types of its answer, separated by spaces; NULL: application/json. */
    const char *about, *query, *answers;
    /* The schema of its JSON body or form: a shape (base/text/shape.h), or a function that returns
     * a new reference. Both are NULL if there is none. */
    const char *takes;
    struct json_t *(*schema)(void);
    /* The schema of its form, if the body is JSON or a form and the two differ; else NULL. */
    struct json_t *(*form_schema)(void);
    /* Its statuses below 400, separated by semicolons, each followed by the shape of its JSON:
     * "200 Drawing; 202 Job". The first status has the media types of `answers`, the others have
     * JSON; 204 and 304 have no body. A shape without a status belongs to 200. NULL: 200 without
     * JSON; "": the method always refuses. */
    const char *returns;
    /* The body may have HTTP_BODY_MAX_BYTES, because `handle` leaves the parsing to
     * server/later/reading.h. Other bodies in memory are limited to HTTP_READ_AT_ONCE_BYTES. */
    bool large;
};

struct route {
    const char *path;
    bool is_prefix; /* also answers all paths below `path`, which ends with a slash */
    /* The route answers `path`, one more segment, and this suffix: "/events" answers
     * PATH/segment/events. If the suffix ends with a slash, the route also answers all paths below.
     * NULL: no suffix; is_prefix decides. */
    const char *suffix;
    /* Headers of its answers with a status below 400. They replace headers of the same name that
     * every answer has. Ends with a NULL name; may be NULL. */
    const struct answer_header *headers;
    const struct dialect *dialect; /* NULL: native */
    struct route_method methods[ROUTE_METHODS_MAX];
    bool open;         /* needs no API key */
    const char *piece; /* the segment's name in /openapi.json; NULL: "name" */
};

/* Values for content_types. */
extern const char *const content_types_json[];
extern const char content_type_form[];

bool route_matches(const struct route *route, const char *path);
/* Returns the segment below `path` in a target that matches the route. It has *length bytes, and
 * does not include the suffix, anything below the suffix, or the query. */
const char *route_piece(const struct route *route, const char *target, size_t *length);
/* Returns the text below a suffix that ends with a slash. It has *length bytes and does not include
 * the query. */
const char *route_below(const struct route *route, const char *target, size_t *length);
/* Returns NULL if the route does not have this method. */
const struct route_method *route_find_method(const struct route *route, const char *name);
/* Writes the value of Allow, such as "GET, HEAD, OPTIONS". Returns `text`. */
const char *route_allow(const struct route *route, char *text, size_t size);
/* Returns whether the method accepts a Content-Type (NULL if the header is missing). The only
 * parameters allowed are charset=utf-8 and the boundary of multipart/form-data. */
bool route_takes(const struct route_method *method, const char *content_type);

#endif
