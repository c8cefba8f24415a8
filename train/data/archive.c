#include "train/data/archive.h"

#include "base/limits.h"
#include "train/data/metadata.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK_BYTES 65536

struct extraction {
    struct archive *archive;
    int folder; /* borrowed */
    uint64_t bytes_left, max_bytes;
    struct error *err;
};

static bool is_hidden(const char *path) {
    for (const char *part = path; part; part = strchr(part, '/'), part = part ? part + 1 : NULL)
        if (*part == '.' && strcmp(part, "..") != 0 && strncmp(part, "../", 3) != 0)
            return true;
    return false;
}

static bool not_taken(struct extraction *x, const char *path, const char *what) {
    return error_set(x->err, ERROR_INVALID,
        "the archive's %.300s is %s; files and folders alone are taken", path, what);
}

static bool cannot(struct extraction *x, const char *path, int reason) {
    if (reason == EEXIST || reason == EISDIR || reason == ENOTDIR)
        return error_set(x->err, ERROR_INVALID, "the archive's %.300s comes twice", path);
    return error_set(x->err, ERROR_IO, "cannot write %.300s: %s", path, strerror(reason));
}

/* The folder that `path` lies in, made on the way: its descriptor, or -1. We made all that is
 * there, and no links. */
static int open_parent(struct extraction *x, const char *path) {
    char part[256];
    int fd = dup(x->folder);
    for (const char *at = path, *slash; fd >= 0 && (slash = strchr(at, '/')); at = slash + 1) {
        snprintf(part, sizeof(part), "%.*s", (int)(slash - at), at);
        const bool made = mkdirat(fd, part, 0777) == 0 || errno == EEXIST;
        const int next = made ? openat(fd, part, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)
                              : -1;
        const int reason = errno;
        close(fd);
        fd = next;
        errno = reason;
    }
    if (fd < 0)
        cannot(x, path, errno);
    return fd;
}

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static bool make_folder(struct extraction *x, const char *path) {
    const int parent = open_parent(x, path);
    struct stat st;
    if (parent < 0)
        return false;
    bool ok = mkdirat(parent, last_part(path), 0777) == 0;
    if (!ok && errno == EEXIST) /* made on the way to a file of its, or said twice */
        ok = fstatat(parent, last_part(path), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
    const int reason = ok ? 0 : EEXIST;
    close(parent);
    return ok || cannot(x, path, reason);
}

static bool write_all(int fd, const char *bytes, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(fd, bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

static bool too_large(struct extraction *x, const char *path) {
    return error_set(x->err, ERROR_TOO_LARGE,
        "the archive holds more than %llu bytes of files, with %.300s",
        (unsigned long long)x->max_bytes, path);
}

static bool read_error(struct extraction *x) {
    const char *why = archive_error_string(x->archive);
    return error_set(x->err, archive_errno(x->archive) == ENOMEM ? ERROR_NO_MEMORY : ERROR_INVALID,
        "the archive cannot be read: %s", why ? why : "no reason given");
}

static bool copy_data(struct extraction *x, int fd, const char *path) {
    const void *block;
    size_t size;
    la_int64_t offset, at = 0;
    for (;;) {
        const int result = archive_read_data_block(x->archive, &block, &size, &offset);
        if (result == ARCHIVE_EOF)
            return true;
        if (result != ARCHIVE_OK)
            return read_error(x);
        if (offset != at)
            return not_taken(x, path, "sparse");
        if (size > x->bytes_left)
            return too_large(x, path);
        x->bytes_left -= size;
        at += (la_int64_t)size;
        if (!write_all(fd, block, size))
            return cannot(x, path, errno);
    }
}

static bool make_file(struct extraction *x, const char *path, uint64_t announced) {
    if (announced > x->bytes_left)
        return too_large(x, path);
    const int parent = open_parent(x, path);
    if (parent < 0)
        return false;
    const int fd = openat(
        parent, last_part(path), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    const int reason = errno;
    close(parent);
    if (fd < 0)
        return cannot(x, path, reason);
    bool ok = copy_data(x, fd, path);
    if (close(fd) != 0 && ok)
        ok = cannot(x, path, errno);
    return ok;
}

/* A hidden file, which costs the reading of what is in it all the same. */
static bool skip_file(struct extraction *x, const char *path, uint64_t announced) {
    if (announced > x->bytes_left)
        return too_large(x, path);
    x->bytes_left -= announced;
    return true;
}

/* Why an entry is not taken; NULL for files and folders. */
static const char *kind_refused(struct archive_entry *entry) {
    if (archive_entry_hardlink(entry))
        return "a link to another file";
    if (archive_entry_sparse_count(entry) > 0)
        return "sparse";
    switch (archive_entry_filetype(entry)) {
    case AE_IFREG:
    case AE_IFDIR:
        return NULL;
    case AE_IFLNK:
        return "a symbolic link";
    case AE_IFCHR:
    case AE_IFBLK:
        return "a device";
    case AE_IFIFO:
        return "a FIFO";
    default:
        return "of another kind";
    }
}

static bool take(struct extraction *x, struct archive_entry *entry) {
    char path[DATASET_PATH_MAX_BYTES + 2];
    const char *name = archive_entry_pathname_utf8(entry);
    name = name ? name : archive_entry_pathname(entry);
    if (!name)
        return error_set(x->err, ERROR_INVALID, "the archive has a file without a name");
    while (strncmp(name, "./", 2) == 0)
        name += 2;
    size_t length = strnlen(name, DATASET_PATH_MAX_BYTES + 1);
    memcpy(path, name, length);
    while (length > 1 && path[length - 1] == '/')
        length--;
    path[length] = 0;
    const char *refused = kind_refused(entry);
    if (refused)
        return not_taken(x, path, refused);
    if (length == 0 || strcmp(path, ".") == 0)
        return true;
    const la_int64_t said = archive_entry_size(entry);
    const uint64_t size = said > 0 ? (uint64_t)said : 0;
    if (is_hidden(path))
        return skip_file(x, path, size);
    if (!data_path_check(path, length, x->err))
        return error_prefix(x->err, "the archive");
    return archive_entry_filetype(entry) == AE_IFDIR ? make_folder(x, path)
                                                     : make_file(x, path, size);
}

static bool take_all(struct extraction *x) {
    struct archive_entry *entry;
    for (int count = 0;; count++) {
        const int result = archive_read_next_header(x->archive, &entry);
        if (result == ARCHIVE_EOF)
            return count > 0 || error_set(x->err, ERROR_INVALID, "the archive is empty");
        /* A warning is about a name in another character set, which is looked at in take(). */
        if (result != ARCHIVE_OK && result != ARCHIVE_WARN)
            return read_error(x);
        if (count == DATASET_FILES_MAX)
            return error_set(
                x->err, ERROR_TOO_LARGE, "the archive has more than %d files", DATASET_FILES_MAX);
        if (!take(x, entry))
            return false;
    }
}

bool archive_extract(int fd, int folder, uint64_t max_bytes, struct error *err) {
    struct error own = { 0 };
    struct stat status;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 0)
        return error_set(err, ERROR_INVALID, "the archive has 0 bytes; a tar has 1024 at least");
    struct extraction x = { archive_read_new(), folder, max_bytes, max_bytes, err ? err : &own };
    if (!x.archive)
        return error_set(err, ERROR_NO_MEMORY, "no memory to read an archive");
    bool ok = archive_read_support_format_tar(x.archive) == ARCHIVE_OK &&
              archive_read_support_filter_gzip(x.archive) == ARCHIVE_OK &&
              archive_read_open_fd(x.archive, fd, BLOCK_BYTES) == ARCHIVE_OK;
    ok = ok ? take_all(&x) : read_error(&x);
    archive_read_free(x.archive);
    return ok;
}
