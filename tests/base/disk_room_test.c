/* Tests uploads to a simulated disk of 1,000 MiB: how much is reserved for each, and which are
 * refused because a twentieth of the disk is kept for jobs. */
#include "base/disk_room.h"
#include "tests/check.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>

#define MIB ((uint64_t)1 << 20)
#define DISK (1000 * MIB)
#define KEPT (50 * MIB) /* a twentieth */
#define STEP (64 * MIB) /* size of one reservation */

static uint64_t disk_bytes = DISK, free_bytes, set_aside;
static int refusal; /* errno of the next fallocate; 0: success */

/* The linker calls these instead of the C library's functions. */
int __wrap_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs64(int fd, struct statvfs *out);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t length);
int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length);

int __wrap_fstatvfs(int fd, struct statvfs *out) {
    (void)fd;
    *out = (struct statvfs){ .f_frsize = 4096,
        .f_bsize = 65536, /* must be ignored: f_frsize is the unit */
        .f_blocks = disk_bytes / 4096,
        .f_bavail = free_bytes / 4096 };
    return 0;
}

int __wrap_fstatvfs64(int fd, struct statvfs *out) {
    return __wrap_fstatvfs(fd, out);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t length) {
    (void)fd, (void)offset;
    CHECK(mode == FALLOC_FL_KEEP_SIZE, "the file's size is kept, not mode %d", mode);
    if (refusal) {
        errno = refusal;
        return -1;
    }
    set_aside += (uint64_t)length;
    free_bytes -= (uint64_t)length;
    return 0;
}

int __wrap_fallocate64(int fd, int mode, off_t offset, off_t length) {
    return __wrap_fallocate(fd, mode, offset, length);
}

static void begin(uint64_t disk, uint64_t free_now) {
    disk_bytes = disk;
    free_bytes = free_now;
    set_aside = 0;
    refusal = 0;
}

static void a_part_is_kept_for_jobs(void) {
    struct error err = { 0 };
    begin(DISK, KEPT + 10 * MIB);
    CHECK(disk_room_check(3, 10 * MIB, "it", &err), "%s", err.message);
    CHECK(
        !disk_room_check(3, 10 * MIB + 1, "the data set cats", &err) && err.code == ERROR_NO_SPACE,
        "one byte over the limit is accepted");
    CHECK_CONTAINS(err.message, "the data set cats: 11 MiB more are needed, 60 MiB are free");
    begin(DISK, KEPT - MIB);
    CHECK(!disk_room_check(3, 0, "it", &err),
        "a write is accepted although less is free than is kept for jobs");
    begin(UINT64_C(1) << 40, 1025 * MIB);
    CHECK(disk_room_check(3, MIB, "it", &err) && !disk_room_check(3, 2 * MIB, "it", &err),
        "on a large disk not exactly 1 GiB is kept for jobs");
    printf("kept: %d MiB of 1,000, 1,024 of 1,048,576\n", (int)(KEPT / MIB));
}

static void a_header_takes_nothing(void) {
    struct error err = { 0 };
    uint64_t taken = 0;
    begin(DISK, DISK);
    CHECK(disk_room_grow(3, MIB, 800 * MIB, &taken, "it", &err), "%s", err.message);
    printf("set aside for the first MiB of 800: %d MiB\n", (int)(set_aside / MIB));
    CHECK(set_aside == MIB + STEP && taken == set_aside, "%d MiB", (int)(set_aside / MIB));
    CHECK(disk_room_grow(3, MIB + STEP, 800 * MIB, &taken, "it", &err) && set_aside == taken &&
              taken == MIB + STEP,
        "bytes within the reserved space reserve more");
    CHECK(disk_room_grow(3, MIB + STEP + 1, 800 * MIB, &taken, "it", &err) && set_aside == taken &&
              taken == MIB + 2 * STEP + 1,
        "one byte over the reserved space does not reserve one more step");
}

static void no_more_than_comes_is_set_aside(void) {
    struct error err = { 0 };
    uint64_t taken = 0;
    begin(DISK, DISK);
    CHECK(disk_room_grow(3, MIB, 3 * MIB, &taken, "it", &err) && taken == 3 * MIB, "%s: %d MiB",
        err.message, (int)(taken / MIB));
    taken = 0;
    CHECK(disk_room_grow(3, MIB, 0, &taken, "it", &err) && taken == MIB + STEP,
        "a file of unknown size reserves %d MiB instead of its bytes and one step",
        (int)(taken / MIB));
    taken = 0;
    CHECK(disk_room_grow(3, 5 * MIB, 3 * MIB, &taken, "it", &err) && taken == 5 * MIB,
        "a file larger than announced reserves %d MiB instead of exactly its bytes",
        (int)(taken / MIB));
}

static void a_full_disk_refuses(void) {
    struct error err = { 0 };
    uint64_t taken = 0;
    begin(DISK, KEPT + STEP);
    CHECK(!disk_room_grow(3, MIB, 0, &taken, "it", &err) && err.code == ERROR_NO_SPACE &&
              taken == 0 && set_aside == 0,
        "a reservation that would use the space kept for jobs is not refused, or reserves "
        "something");
    begin(DISK, DISK);
    refusal = ENOSPC;
    CHECK(
        !disk_room_grow(3, MIB, 0, &taken, "it", &err) && err.code == ERROR_NO_SPACE && taken == 0,
        "a disk that is full at the reservation is not ERROR_NO_SPACE");
    refusal = EOPNOTSUPP;
    CHECK(disk_room_grow(3, MIB, 0, &taken, "it", &err) && taken == MIB + STEP,
        "a file system without fallocate does not count the bytes as reserved");
}

int main(void) {
    a_part_is_kept_for_jobs();
    a_header_takes_nothing();
    no_more_than_comes_is_set_aside();
    a_full_disk_refuses();
    return check_done();
}
