/* Room on a disk for files that are sent from outside. It is taken in steps ahead of the bytes that
 * have come, never by what a header announces, and the last of it is kept for jobs and their
 * results: what is sent is refused first. */
#ifndef BASE_DISK_ROOM_H
#define BASE_DISK_ROOM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Whether `bytes` more may be written to the file system of `fd`, of a file or folder.
 * ERROR_NO_SPACE names `what` ("the data set cats"), what is free and what is kept. True where the
 * file system does not say. Sets aside nothing. */
bool disk_room_check(int fd, uint64_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));

/* Before a file grows to `size` bytes: sets aside DISK_ROOM_STEP_BYTES more than that, but no more
 * than `announced` (0: nobody said how large it gets), where less is set aside. *taken is what is,
 * 0 to begin with; the caller keeps it. ERROR_NO_SPACE as disk_room_check. */
bool disk_room_grow(int fd, uint64_t size, uint64_t announced, uint64_t *taken, const char *what,
    struct error *err) __attribute__((warn_unused_result));

#endif
