/* SHA-256 (FIPS 180-4), for deriving names from bytes that anybody may have chosen. Implemented by
 * nettle, which uses the processor's SHA instructions where there are any. */
#ifndef BASE_SHA256_H
#define BASE_SHA256_H

#include <nettle/sha2.h>
#include <stddef.h>
#include <stdint.h>

struct digest {
    uint8_t bytes[SHA256_DIGEST_SIZE];
};

struct sha256 {
    struct sha256_ctx state;
};

void sha256_begin(struct sha256 *sha);
void sha256_add(struct sha256 *sha, const void *bytes, size_t size);
/* Adds the text with its terminating NUL, so that two texts differ from their concatenation. */
void sha256_add_text(struct sha256 *sha, const char *text);
struct digest sha256_end(struct sha256 *sha);

struct digest sha256_of(const void *bytes, size_t size);

/* 64 lower-case hexadecimal digits and a NUL. */
#define DIGEST_TEXT_BYTES 65
void digest_to_text(const struct digest *digest, char out[DIGEST_TEXT_BYTES]);

#endif
