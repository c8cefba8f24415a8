#include "train/data/archive.h"

#include "base/disk_room.h"
#include "base/limits.h"
#include "train/data/metadata/metadata.h"
#include "train/data/scan.h"

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

/* Disk space for files is checked in steps of this size. */
#define ROOM_STEP_BYTES ((uint64_t)16 << 20)

struct extraction {
    struct archive *archive;
    int fd, folder; /* borrowed */
    uint64_t bytes_left, max_bytes;
    uint64_t inflated_max; /* limit for the bytes after decompression */
    uint64_t room;         /* disk space checked but not yet used */
    int empty;             /* empty files and folders before the first picture */
    bool has_picture;
    bool refused; /* `err` is set: ignore libarchive's message */
    struct cancel cancel;
    struct error *err;
    char block[BLOCK_BYTES];
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
    return error_set(
        x->err, error_code_of_write(reason), "cannot write %.300s: %s", path, strerror(reason));
}

/* Opens the folder that contains `path`, making missing folders on the way. Returns its descriptor,
 * or -1. Links cannot occur, because this extraction made everything below the folder. */
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
    const int reason = errno;
    if (!ok && reason == EEXIST) /* made earlier for a file, or listed twice */
        ok = fstatat(parent, last_part(path), &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
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

static bool inflates_too_much(struct extraction *x) {
    x->refused = true;
    return error_set(x->err, ERROR_TOO_LARGE,
        "the archive inflates to more than %llu bytes; %d times its own bytes and %llu GiB are "
        "allowed, hidden files included",
        (unsigned long long)x->inflated_max, DATASET_INFLATES_TIMES,
        (unsigned long long)(DATASET_INFLATES_BYTES >> 30));
}

/* Returns the number of decompressed bytes of the tar so far. */
static uint64_t inflated(const struct extraction *x) {
    const la_int64_t bytes = archive_filter_bytes(x->archive, 0);
    return bytes > 0 ? (uint64_t)bytes : 0;
}

/* Reads a block; libarchive's callback. The limits are checked here, before each block, so they
 * also hold while libarchive skips data by itself. Checking once per block is enough, because a
 * block of gzip inflates to at most a thousand times its size. */
static la_ssize_t read_block(struct archive *archive, void *user, const void **block) {
    struct extraction *x = user;
    ssize_t n;
    if (cancel_is_asked(x->cancel)) {
        x->refused = true;
        error_set(x->err, ERROR_CANCELLED, "the archive is not unpacked: nobody waits for it");
        return ARCHIVE_FATAL;
    }
    if (inflated(x) > x->inflated_max) {
        inflates_too_much(x);
        return ARCHIVE_FATAL;
    }
    do
        n = read(x->fd, x->block, sizeof(x->block));
    while (n < 0 && errno == EINTR);
    if (n < 0)
        archive_set_error(archive, errno, "%s", strerror(errno));
    *block = x->block;
    return n < 0 ? ARCHIVE_FATAL : n;
}

static bool read_error(struct extraction *x) {
    if (x->refused)
        return false;
    const char *why = archive_error_string(x->archive);
    return error_set(x->err, archive_errno(x->archive) == ENOMEM ? ERROR_NO_MEMORY : ERROR_INVALID,
        "the archive cannot be read: %s", why ? why : "no reason given");
}

/* Call before writing `size` bytes of a file. */
static bool has_room(struct extraction *x, int fd, size_t size, const char *path) {
    while (x->room < size) {
        if (!disk_room_check(fd, ROOM_STEP_BYTES, path, x->err))
            return false;
        x->room += ROOM_STEP_BYTES;
    }
    x->room -= size;
    return true;
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
        if (!has_room(x, fd, size, path))
            return false;
        if (!write_all(fd, block, size))
            return cannot(x, path, errno);
    }
}

/* Returns whether a file of this size may be in the archive. */
static bool is_allowed(struct extraction *x, const char *path, uint64_t announced) {
    if (announced > x->bytes_left)
        return too_large(x, path);
    return announced <= x->inflated_max || inflates_too_much(x);
}

static bool make_file(struct extraction *x, const char *path, uint64_t announced) {
    if (!is_allowed(x, path, announced))
        return false;
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

/* Skips a hidden file. Its bytes count towards the limits, because they must be read too. */
static bool skip_file(struct extraction *x, const char *path, uint64_t announced) {
    if (!is_allowed(x, path, announced))
        return false;
    x->bytes_left -= announced;
    return true;
}

/* Returns why an entry of this kind is refused; NULL for files and folders. */
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

/* Limits the empty files and folders before the first picture: each takes time, and a real data set
 * has few. */
static bool is_worth_it(struct extraction *x, const char *path, uint64_t size) {
    x->has_picture = x->has_picture || scan_is_picture(last_part(path));
    x->empty += size == 0 && !x->has_picture;
    return x->empty <= DATASET_EMPTY_FILES_MAX ||
           error_set(x->err, ERROR_INVALID,
               "the archive begins with more than %d empty files and folders, and no picture is "
               "among them",
               DATASET_EMPTY_FILES_MAX);
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
    if (!is_worth_it(x, path, size))
        return false;
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
        /* The only warning is about the character set of a name, which take() checks. */
        if (result != ARCHIVE_OK && result != ARCHIVE_WARN)
            return read_error(x);
        if (count == DATASET_FILES_MAX)
            return error_set(
                x->err, ERROR_TOO_LARGE, "the archive has more than %d files", DATASET_FILES_MAX);
        if (!take(x, entry))
            return false;
    }
}

static bool open_archive(struct extraction *x) {
    if (archive_read_support_format_tar(x->archive) != ARCHIVE_OK ||
        archive_read_support_filter_gzip(x->archive) != ARCHIVE_OK ||
        archive_read_open(x->archive, x, NULL, read_block, NULL) != ARCHIVE_OK)
        return read_error(x);
    /* The uncompressed file counts as one filter, gzip as another. */
    return archive_filter_count(x->archive) <= 2 ||
           error_set(x->err, ERROR_INVALID,
               "the archive is compressed more than once; a tar may be compressed with gzip, once");
}

bool archive_extract(
    int fd, int folder, uint64_t max_bytes, struct cancel cancel, struct error *err) {
    struct error own = { 0 };
    struct stat status;
    if (fstat(fd, &status) != 0)
        return error_set(err, ERROR_IO, "cannot read the archive: %s", strerror(errno));
    if (status.st_size == 0)
        return error_set(err, ERROR_INVALID, "the archive has 0 bytes; a tar has 1024 at least");
    struct extraction *x = calloc(1, sizeof(*x));
    if (x)
        *x = (struct extraction){ .archive = archive_read_new(),
            .fd = fd,
            .folder = folder,
            .bytes_left = max_bytes,
            .max_bytes = max_bytes,
            .inflated_max = (uint64_t)status.st_size * DATASET_INFLATES_TIMES +
                            DATASET_INFLATES_BYTES,
            .cancel = cancel,
            .err = err ? err : &own };
    if (!x || !x->archive) {
        free(x);
        return error_set(err, ERROR_NO_MEMORY, "no memory to read an archive");
    }
    const bool ok = open_archive(x) && take_all(x);
    archive_read_free(x->archive);
    free(x);
    return ok;
}
