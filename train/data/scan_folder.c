#include "train/data/scan.h"

#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_below(const char *path, const char *root) {
    const size_t length = strlen(root);
    return strncmp(path, root, length) == 0 &&
           (path[length] == 0 || path[length] == '/' || strcmp(root, "/") == 0);
}

bool scan_folder_init(
    struct scan_folder *folder, const char *path, const char *root, struct error *err) {
    *folder = (struct scan_folder){ .path = realpath(path, NULL) };
    if (!folder->path)
        return error_set(err, errno == ENOENT || errno == ENOTDIR ? ERROR_NOT_FOUND : ERROR_IO,
            "cannot open the data set %s: %s", path, strerror(errno));
    if (!file_is_folder(folder->path))
        return error_set(err, ERROR_INVALID, "the data set %s is not a folder", path);
    if (!root)
        return true;
    folder->root = realpath(root, NULL);
    if (!folder->root)
        return error_set(
            err, ERROR_IO, "cannot open the folder of data sets %s: %s", root, strerror(errno));
    return is_below(folder->path, folder->root) ||
           error_set(
               err, ERROR_INVALID, "the data set %s lies outside of the folder of data sets", path);
}

void scan_folder_finish(struct scan_folder *folder) {
    free(folder->path);
    free(folder->root);
    *folder = (struct scan_folder){ 0 };
}

/* Asks the system for the path of the file that was opened, with all links resolved. */
static bool stays_below(int fd, const char *path, const char *root, struct error *err) {
    char link[64], opened[PATH_MAX];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    const ssize_t length = readlink(link, opened, sizeof(opened) - 1);
    if (length < 0)
        return error_set(err, ERROR_IO, "cannot tell where %s is: %s", path, strerror(errno));
    opened[length] = 0;
    return is_below(opened, root) ||
           error_set(err, ERROR_INVALID, "a symbolic link leads out of the folder of data sets");
}

int scan_open(
    const struct scan_folder *folder, const char *path, uint64_t *size, struct error *err) {
    char *whole = file_join(folder->path, path);
    if (!whole) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
        return -1;
    }
    int fd = file_open_regular(whole, size, err);
    if (fd >= 0 && folder->root && !stays_below(fd, path, folder->root, err)) {
        close(fd);
        fd = -1;
    }
    free(whole);
    return fd;
}
