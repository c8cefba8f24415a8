/* A foreign API, as far as error answers differ: what its clients expect of an error. */
#ifndef SERVER_HTTP_DIALECT_H
#define SERVER_HTTP_DIALECT_H

#include "base/error.h"

#include <jansson.h>

struct dialect {
    const char *name;
    /* Returns the body of an error; NULL when memory is short. `code` is the native code word;
     * param, value and allowed of `err` may be empty. May change *status, the answer's. */
    json_t *(*error_json)(const struct error *err, const char *code, int *status);
    const char *error_shape; /* its name in server/routes/shapes.c */
};

#endif
