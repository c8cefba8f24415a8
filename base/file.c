#include "base/file.h"

#include "base/random.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

bool file_is_regular(int fd, const char *path, uint64_t *size, struct error *err) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return error_set(err, ERROR_IO, "cannot stat %s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, ERROR_INVALID, "%s is not a regular file", path);
    *size = (uint64_t)st.st_size;
    return true;
}

int file_open_regular(const char *path, uint64_t *size, struct error *err) {
    /* O_NONBLOCK: opening a FIFO must not wait for a writer. A FIFO is refused below. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        error_set(err, errno == ENOENT || errno == ENOTDIR ? ERROR_NOT_FOUND : ERROR_IO,
            "cannot open %s: %s", path, strerror(errno));
        return -1;
    }
    if (file_is_regular(fd, path, size, err))
        return fd;
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

/* Whether to repeat a failed read or write: it was interrupted, or the descriptor is non-blocking
 * and was not ready. In the second case waits until it is ready. */
static bool may_try_again(int fd, short events) {
    struct pollfd wait = { fd, events, 0 };
    if (errno != EAGAIN)
        return errno == EINTR;
    return poll(&wait, 1, -1) >= 0 || errno == EINTR;
}

bool file_read_stream(
    const char *path, size_t max_bytes, char **out, size_t *size, struct error *err) {
    const bool standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    int fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_IO, "cannot open %s: %s",
            path, strerror(errno));
    char *bytes = malloc(max_bytes + 1);
    size_t done = 0;
    ssize_t n = 1;
    while (bytes && n != 0 && done <= max_bytes) {
        n = read(fd, bytes + done, max_bytes + 1 - done);
        if (n < 0 && !may_try_again(fd, POLLIN))
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    bool ok = false;
    if (!bytes)
        error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
    else if (n < 0)
        error_set(err, ERROR_IO, "cannot read %s: %s", name, strerror(errno));
    else if (done > max_bytes)
        error_set(err, ERROR_TOO_LARGE, "%s has more than %zu bytes", name, max_bytes);
    else
        ok = true;
    if (!standard)
        close(fd);
    if (!ok) {
        free(bytes);
        return false;
    }
    bytes[done] = 0;
    *out = bytes;
    *size = done;
    return true;
}

/* Returns false with errno set. */
static bool write_all(int fd, const struct file_part *parts, size_t count) {
    for (size_t i = 0; i < count; i++) {
        for (size_t done = 0; done < parts[i].size;) {
            ssize_t n = write(fd, (const char *)parts[i].bytes + done, parts[i].size - done);
            if (n < 0 && !may_try_again(fd, POLLOUT))
                return false;
            if (n > 0)
                done += (size_t)n;
        }
    }
    return true;
}

/* A rename survives a power failure only after its folder is synced. Some file systems refuse to
 * sync a folder. That is not reported, because the data itself is already on disk. */
void file_sync_folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(folder);
}

/* The file that a path leads to, and how to write it. */
struct target {
    char *path;         /* owned: symbolic links are resolved */
    bool exists, whole; /* whole: replace by a rename; else write in place */
    struct stat st;     /* if it exists */
};

static bool target_find(const char *path, struct target *out, struct error *err) {
    *out = (struct target){ .whole = true };
    out->exists = stat(path, &out->st) == 0;
    if (out->exists && S_ISDIR(out->st.st_mode))
        return error_set(err, ERROR_IO, "cannot write %s: %s", path, strerror(EISDIR));
    if (out->exists && access(path, W_OK) != 0)
        return error_set(
            err, error_code_of_write(errno), "cannot write %s: %s", path, strerror(errno));
    struct stat link;
    if (lstat(path, &link) == 0 && S_ISLNK(link.st_mode)) {
        out->path = realpath(path, NULL);
        out->whole = out->path != NULL; /* else the link's target does not exist */
    }
    if (out->exists && !S_ISREG(out->st.st_mode))
        out->whole = false;
    if (!out->path)
        out->path = strdup(path);
    return out->path || error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
}

/* Creates a file next to `path` under a free name. Returns its descriptor, or -1 with errno set.
 * The caller frees *name. */
static int open_beside(const char *path, char **name) {
    for (int attempt = 0; attempt < 100; attempt++) {
        char random[9];
        if (!random_text(random, 4, NULL) || asprintf(name, "%s.%s", path, random) < 0) {
            *name = NULL;
            errno = ENOMEM;
            return -1;
        }
        int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            return fd;
        free(*name);
        *name = NULL;
        if (errno != EEXIST)
            return -1;
    }
    return -1;
}

/* Whether to write an existing file in place, because its folder accepts no new file or the file is
 * a mount point. */
static bool must_write_through(const struct target *target, int reason) {
    return target->exists &&
           (reason == EACCES || reason == EPERM || reason == EROFS || reason == EBUSY);
}

/* The next three functions return false with errno set on failure. */
static bool write_through(
    const struct target *target, const struct file_part *parts, size_t count) {
    int fd = open(target->path, O_WRONLY | O_CREAT | O_TRUNC | O_NOCTTY | O_CLOEXEC, 0666);
    if (fd < 0)
        return false;
    bool ok = write_all(fd, parts, count);
    /* Devices and pipes cannot be synced; these errors are fine. */
    ok = ok && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP || errno == EROFS);
    int reason = errno;
    if (close(fd) != 0 && ok)
        return false;
    errno = reason;
    return ok;
}

/* Gives the new file the old file's mode and, if that is allowed, its owner. */
static bool keep_mode(int fd, const struct stat *old) {
    const bool owned = fchown(fd, old->st_uid, old->st_gid) == 0;
    (void)owned; /* not permitted: the new file stays ours */
    return fchmod(fd, old->st_mode & 0777) == 0;
}

static bool write_whole(const struct target *target, const struct file_part *parts, size_t count) {
    char *fresh;
    int fd = open_beside(target->path, &fresh);
    if (fd < 0)
        return must_write_through(target, errno) && write_through(target, parts, count);
    bool ok = (!target->exists || keep_mode(fd, &target->st)) && write_all(fd, parts, count) &&
              fsync(fd) == 0;
    int reason = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        reason = errno;
    }
    if (ok && rename(fresh, target->path) != 0) {
        reason = errno;
        unlink(fresh);
        free(fresh);
        errno = reason;
        return must_write_through(target, reason) && write_through(target, parts, count);
    }
    if (ok)
        file_sync_folder_of(target->path);
    else
        unlink(fresh);
    free(fresh);
    errno = reason;
    return ok;
}

bool file_is_standard_output(const char *path) {
    return strcmp(path, "-") == 0 || strcmp(path, "/dev/stdout") == 0;
}

bool file_write(const char *path, const struct file_part *parts, size_t count, struct error *err) {
    if (file_is_standard_output(path))
        return write_all(STDOUT_FILENO, parts, count) ||
               error_set(err, error_code_of_write(errno), "cannot write standard output: %s",
                   strerror(errno));
    struct target target;
    if (!target_find(path, &target, err))
        return false;
    bool ok = target.whole ? write_whole(&target, parts, count)
                           : write_through(&target, parts, count);
    if (!ok)
        error_set(err, error_code_of_write(errno), "cannot write %s: %s", path, strerror(errno));
    free(target.path);
    return ok;
}

/* Creates a file as file_write would, and removes it. Returns false with errno set on failure. */
static bool probe(const struct target *target) {
    char *fresh = NULL;
    int fd;
    if (target->whole) {
        fd = open_beside(target->path, &fresh);
    } else { /* a link whose target does not exist: opening it creates the target */
        fd = open(target->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        fresh = fd < 0 ? NULL : realpath(target->path, NULL);
    }
    if (fd < 0)
        return must_write_through(target, errno);
    close(fd);
    if (fresh)
        unlink(fresh);
    free(fresh);
    return true;
}

bool file_check_writable(const char *path, struct error *err) {
    if (file_is_standard_output(path)) {
        int flags = fcntl(STDOUT_FILENO, F_GETFL);
        if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY)
            return true;
        return error_set(err, ERROR_IO, "cannot write standard output: it is closed");
    }
    struct target target;
    if (!target_find(path, &target, err))
        return false;
    /* An existing file to be written in place was already checked by target_find. */
    bool ok = (target.exists && !target.whole) || probe(&target) ||
              error_set(
                  err, error_code_of_write(errno), "cannot write %s: %s", path, strerror(errno));
    free(target.path);
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

bool file_free_bytes(const char *folder, uint64_t *out, struct error *err) {
    struct statvfs disk;
    if (statvfs(folder, &disk) != 0)
        return error_set(
            err, ERROR_IO, "cannot ask how much is free in %s: %s", folder, strerror(errno));
    *out = (uint64_t)disk.f_bavail * disk.f_frsize;
    return true;
}

char *file_join(const char *folder, const char *name) {
    char *path = NULL;
    return asprintf(&path, "%s/%s", folder, name) < 0 ? NULL : path;
}

void file_remove_tree(int at, const char *name) {
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    const int own = fd < 0 ? -1 : dup(fd);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    if (!dir && own >= 0)
        close(own);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        const bool is_entry = strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
        if (is_entry && unlinkat(fd, e->d_name, 0) != 0)
            file_remove_tree(fd, e->d_name);
    }
    if (dir)
        closedir(dir);
    if (fd >= 0)
        close(fd);
    unlinkat(at, name, AT_REMOVEDIR);
}
