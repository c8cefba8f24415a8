/* API keys: who may call the daemon. A key file has one line per key, `NAME SHA256 [RIGHT,...]`.
 * NAME is for logs and to tell callers apart, SHA256 is the digest of the key in 64 hexadecimal
 * digits, and RIGHTs are additional rights. Empty lines and lines that begin with # are ignored.
 * `latentd key` adds a line. */
#ifndef SERVER_KEYS_KEYS_H
#define SERVER_KEYS_KEYS_H

#include "base/error.h"
#include "base/limits.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>

struct api_keys;

enum key_right {
    KEY_MAY_PRIORITY = 1, /* "priority": may use a priority above 0 in requests */
    KEY_MAY_ALL_JOBS = 2, /* "all-jobs": may see and control all callers' jobs */
};
#define KEY_MAY_EVERYTHING (KEY_MAY_PRIORITY | KEY_MAY_ALL_JOBS)
#define KEY_RIGHTS_ALLOWED "priority and all-jobs, with a comma between two"

/* Parses "priority,all-jobs" into a set of enum key_right. Returns false for an unknown or repeated
 * word. */
bool key_rights_parse(const char *text, size_t length, unsigned *out)
    __attribute__((warn_unused_result));

/* Reads a key file. ERROR_INVALID names the line. A file without any key gives an empty set. */
bool api_keys_parse(const char *text, size_t size, struct api_keys **out, struct error *err)
    __attribute__((warn_unused_result));
bool api_keys_read(const char *path, struct api_keys **out, struct error *err)
    __attribute__((warn_unused_result));
void api_keys_destroy(struct api_keys *keys); /* NULL is fine */

int api_keys_count(const struct api_keys *keys);
bool api_keys_has_name(const struct api_keys *keys, const char *name);

/* Returns the name of the key with this digest, or NULL if there is none. Sets *rights, a set of
 * enum key_right. Compares every digest to its last byte, so the time taken reveals nothing about
 * the keys. */
const char *api_keys_find(
    const struct api_keys *keys, const struct digest *digest, unsigned *rights);

/* Compares two digests in constant time. */
bool digest_equals(const struct digest *a, const struct digest *b);

/* Returns whether the text may be the name of a key: 1 to KEY_NAME_MAX_BYTES letters, digits, '.',
 * '_' and '-', beginning with a letter or a digit. */
bool api_key_name_is_valid(const char *name, size_t length);

#endif
