#include "base/sha256.h"

#include "base/text/hex.h"

#include <string.h>

void sha256_begin(struct sha256 *sha) {
    sha256_init(&sha->state);
}

void sha256_add(struct sha256 *sha, const void *bytes, size_t size) {
    sha256_update(&sha->state, size, bytes);
}

void sha256_add_text(struct sha256 *sha, const char *text) {
    sha256_add(sha, text, strlen(text) + 1);
}

struct digest sha256_end(struct sha256 *sha) {
    struct digest digest;
    sha256_digest(&sha->state, sizeof(digest.bytes), digest.bytes);
    return digest;
}

struct digest sha256_of(const void *bytes, size_t size) {
    struct sha256 sha;
    sha256_begin(&sha);
    sha256_add(&sha, bytes, size);
    return sha256_end(&sha);
}

void digest_to_text(const struct digest *digest, char out[DIGEST_TEXT_BYTES]) {
    hex_write(out, digest->bytes, SHA256_DIGEST_SIZE);
}
