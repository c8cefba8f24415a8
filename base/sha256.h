/* SHA-256 (FIPS 180-4), for names derived from bytes that anybody may have chosen. Uses nettle,
 * which uses the processor's SHA instructions if it has them. */
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
/* Adds the text with its terminating NUL, so that "ab", "c" and "a", "bc" have different
 * digests. */
void sha256_add_text(struct sha256 *sha, const char *text);
struct digest sha256_end(struct sha256 *sha);

struct digest sha256_of(const void *bytes, size_t size);

/* Writes 64 lower-case hexadecimal digits and a NUL. */
#define DIGEST_TEXT_BYTES 65
void digest_to_text(const struct digest *digest, char out[DIGEST_TEXT_BYTES]);

#endif
