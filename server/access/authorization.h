/* The key in an Authorization header (RFC 6750, RFC 7617): `Bearer KEY`, or `Basic` with the base64
 * of KEY or of USER:KEY, as clients send it that know only names and passwords. */
#ifndef SERVER_ACCESS_AUTHORIZATION_H
#define SERVER_ACCESS_AUTHORIZATION_H

#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>

/* The digest of the key that the header's value presents; the key itself is kept nowhere. False if
 * it is of another scheme, malformed, or longer than KEY_MAX_BYTES. */
bool authorization_digest(const char *value, size_t length, struct digest *out)
    __attribute__((warn_unused_result));

#endif
