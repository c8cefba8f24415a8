/* What a path answers. A file that handles requests defines one struct route for each of its paths
 * and is named once, in server/routes.c. */
#ifndef SERVER_HTTP_ROUTE_H
#define SERVER_HTTP_ROUTE_H

#include "server/http/exchange.h"

#include <stdbool.h>
#include <stddef.h>

struct json_t;

#define ROUTE_METHODS_MAX 4

struct answer_header {
    const char *name, *value; /* borrowed; a NULL value is left out */
};

/* Takes a body piece by piece while it comes, where others are held in memory. What it makes of it
 * is exchange->upload. */
struct body_sink {
    uint64_t (*max_bytes)(const struct exchange *exchange);
    /* The head is right, and the body about to come. */
    bool (*begin)(struct exchange *exchange, struct error *err);
    /* After an error the rest is thrown away and the error answered. */
    bool (*write)(struct exchange *exchange, const void *bytes, size_t size, struct error *err);
    /* It will not come to its end; not called once the method's handler was. */
    void (*give_up)(struct exchange *exchange);
};

struct route_method {
    const char *name; /* "GET" answers HEAD as well; OPTIONS needs no entry. NULL ends the list */
    /* The media types its body may have, ending with NULL, "" for none said; NULL: it takes no
     * body.
     */
    const char *const *content_types;
    /* Before the body is read: false, with why, refuses the request. NULL: it may come. */
    bool (*may_come)(const struct exchange *exchange, struct error *err);
    /* The whole request is in. */
    enum MHD_Result (*handle)(struct exchange *exchange);
    /* Also takes bodies in chunks, and refuses before it is sent. NULL: the body is in
     * exchange->body. */
    const struct body_sink *sink;
    /* For GET /openapi.json (server/openapi.c), which lists every route and method: what it does,
     * in a line; never NULL. The names that its query may have, with spaces between; NULL: none.
     * The media types of its answer in the same way; NULL: application/json. */
    const char *about, *query, *answers;
    struct json_t *(*schema)(void); /* of its JSON body, a new reference; NULL: anything */
    /* Its body may have HTTP_BODY_MAX_BYTES, since `handle` leaves it to server/reading.h. Others
     * that are held in memory may have HTTP_READ_AT_ONCE_BYTES. */
    bool large;
};

struct route {
    const char *path;
    bool is_prefix; /* it also answers everything below `path`, which then ends with a slash */
    /* What follows the one piece below `path`: "/events" answers PATH/piece/events; with a slash at
     * its end everything below. NULL: as is_prefix says. */
    const char *suffix;
    /* Of its answers below 400: they replace those that every answer carries. Ends with a NULL
     * name; may be NULL. */
    const struct answer_header *headers;
    const struct dialect *dialect; /* NULL: ours */
    struct route_method methods[ROUTE_METHODS_MAX];
    bool open;         /* answers without an API key */
    const char *piece; /* what stands below `path`, in /openapi.json: "id"; NULL: "name" */
};

/* For content_types. */
extern const char *const content_types_json[];
extern const char content_type_form[];

bool route_matches(const struct route *route, const char *path);
/* What stands below `path` in a target that matches, without a suffix, what is below one, and a
 * query; *length bytes. */
const char *route_piece(const struct route *route, const char *target, size_t *length);
/* What stands below a suffix with a slash at its end, without a query; *length bytes. */
const char *route_below(const struct route *route, const char *target, size_t *length);
/* NULL if the path does not answer this method. */
const struct route_method *route_find_method(const struct route *route, const char *name);
/* "GET, HEAD, OPTIONS", for Allow. Returns `text`. */
const char *route_allow(const struct route *route, char *text, size_t size);
/* Whether a Content-Type header (NULL if there is none) is one of the method's. Of parameters only
 * charset=utf-8 is understood, and of multipart/form-data its boundary; any other is refused. */
bool route_takes(const struct route_method *method, const char *content_type);

#endif
