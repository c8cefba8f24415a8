/* How much memory this process may still take, and who says so.
 *
 * A system promises any amount and kills the process when it is used, so that whoever is about to
 * take much asks first. The answer is the least of
 *  - MemAvailable of /proc/meminfo: what is free or easily made so;
 *  - what the process's control group and every one above it leave: memory.max of version 2,
 *    memory.limit_in_bytes of version 1, less what is used and is not cache of idle files;
 *  - RLIMIT_AS less the address space in use, and RLIMIT_DATA less the writable memory in use.
 * Any thread.
 */
#ifndef KERNELS_AVAILABLE_H
#define KERNELS_AVAILABLE_H

#include "base/error.h"

#include <stddef.h>

#define AVAILABLE_WHY_BYTES 192

struct available {
    size_t bytes;                  /* SIZE_MAX if nobody says */
    char why[AVAILABLE_WHY_BYTES]; /* "RLIMIT_AS is 140 MiB, 118 MiB are in use"; or empty */
};

/* `root` stands before /proc and /sys: "" but in tests. */
void available_read(const char *root, struct available *out);

/* Whether the system maps `bytes` more, tried and given back at once. For what a refusal would
 * break: libraries that write through a pointer they did not get. Otherwise ERROR_NO_MEMORY, with
 * the numbers; `what` it is for: "making a product's code". */
bool available_headroom(size_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));

#endif
