#include "base/disk_room.h"

#include "base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>

#define MIB ((uint64_t)1 << 20)

/* Returns the part of a disk that uploads must leave free for jobs. */
static uint64_t kept_bytes(const struct statvfs *disk) {
    const uint64_t part = (uint64_t)disk->f_blocks * disk->f_frsize / DISK_ROOM_KEPT_PART;
    return part < DISK_ROOM_KEPT_BYTES ? part : DISK_ROOM_KEPT_BYTES;
}

bool disk_room_check(int fd, uint64_t bytes, const char *what, struct error *err) {
    struct statvfs disk;
    if (fstatvfs(fd, &disk) != 0)
        return true;
    const uint64_t free_bytes = (uint64_t)disk.f_bavail * disk.f_frsize;
    const uint64_t kept = kept_bytes(&disk);
    if (free_bytes >= kept && free_bytes - kept >= bytes)
        return true;
    return error_set(err, ERROR_NO_SPACE,
        "cannot write %.200s: %llu MiB more are needed, %llu MiB are free, and %llu MiB of these "
        "are "
        "kept for jobs",
        what, (unsigned long long)((bytes + MIB - 1) / MIB), (unsigned long long)(free_bytes / MIB),
        (unsigned long long)(kept / MIB));
}

bool disk_room_grow(int fd, uint64_t size, uint64_t announced, uint64_t *taken, const char *what,
    struct error *err) {
    if (size <= *taken)
        return true;
    uint64_t wanted = size + DISK_ROOM_STEP_BYTES;
    if (announced > 0 && announced < wanted)
        wanted = announced > size ? announced : size;
    if (!disk_room_check(fd, wanted - *taken, what, err))
        return false;
    /* Detects a disk that has filled up just now. Any other error means that the file system cannot
     * reserve space; then the write is tried anyway. */
    if (fallocate(fd, FALLOC_FL_KEEP_SIZE, (off_t)*taken, (off_t)(wanted - *taken)) != 0 &&
        error_code_of_write(errno) == ERROR_NO_SPACE)
        return error_set(err, ERROR_NO_SPACE, "cannot write %.200s: the disk is full", what);
    *taken = wanted;
    return true;
}
