/* Reads the key in an Authorization header (RFC 6750, RFC 7617). Accepts `Bearer KEY`, or `Basic`
 * with the base64 of KEY or of USER:KEY, for clients that only support user names and passwords. */
#ifndef SERVER_ACCESS_AUTHORIZATION_H
#define SERVER_ACCESS_AUTHORIZATION_H

#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>

/* Computes the digest of the key in the header's value; the key itself is not kept. Returns false
 * if the scheme is neither of the two, the value is malformed, or the key is longer than
 * KEY_MAX_BYTES. */
bool authorization_digest(const char *value, size_t length, struct digest *out)
    __attribute__((warn_unused_result));

#endif
