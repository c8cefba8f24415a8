/* Base64 (RFC 4648, section 4, with padding): converts bytes to text and back. */
#ifndef BASE_TEXT_BASE64_H
#define BASE_TEXT_BASE64_H

#include <stdbool.h>
#include <stddef.h>

/* Returns malloc'd, NUL-terminated text, and its length in *out_length (may be NULL). NULL if there
 * is no memory. */
char *base64_encode(const void *data, size_t size, size_t *out_length);

/* Decodes strictly: no other characters, no line breaks, correct padding, unused bits 0. *out is
 * malloc'd, even for zero bytes. On failure *wrong is the index of the first wrong character,
 * `length` if something is missing, or SIZE_MAX if there is no memory. */
bool base64_decode(const char *text, size_t length, void **out, size_t *out_size, size_t *wrong)
    __attribute__((warn_unused_result));

#endif
