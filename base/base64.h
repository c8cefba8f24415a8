/* Base64 (RFC 4648, section 4, with padding): bytes to text and back. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stdbool.h>
#include <stddef.h>

/* malloc'd, NUL-terminated, *out_length (may be NULL) characters; NULL when memory is short. */
char *base64_encode(const void *data, size_t size, size_t *out_length);

/* Strict: no other characters, no line breaks, padding where it belongs and nowhere else, no stray
 * bits. *out is malloc'd, never of nothing. False with *wrong at the first character that does not
 * belong, or at `length` where something is missing; *wrong is SIZE_MAX when memory is short. */
bool base64_decode(const char *text, size_t length, void **out, size_t *out_size, size_t *wrong)
    __attribute__((warn_unused_result));

#endif
