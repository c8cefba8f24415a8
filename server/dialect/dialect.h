/* An API that is not ours, as far as answers know of it: what its clients expect of an error. */
#ifndef SERVER_DIALECT_DIALECT_H
#define SERVER_DIALECT_DIALECT_H

#include "base/error.h"

#include <jansson.h>

struct dialect {
    const char *name;
    /* The body of an error; NULL when memory is short. `code` is our stable word for it; param,
     * value and allowed may be empty. *status is the answer's, to be left or changed. */
    json_t *(*error_json)(const struct error *err, const char *code, int *status);
};

#endif
