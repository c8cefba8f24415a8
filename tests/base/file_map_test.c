/* A mapped file that is truncated or overwritten: no signal ends the process, and file_map_intact
 * reports that the file has changed. */
#include "base/file_map.h"
#include "tests/check.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (4 * 4096 + 100)

static char path[64] = "/tmp/file_map_test.XXXXXX";

static void fill_file(void) {
    char bytes[BYTES];
    memset(bytes, 7, sizeof(bytes));
    int fd = open(path, O_WRONLY | O_TRUNC);
    CHECK(write(fd, bytes, sizeof(bytes)) == BYTES, "cannot write %s", path);
    close(fd);
}

static unsigned sum(const struct file_map *map) {
    unsigned total = 0;
    for (size_t i = 0; i < map->size; i++)
        total += map->bytes[i];
    return total;
}

static struct file_map open_map(void) {
    struct file_map map;
    struct error err = { 0 };
    CHECK(file_map_open(path, &map, &err), "%s", err.message);
    return map;
}

static void untouched_file_is_intact(void) {
    struct file_map map = open_map();
    struct error err = { 0 };
    CHECK(sum(&map) == 7 * BYTES, "sum %u", sum(&map));
    CHECK(file_map_intact(&map, &err), "%s", err.message);
    file_map_close(&map);
}

/* The file is cut before anything was read, so the pages are not in memory yet. */
static void cut_file_reads_as_zeros(off_t length) {
    fill_file();
    struct file_map map = open_map();
    struct error err = { 0 };
    CHECK(truncate(path, length) == 0, "cannot cut %s", path);
    unsigned left = sum(&map);
    printf("cut to %lld of %d bytes: the bytes' sum is %u\n", (long long)length, BYTES, left);
    CHECK(left == 7 * (unsigned)length, "sum %u", left);
    CHECK(!file_map_intact(&map, &err), "a file that was cut short is reported as intact");
    CHECK(err.code == ERROR_IO, "code %d", (int)err.code);
    CHECK_CONTAINS(err.message, "changed while it was read");
    /* The file is whole again, but the map still has a page of zeros. */
    fill_file();
    CHECK(!file_map_intact(&map, &err),
        "a file that was cut and made whole again is reported as intact");
    file_map_close(&map);
}

static void overwritten_file_is_noticed(void) {
    fill_file();
    struct file_map map = open_map();
    struct error err = { 0 };
    const struct timespec times[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0, "cannot date %s", path);
    CHECK(!file_map_intact(&map, &err), "a file with another time of change is reported as intact");
    CHECK_CONTAINS(err.message, "written to while it was read");
    file_map_close(&map);
}

/* Replaces munmap for the code under test. `during_munmap` runs while the range is free and
 * file_map_close has not returned yet. */
static void (*during_munmap)(void);
int __real_munmap(void *address, size_t bytes);
int __wrap_munmap(void *address, size_t bytes);
int __wrap_munmap(void *address, size_t bytes) {
    const int result = __real_munmap(address, bytes);
    void (*action)(void) = during_munmap;
    during_munmap = NULL;
    if (action)
        action();
    return result;
}

static struct file_map second;

/* Does what another thread might do: maps the file into the free range, truncates the file and
 * reads it. */
static void open_cut_and_read(void) {
    second = open_map();
    CHECK(truncate(path, 2 * 4096) == 0, "cannot cut %s", path);
    CHECK(sum(&second) == 7 * 2 * 4096, "sum %u", sum(&second));
}

static void damage_is_charged_to_the_map_that_has_the_range(void) {
    struct error err = { 0 };
    fill_file();
    struct file_map first = open_map();
    const uint8_t *range = first.bytes;
    during_munmap = open_cut_and_read;
    file_map_close(&first);
    CHECK(second.bytes == range,
        "the second map is not at the first one's address, so this test proves nothing");
    /* The file is whole again and has its old date. Only the damage that file_map recorded shows
     * that it changed. */
    fill_file();
    const struct timespec times[2] = { second.modified, second.modified };
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0, "cannot date %s", path);
    CHECK(!file_map_intact(&second, &err), "a map that reads zeros is reported as intact");
    printf("cut while another map was closed: %s\n", err.message);
    file_map_close(&second);
}

/* The SIGBUS handler ignores memory that no file_map owns. */
static void other_sigbus_still_kills(void) {
    struct file_map map = open_map();
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGALRM, SIG_DFL);
        alarm(10); /* in case the handler loops */
        fill_file();
        int fd = open(path, O_RDONLY);
        const volatile char *bytes = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE, fd, 0);
        if (truncate(path, 0) != 0)
            _exit(2);
        _exit(bytes[BYTES - 1]);
    }
    int status = 0;
    waitpid(child, &status, 0);
    /* A sanitizer reports the signal, then exits with its own status or signal. */
    const int number = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    CHECK(number == SIGBUS || number == SIGABRT || (WIFEXITED(status) && WEXITSTATUS(status) > 2),
        "the child ended with status %d", status);
    file_map_close(&map);
}

int main(void) {
    close(mkstemp(path));
    fill_file();
    untouched_file_is_intact();
    cut_file_reads_as_zeros(2 * 4096);
    cut_file_reads_as_zeros(4096 + 10);
    cut_file_reads_as_zeros(0);
    overwritten_file_is_noticed();
    damage_is_charged_to_the_map_that_has_the_range();
    other_sigbus_still_kills();
    unlink(path);
    return check_done();
}
