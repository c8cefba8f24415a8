/* The cache of encoded pictures and texts on disk: written entries are read back, damaged ones are
 * not, and the oldest are deleted first. */
#include "train/examples/cache.h"

#include "base/log.h"
#include "tests/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 10000

static char folder[] = "/tmp/latentd-cache-XXXXXX";
static char content[BYTES];

static struct digest name_of(int i) {
    return sha256_of(&i, sizeof(i));
}

static void path_of(int i, char path[200]) {
    const struct digest name = name_of(i);
    char text[DIGEST_TEXT_BYTES];
    digest_to_text(&name, text);
    snprintf(path, 200, "%s/%.2s/%s", folder, text, text);
}

static void put(int i) {
    const struct digest name = name_of(i);
    struct error err = { 0 };
    CHECK(cache_write(folder, &name, content, BYTES, &err), "%s", err.message);
}

static bool is_there(int i) {
    const struct digest name = name_of(i);
    static char out[BYTES];
    memset(out, 0x55, BYTES);
    return cache_read(folder, &name, out, BYTES) && memcmp(out, content, BYTES) == 0 &&
           cache_read(folder, &name, NULL, BYTES);
}

static void what_was_written_comes_back(void) {
    const struct digest name = name_of(1);
    char more[BYTES + 1];
    CHECK(!is_there(1), "there is something before it was written");
    put(1);
    CHECK(is_there(1) && !is_there(2), "not what was written");
    CHECK(!cache_read(folder, &name, more, BYTES + 1), "another size is taken");
    CHECK(!is_there(1), "a file of another size is left");
    put(1);
    put(1);
    CHECK(is_there(1), "written twice, it is gone");
}

/* A small file with any byte changed, cut to any length, or with a byte appended must not be read,
 * and is deleted. */
static void damage_is_seen(void) {
    const struct digest name = name_of(3);
    struct error err = { 0 };
    char path[200], out[40];
    int damaged = 0;
    path_of(3, path);
    const size_t size = 8 + 32 + 16 + sizeof(out);
    for (size_t at = 0; at <= 2 * size; at++) {
        CHECK(cache_write(folder, &name, content, sizeof(out), &err), "%s", err.message);
        const int fd = open(path, O_RDWR);
        char byte;
        if (at < size) {
            CHECK(pread(fd, &byte, 1, (off_t)at) == 1, "no byte %zu", at);
            byte ^= 4;
            CHECK(pwrite(fd, &byte, 1, (off_t)at) == 1, "-");
        } else if (at < 2 * size) {
            CHECK(ftruncate(fd, (off_t)(at - size)) == 0, "-");
        } else {
            CHECK(pwrite(fd, "x", 1, (off_t)size) == 1, "-");
        }
        close(fd);
        damaged += !cache_read(folder, &name, out, sizeof(out)) && access(path, F_OK) != 0;
    }
    printf("%d of %zu damaged files are seen and deleted\n", damaged, 2 * size + 1);
    CHECK(damaged == (int)(2 * size + 1), "%d", damaged);
}

static void the_oldest_goes_first(void) {
    struct error err = { 0 };
    uint64_t each = 0;
    for (int i = 10; i < 20; i++) {
        char path[200];
        struct stat status;
        put(i);
        path_of(i, path);
        const struct timespec times[2] = { { 1000000 + i, 0 }, { 1000000 + i, 0 } };
        CHECK(utimensat(AT_FDCWD, path, times, 0) == 0 && stat(path, &status) == 0, "-");
        each = (uint64_t)status.st_blocks * 512;
    }
    const struct digest first = name_of(10), one = name_of(1);
    cache_touch(folder, &first);
    cache_touch(folder, &one);
    CHECK(cache_trim(folder, 5 * each, &err), "%s", err.message);
    for (int i = 11; i < 20; i++)
        CHECK(is_there(i) == (i >= 17), "%d is %sthere", i, i >= 17 ? "not " : "");
    CHECK(is_there(10) && is_there(1), "what was touched is gone");
    CHECK(cache_trim(folder, 0, &err) && !is_there(10) && !is_there(19), "something is left");
    CHECK(cache_trim("/nowhere/at/all", 0, &err), "%s", err.message);
}

static void a_folder_that_cannot_be_written_is_named(void) {
    const struct digest name = name_of(1);
    struct error err = { 0 };
    CHECK(!cache_write("/proc/latentd/cache", &name, content, BYTES, &err), "written");
    CHECK(err.code == ERROR_IO && strstr(err.message, "/proc/latentd/cache"), "%s", err.message);
    printf("%s\n", err.message);
}

int main(void) {
    char command[64];
    if (!mkdtemp(folder))
        return 1;
    for (int i = 0; i < BYTES; i++)
        content[i] = (char)(i * 7);
    what_was_written_comes_back();
    log_set_level(LOG_LEVEL_ERROR); /* hides a warning for each damaged file */
    damage_is_seen();
    log_set_level(LOG_LEVEL_WARNING);
    the_oldest_goes_first();
    a_folder_that_cannot_be_written_is_named();
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "-");
    return check_done();
}
