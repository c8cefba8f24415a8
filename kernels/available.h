/* How much memory this process may still allocate, and which limit determines that.
 *
 * The system grants any amount and kills the process later, when the memory is used. Code that is
 * about to allocate much therefore asks here first. The answer is the smallest of
 *  - MemAvailable of /proc/meminfo: memory that is free or easily freed;
 *  - what is left in the process's control group and in each group above it: memory.max (version 2)
 *    or memory.limit_in_bytes (version 1), less the usage (file cache does not count as usage);
 *  - RLIMIT_AS less the address space in use, and RLIMIT_DATA less the writable memory in use.
 * Any thread.
 */
#ifndef KERNELS_AVAILABLE_H
#define KERNELS_AVAILABLE_H

#include "base/error.h"

#include <stddef.h>

#define AVAILABLE_WHY_BYTES 192

struct available {
    size_t bytes;                  /* SIZE_MAX if there is no limit */
    char why[AVAILABLE_WHY_BYTES]; /* "RLIMIT_AS is 140 MiB, 118 MiB are in use"; or empty */
};

/* Reads the limits. `root` is put before /proc and /sys; only tests pass anything but "". */
void available_read(const char *root, struct available *out);

/* Leaves one of `ranks` processes its even share of memory that all of them are about to take. They
 * must have read it before any of them takes it. 0 and 1 change nothing. */
void available_share(struct available *a, int ranks);

/* Checks that the system can map `bytes` more, by mapping and unmapping that many. Call it before
 * code that crashes when it gets no memory, such as a library that does not check its allocations.
 * On refusal returns false with ERROR_NO_MEMORY and the numbers. `what` names the purpose in the
 * message: "making a product's code". */
bool available_headroom(size_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));

#endif
