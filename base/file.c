#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int file_open_regular(const char *path, uint64_t *size, struct error *err) {
    /* O_NONBLOCK: opening a FIFO must not wait for a writer; it is refused right after. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        error_set(err, errno == ENOENT || errno == ENOTDIR ? ERROR_NOT_FOUND : ERROR_IO,
            "cannot open %s: %s", path, strerror(errno));
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) != 0) {
        error_set(err, ERROR_IO, "cannot stat %s: %s", path, strerror(errno));
    } else if (!S_ISREG(st.st_mode)) {
        error_set(err, ERROR_INVALID, "%s is not a regular file", path);
    } else {
        *size = (uint64_t)st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

static bool read_all(int fd, const char *path, char *bytes, size_t size, struct error *err) {
    for (size_t done = 0; done < size;) {
        ssize_t n = read(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_set(err, ERROR_IO, "cannot read %s: %s", path, strerror(errno));
        if (n == 0)
            return error_set(err, ERROR_IO, "%s became shorter while it was read", path);
        done += (size_t)n;
    }
    return true;
}

bool file_read(const char *path, size_t max_bytes, char **out, size_t *size, struct error *err) {
    uint64_t length;
    int fd = file_open_regular(path, &length, err);
    if (fd < 0)
        return false;
    char *bytes = NULL;
    bool ok = false;
    if (length > max_bytes)
        error_set(err, ERROR_TOO_LARGE, "%s has %llu bytes; at most %zu are read", path,
            (unsigned long long)length, max_bytes);
    else if (!(bytes = malloc((size_t)length + 1)))
        error_set(err, ERROR_NO_MEMORY, "no memory for the %llu bytes of %s",
            (unsigned long long)length, path);
    else
        ok = read_all(fd, path, bytes, (size_t)length, err);
    close(fd);
    if (!ok) {
        free(bytes);
        return false;
    }
    bytes[length] = 0;
    *out = bytes;
    *size = (size_t)length;
    return true;
}

static bool write_all(int fd, const struct file_part *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t done = 0; done < parts[i].size;) {
            ssize_t n = write(fd, (const char *)parts[i].bytes + done, parts[i].size - done);
            if (n < 0 && errno != EINTR)
                return false;
            if (n > 0)
                done += (size_t)n;
        }
    }
    return true;
}

/* A rename is durable only once the folder that holds the name is. Some file systems refuse to sync
 * a folder; the data itself is already on disk then, so that is not an error. */
static void sync_folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

bool file_write(const char *path, const struct file_part *parts, size_t count, struct error *err) {
    char *fresh = NULL;
    if (asprintf(&fresh, "%s.XXXXXX", path) < 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
    int fd = mkostemp(fresh, O_CLOEXEC);
    if (fd < 0) {
        error_set(err, ERROR_IO, "cannot create %s: %s", fresh, strerror(errno));
        free(fresh);
        return false;
    }
    bool ok = write_all(fd, parts, count) && fchmod(fd, 0644) == 0 && fsync(fd) == 0;
    int reason = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    if (ok && rename(fresh, path) != 0) {
        ok = false;
        reason = errno;
    }
    if (ok) {
        sync_folder_of(path);
    } else {
        unlink(fresh);
        error_set(err, ERROR_IO, "cannot write %s: %s", path, strerror(reason));
    }
    free(fresh);
    return ok;
}

bool file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool file_is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *file_join(const char *folder, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}
