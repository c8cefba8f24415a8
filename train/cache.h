/* What is dear to compute and follows from other bytes, kept on disk by the name of those bytes, so
 * that the next job on the same pictures has it at once. A folder that may be deleted, in parts or
 * in full: what is missing or damaged is computed again.
 *
 * FOLDER/XX/NAME, each written as a whole: a head with the name, the size and a sum, then the
 * bytes. Several processes may share a folder. */
#ifndef TRAIN_CACHE_H
#define TRAIN_CACHE_H

#include "base/error.h"
#include "base/sha256.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether all `size` bytes are there and right; then `out` (NULL: it is only asked) has them. Else
 * errno says why: ENOENT where there is none, EBADMSG of a damaged file, which is named in the log
 * and deleted. */
bool cache_read(const char *folder, const struct digest *name, void *out, size_t size);
/* Whether there is a file of it, right or not. */
bool cache_has(const char *folder, const struct digest *name);
/* Says that it is wanted, so that cache_trim deletes others first. */
void cache_touch(const char *folder, const struct digest *name);
/* Makes the folder where it is missing; not the one above. */
bool cache_write(const char *folder, const struct digest *name, const void *bytes, size_t size,
    struct error *err) __attribute__((warn_unused_result));

/* Deletes what was written or touched longest ago until the rest has at most `max_bytes`. */
bool cache_trim(const char *folder, uint64_t max_bytes, struct error *err)
    __attribute__((warn_unused_result));

#endif
