#include "tests/train/datasets/folder_rig.h"

#include "base/file.h"
#include "tests/check.h"

#include <errno.h>
#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *pictures;
static char folder[64];

void rig_begin(const char *recorded) {
    pictures = recorded;
    snprintf(folder, sizeof(folder), "/tmp/datasets_test.XXXXXX");
    CHECK(mkdtemp(folder), "cannot make %s", folder);
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *ftw) {
    (void)st;
    (void)kind;
    (void)ftw;
    return remove(path);
}

void rig_end(void) {
    nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *rig_path(const char *path) {
    static char paths[4][512];
    static int next;
    char *out = paths[next++ % 4];
    snprintf(out, sizeof(paths[0]), "%s/%s", folder, path);
    return out;
}

/* Makes the folders of a path. Returns the whole path. */
static const char *make_way(const char *path) {
    const char *whole = rig_path(path);
    char part[512];
    for (const char *slash = strchr(whole + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - whole), whole);
        CHECK(mkdir(part, 0777) == 0 || errno == EEXIST, "cannot make %s", part);
    }
    return whole;
}

void rig_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(make_way(path), "wb");
    CHECK(file && fwrite(bytes, 1, size, file) == size, "cannot write %s", path);
    if (file)
        fclose(file);
}

void rig_text(const char *path, const char *text) {
    rig_write(path, text, strlen(text));
}

void rig_picture(const char *path, const char *picture) {
    struct error err = { 0 };
    char *whole = file_join(pictures, picture), *bytes;
    size_t size;
    CHECK(file_read(whole, 1 << 20, &bytes, &size, &err), "%s", err.message);
    rig_write(path, bytes, size);
    free(bytes);
    free(whole);
}

void rig_link(const char *path, const char *target) {
    CHECK(symlink(target, make_way(path)) == 0, "cannot link %s", path);
}

void rig_fifo(const char *path) {
    CHECK(mkfifo(make_way(path), 0666) == 0, "cannot make %s", path);
}
