/* Base64 (RFC 4648, with padding), one way: bytes to text. */
#ifndef BASE_BASE64_H
#define BASE_BASE64_H

#include <stddef.h>

/* malloc'd, NUL-terminated, *out_length (may be NULL) characters; NULL when memory is short. */
char *base64_encode(const void *data, size_t size, size_t *out_length);

#endif
