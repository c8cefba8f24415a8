/* A cache on disk for results that are expensive to compute. Each is named by a digest of what it
 * depends on, so the next job on the same pictures finds it. The folder may be deleted, in part or
 * as a whole: missing or damaged entries are computed again.
 *
 * Files are FOLDER/XX/NAME, each written as a whole: a header with the name, the size and a
 * checksum, then the bytes. Several processes may share a folder. */
#ifndef TRAIN_EXAMPLES_CACHE_H
#define TRAIN_EXAMPLES_CACHE_H

#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads an entry. Returns true if all `size` bytes exist and are valid, and copies them to `out`
 * (NULL: only checks). Otherwise errno tells why: ENOENT if there is no file, EBADMSG if it is
 * damaged. A damaged file is logged and deleted. */
bool cache_read(const char *folder, const struct digest *name, void *out, size_t size);
/* Returns whether there is a file of this name, valid or not. */
bool cache_has(const char *folder, const struct digest *name);
/* Marks the entry as used now, so that cache_trim deletes other entries first. */
void cache_touch(const char *folder, const struct digest *name);
/* Writes an entry. Makes the folder if it is missing, but not its parent. */
bool cache_write(const char *folder, const struct digest *name, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));

/* Deletes entries, the least recently written or touched first, until the rest takes at most
 * `max_bytes`. */
bool cache_trim(const char *folder, uint64_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

#endif
