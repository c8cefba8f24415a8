/* Disk space for uploaded files. It is reserved in steps ahead of the bytes received, never by what
 * a header announces. The last part of a disk is kept for jobs and their results, so uploads are
 * refused first. */
#ifndef BASE_DISK_ROOM_H
#define BASE_DISK_ROOM_H

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* Checks that `bytes` more may be written to the file system of `fd`, a file or folder.
 * ERROR_NO_SPACE names `what` ("the data set cats"), the free and the kept space. Returns true if
 * the file system does not report its space. Reserves nothing. */
bool disk_room_check(int fd, uint64_t bytes, const char *what, struct error *err)
    __attribute__((warn_unused_result));

/* Call it before a file grows to `size` bytes: reserves DISK_ROOM_STEP_BYTES beyond that if less is
 * reserved, but no more than `announced` (0: unknown). *taken is the number of bytes reserved, 0 at
 * first; the caller keeps it. ERROR_NO_SPACE as disk_room_check. */
bool disk_room_grow(int fd, uint64_t size, uint64_t announced, uint64_t *taken, const char *what,
    struct error *err) __attribute__((warn_unused_result));

#endif
