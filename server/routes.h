/* The table of paths and methods, and the handlers behind it. */
#ifndef SERVER_ROUTES_H
#define SERVER_ROUTES_H

#include "server/http/exchange.h"

#include <stdbool.h>

struct route {
    const char *path;
    const char *methods; /* for Allow, with HEAD beside GET and OPTIONS */
    bool is_post;        /* POST with a JSON body; otherwise GET (and HEAD) */
    /* May queue an answer when the headers are in, before the body is read; NULL: nothing to say.
     */
    bool (*early)(struct exchange *exchange, enum MHD_Result *answered);
    /* The whole request is in. */
    enum MHD_Result (*handle)(struct exchange *exchange);
};

/* By exact path; NULL if there is none. */
const struct route *route_find(const char *path);

/* server/dialect/generate_route.c */
bool generate_early(struct exchange *exchange, enum MHD_Result *answered);
enum MHD_Result generate_handle(struct exchange *exchange);

#endif
