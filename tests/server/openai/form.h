/* Reads a form that arrives in pieces. Replaces libmicrohttpd's lookup of the request header:
 * define FORM_TYPE, the Content-Type, before including this file. */
#ifndef TESTS_SERVER_OPENAI_FORM_H
#define TESTS_SERVER_OPENAI_FORM_H

#include "server/http/multipart.h"

#include <string.h>

/* libmicrohttpd's form parser calls this to get the Content-Type; the linker finds this definition
 * first. */
__attribute__((visibility("default"))) enum MHD_Result MHD_lookup_connection_value_n(
    struct MHD_Connection *connection, enum MHD_ValueKind kind, const char *key, size_t key_size,
    const char **value, size_t *value_size) {
    static const char type[] = FORM_TYPE;
    (void)connection;
    (void)kind;
    (void)key;
    (void)key_size;
    *value = type;
    if (value_size)
        *value_size = strlen(type);
    return MHD_YES;
}

static inline bool form_read(const void *body, size_t size, size_t piece,
    const struct multipart_receiver *receiver, struct error *err) {
    struct multipart *m;
    char connection; /* only its address is used */
    if (!multipart_create((struct MHD_Connection *)&connection, receiver, &m, err))
        return false;
    for (size_t at = 0; at < size; at += piece)
        if (!multipart_write(
                m, (const char *)body + at, size - at < piece ? size - at : piece, err)) {
            multipart_abort(m);
            return false;
        }
    return multipart_end(m, err);
}

#endif
