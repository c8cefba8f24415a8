/* Disk space for uploaded files. Space is reserved in steps ahead of the bytes received, and never
 * for a size that a header announces. The last part of a disk is kept free for jobs and their
 * results, so when the disk fills up, uploads are refused before jobs fail. */
#ifndef BASE_DISK_ROOM_H
#define BASE_DISK_ROOM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Checks that `bytes` more may be written to the file system of `fd`, a file or folder. Reserves
 * nothing. ERROR_NO_SPACE names `what` ("the data set cats"), the free space, and the space kept
 * for jobs. Returns true if the file system does not report its space. */
bool disk_room_check(int fd, uint64_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));

/* Call before a file grows to `size` bytes. If fewer bytes are reserved, reserves up to `size` +
 * DISK_ROOM_STEP_BYTES, but not beyond `announced` (0: unknown). *taken is the number of bytes
 * reserved; the caller keeps it and begins with 0. ERROR_NO_SPACE as in disk_room_check. */
bool disk_room_grow(int fd, uint64_t size, uint64_t announced, uint64_t *taken, const char *what,
    struct error *err) __attribute__((warn_unused_result));

#endif
