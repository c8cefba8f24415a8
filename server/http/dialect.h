/* How a foreign API reports errors: its clients expect error answers in a form of their own. */
#ifndef SERVER_HTTP_DIALECT_H
#define SERVER_HTTP_DIALECT_H

#include "base/error.h"

#include <jansson.h>

struct dialect {
    const char *name;
    /* Returns the body of an error answer; NULL when memory is short. `code` is the native code
     * word; param, value and allowed of `err` may be empty. May change *status, the status of the
     * answer. */
    json_t *(*error_json)(const struct error *err, const char *code, int *status);
    const char *error_shape; /* its name in server/routes/shapes.c */
};

#endif
