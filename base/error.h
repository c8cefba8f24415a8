/* Errors. The caller owns the struct.
 *
 * Every fallible function takes a `struct error *` and returns false (or NULL) after filling it.
 * The message is one sentence for a person: what was wrong, with which value, and what would be
 * right. `param`, `value` and `allowed` carry the same three facts for a program; they may be
 * empty. error.c maps codes to HTTP statuses, once.
 *
 * A zeroed struct error means "no error". The pointer may be NULL if the caller does not need the
 * error.
 */
#ifndef BASE_ERROR_H
#define BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>

enum error_code {
    ERROR_NONE = 0,
    ERROR_INVALID,     /* wrong request or file: 400 */
    ERROR_FORBIDDEN,   /* not allowed for this caller: 403 */
    ERROR_NOT_FOUND,   /* no such thing: 404 */
    ERROR_CONFLICT,    /* not possible in this state: 409 */
    ERROR_TOO_LARGE,   /* over a limit in bytes: 413 */
    ERROR_BUSY,        /* a queue is full, try again: 429 */
    ERROR_UNSUPPORTED, /* well-formed, but not supported: 501 */
    ERROR_UNAVAILABLE, /* starting or stopping: 503 */
    ERROR_CANCELLED,   /* the client cancelled or disconnected: 499 */
    ERROR_TIMEOUT,     /* took longer than the caller's limit: 504 */
    ERROR_NO_MEMORY,   /* host or device memory is short: 507 */
    ERROR_NO_SPACE,    /* the disk is full: 507 */
    ERROR_IO,          /* the system refused to read or write: 500 */
    ERROR_DEVICE,      /* the accelerator failed: 500 */
    ERROR_DEVICE_LOST, /* the accelerator cannot be used any more: 500, and the process ends */
    ERROR_PEER_LOST,   /* another process of the same job is gone: 500 */
    ERROR_INTERNAL,    /* a bug of ours: 500 */
};

#define ERROR_ALLOWED_BYTES 512 /* room for all schedulers' names, or one's options */

struct error {
    enum error_code code;
    char message[ERROR_ALLOWED_BYTES + 256];
    char param[64];                    /* name of the field, option or tensor */
    char value[128];                   /* the value given */
    char allowed[ERROR_ALLOWED_BYTES]; /* the values allowed */
};

/* Fills *err (which may be NULL) with a formatted message. Always returns false, so that a function
 * can `return error_set(err, ...)`. Clears param, value and allowed. */
bool error_set(struct error *err, enum error_code code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Does what error_set does, for one field: the message is "PARAM: VALUE is not allowed; ALLOWED".
 * Sets param, value and allowed. Always returns false. */
bool error_field(struct error *err, const char *param, const char *value, const char *allowed, ...)
    __attribute__((format(printf, 4, 5)));

/* Puts "prefix: " before the message, to say where the error happened. Always returns false. */
bool error_prefix(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the API's stable word for a code: "invalid_request", "not_found", ... */
const char *error_code_name(enum error_code code);

/* Returns the HTTP status of a code; 200 for ERROR_NONE. */
int error_http_status(enum error_code code);

/* Returns the code for a write that failed with this errno: ERROR_NO_SPACE or ERROR_IO. */
enum error_code error_code_of_write(int reason);

#endif
