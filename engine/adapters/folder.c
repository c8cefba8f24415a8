#include "engine/adapters/internal.h"

#include "base/log.h"
#include "base/random.h"

#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* No adapter's name can begin with this prefix, because it begins with '.'. */
#define TEMPORARY_PREFIX ".upload-"

/* Whether `file` is NAME.safetensors. *length: the length of NAME. */
static bool has_suffix(const char *file, size_t *length) {
    const size_t all = strlen(file), suffix = strlen(ADAPTER_SUFFIX);
    if (all <= suffix || strcmp(file + all - suffix, ADAPTER_SUFFIX) != 0)
        return false;
    *length = all - suffix;
    return true;
}

static void file_of(const char *name, char file[NAME_MAX + 1]) {
    snprintf(file, NAME_MAX + 1, "%s%s", name, ADAPTER_SUFFIX);
}

bool identity_equal(const struct file_identity *a, const struct file_identity *b) {
    return a->device == b->device && a->inode == b->inode && a->bytes == b->bytes &&
           a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

bool identity_read(int fd, struct file_identity *out) {
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    *out = (struct file_identity){ st.st_dev, st.st_ino, st.st_size, st.st_mtim };
    return true;
}

static bool is_upload(const char *file) {
    return strncmp(file, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) == 0;
}

/* Opens a folder that is in the folder `at`, or `at` itself with the name ".". A link is not
 * followed. Returns -1 and sets errno on failure. */
static int open_folder(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Returns a stream of the folder's entries. Takes over `fd`, which may be -1. Returns NULL and sets
 * errno on failure. */
static DIR *folder_stream(int fd) {
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream && fd >= 0)
        close(fd);
    return stream;
}

/* Opens the folder that holds the file of `path`, a name or NAME.safetensors, and sets *last to the
 * path's last part. Folders are opened one by one and no link is followed, so no path leads out of
 * the folder of adapters. `make`: makes the folders that are missing. Returns -1 and sets errno on
 * failure. */
static int open_parent(
    const struct adapters *adapters, const char *path, bool make, const char **last) {
    int at = open_folder(adapters->folder, ".");
    for (const char *slash; at >= 0 && (slash = strchr(path, '/')); path = slash + 1) {
        char part[NAME_MAX + 1];
        snprintf(part, sizeof(part), "%.*s", (int)(slash - path), path);
        if (make && mkdirat(at, part, 0777) == 0)
            fsync(at);
        const int next = open_folder(at, part), reason = errno;
        close(at);
        at = next;
        errno = reason;
    }
    *last = path;
    return at;
}

/* Removes temporary files whose upload was interrupted. Every running upload holds a lock on its
 * file, also those of another daemon that uses this folder. */
static void remove_broken_uploads(const struct adapters *adapters) {
    DIR *stream = folder_stream(open_folder(adapters->folder, "."));
    for (struct dirent *file; stream && (file = readdir(stream));) {
        if (!is_upload(file->d_name))
            continue;
        const int fd = openat(
            adapters->folder, file->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(adapters->folder, file->d_name, 0);
        if (fd >= 0)
            close(fd);
    }
    if (stream)
        closedir(stream);
}

bool folder_open(struct adapters *adapters, struct error *err) {
    adapters->folder = -1;
    if (!adapters->options.folder)
        return true;
    adapters->folder_path = strdup(adapters->options.folder);
    if (!adapters->folder_path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    adapters->options.folder = adapters->folder_path;
    adapters->folder = open(adapters->folder_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (adapters->folder < 0)
        return error_set(err, errno == ENOENT || errno == ENOTDIR ? ERROR_NOT_FOUND : ERROR_IO,
            "cannot open the folder of adapters %s: %s", adapters->folder_path, strerror(errno));
    remove_broken_uploads(adapters);
    return true;
}

int folder_open_file(
    const struct adapters *adapters, const char *name, char file[NAME_MAX + 1], struct error *err) {
    struct stat st;
    const char *last;
    file_of(name, file);
    const int parent = open_parent(adapters, file, false, &last);
    if (parent < 0) {
        const bool is_missing = errno == ENOENT || errno == ENOTDIR || errno == ELOOP;
        error_set(err, is_missing ? ERROR_NOT_FOUND : ERROR_IO, "cannot open the folder of %s: %s",
            file, strerror(errno));
        return -1;
    }
    /* O_NONBLOCK: opening a FIFO must not block. */
    const int fd = openat(parent, last, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    const int reason = errno;
    close(parent);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    if (fd >= 0) {
        close(fd);
        error_set(err, ERROR_INVALID, "%s is not a regular file", file);
    } else if (reason == ELOOP) {
        error_set(err, ERROR_INVALID, "%s is a symbolic link, and none is followed here", file);
    } else {
        error_set(err, reason == ENOENT ? ERROR_NOT_FOUND : ERROR_IO, "cannot open %s: %s", file,
            strerror(reason));
    }
    return -1;
}

int folder_create_temporary(
    const struct adapters *adapters, char *name, size_t size, struct error *err) {
    for (int attempt = 0; attempt < 100; attempt++) {
        char random[17];
        if (!random_text(random, 8, err))
            return -1;
        snprintf(name, size, TEMPORARY_PREFIX "%s", random);
        const int fd = openat(
            adapters->folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0) {
            flock(fd, LOCK_EX | LOCK_NB);
            return fd;
        }
        if (errno != EEXIST)
            break;
    }
    error_set(err, error_code_of_write(errno), "cannot write into the folder of adapters: %s",
        strerror(errno));
    return -1;
}

/* Removes the folders of the name that have become empty, so that uploads and removals leave none
 * behind. */
static void remove_empty_folders(const struct adapters *adapters, const char *name) {
    char path[ADAPTER_NAME_MAX_BYTES + 1];
    bool removed = true;
    snprintf(path, sizeof(path), "%s", name);
    for (char *slash; removed && (slash = strrchr(path, '/'));) {
        const char *last;
        *slash = 0;
        const int parent = open_parent(adapters, path, false, &last);
        removed = parent >= 0 && unlinkat(parent, last, AT_REMOVEDIR) == 0;
        if (parent >= 0)
            close(parent);
    }
}

bool folder_keep(const struct adapters *adapters, int fd, const char *temporary, const char *name,
    struct error *err) {
    char file[NAME_MAX + 1];
    const char *last;
    file_of(name, file);
    if (fsync(fd) != 0)
        return error_set(
            err, error_code_of_write(errno), "cannot write %s: %s", file, strerror(errno));
    const int parent = open_parent(adapters, file, true, &last);
    if (parent < 0 && (errno == ENOTDIR || errno == ELOOP))
        return error_field(err, "name", name,
            "a name whose folders can be made: one of its parts is a file or a symbolic link");
    if (parent < 0 || renameat(adapters->folder, temporary, parent, last) != 0) {
        error_set(err, error_code_of_write(errno), "cannot put a file in the place of %s: %s", file,
            strerror(errno));
        if (parent >= 0)
            close(parent);
        remove_empty_folders(adapters, name);
        return false;
    }
    /* The rename is done. If this sync fails, the new name may not survive a power failure, but the
     * file stays. */
    if (fsync(parent) != 0)
        log_warning("%s: cannot sync the folder: %s", adapters->folder_path, strerror(errno));
    close(parent);
    return true;
}

void folder_remove_temporary(const struct adapters *adapters, const char *temporary) {
    unlinkat(adapters->folder, temporary, 0);
}

bool folder_remove(const struct adapters *adapters, const char *name, struct error *err) {
    char file[NAME_MAX + 1];
    const char *last;
    file_of(name, file);
    const int parent = open_parent(adapters, file, false, &last);
    const bool removed = parent >= 0 && unlinkat(parent, last, 0) == 0;
    const int reason = errno;
    if (parent >= 0) {
        fsync(parent);
        close(parent);
    }
    if (!removed && reason != ENOENT && reason != ENOTDIR)
        return error_set(err, ERROR_IO, "cannot remove %s: %s", file, strerror(reason));
    remove_empty_folders(adapters, name);
    return true;
}

/* Asks the system for the header's part of the file alone. Otherwise the first access to the map
 * reads ahead, up to megabytes of tensors. A hint: errors do not matter. */
static void read_header_ahead(int fd) {
    uint64_t length = 0;
    posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    if (pread(fd, &length, sizeof(length), 0) == sizeof(length) &&
        le64toh(length) <= SAFETENSORS_MAX_HEADER_BYTES)
        posix_fadvise(fd, 0, (off_t)(sizeof(length) + le64toh(length)), POSIX_FADV_WILLNEED);
}

bool entry_look(struct adapters *adapters, struct adapter_entry *entry, int fd, const char *shown,
    const struct file_identity *identity) {
    struct safetensors *file = NULL;
    struct adapter_summary summary = { 0 };
    struct error error = { 0 };
    read_header_ahead(fd);
    bool ok = safetensors_open_fd(fd, shown, &file, &error);
    if (ok && !adapter_summarize(file, false, &summary))
        ok = error_set(&error, ERROR_INVALID, "%s: no tensor in it is part of an adapter", shown);
    safetensors_close(file);
    pthread_mutex_lock(&adapters->lock);
    entry->seen = *identity;
    entry->summary = summary;
    entry->has_summary = ok;
    entry->error = error;
    pthread_mutex_unlock(&adapters->lock);
    if (!ok)
        log_warning("%s", error.message);
    return ok;
}

/* Updates the entry of one file in the folder. Returns false and sets `err` only if memory runs
 * out; an unreadable file is not an error. */
static bool scan_file(
    struct adapters *adapters, const char *name, struct adapters_scan *scan, struct error *err) {
    char shown[NAME_MAX + 1];
    struct error why = { 0 };
    struct file_identity identity;
    struct adapter_entry *entry = entry_find(adapters, name);
    const int fd = folder_open_file(adapters, name, shown, &why);
    if (fd < 0) {
        /* A link or a pipe is not an adapter, so its entry is removed. A file that we may not read
         * could be one, so its entry stays. */
        log_warning("%s", why.message);
        if (entry)
            entry->marked = why.code == ERROR_IO;
        *(entry && entry->marked ? &scan->failed : &scan->passed_over) += 1;
        return true;
    }
    identity_read(fd, &identity);
    const bool is_new = !entry;
    if (is_new && !(entry = entry_add(adapters, name, err))) {
        close(fd);
        return false;
    }
    entry->marked = true;
    if (!is_new && identity_equal(&identity, &entry->seen)) {
        close(fd);
        return true;
    }
    bool ok;
    if (entry->version) {
        close(fd);
        ok = entry_load(adapters, entry, &why);
        if (!ok)
            log_warning(
                "%s: version %llu stays: %s", name, (unsigned long long)entry->id, why.message);
    } else {
        ok = entry_look(adapters, entry, fd, shown, &identity);
    }
    *(ok ? is_new ? &scan->added : &scan->replaced : &scan->failed) += 1;
    return true;
}

/* A scan under way. */
struct scan {
    struct adapters *adapters;
    struct adapters_scan *found;
    int entries;  /* examined so far */
    bool partial; /* not all of the folder could be read, so names whose files were not seen stay */
    struct error *err;
};

/* Holds the path of any entry of a folder that is scanned: the folder's part of a name and a file
 * name. */
#define SCAN_PATH_BYTES (ADAPTER_NAME_MAX_BYTES + NAME_MAX + 2)

static bool pass_over(struct scan *scan, const char *path, const char *why) {
    log_warning("%s/%s %s and is passed over", scan->adapters->folder_path, path, why);
    scan->found->passed_over++;
    return true;
}

static bool scan_folder(struct scan *scan, int fd, const char *prefix);

/* Reads the folder that is called `file` in the folder `at`; anything else is ignored. `path` is
 * its path below the folder of adapters. */
static bool scan_below(struct scan *scan, int at, const char *file, const char *path) {
    struct stat st;
    char prefix[SCAN_PATH_BYTES + 2];
    if (fstatat(at, file, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return true;
    if (S_ISLNK(st.st_mode) && fstatat(at, file, &st, 0) == 0 && S_ISDIR(st.st_mode))
        return pass_over(scan, path, "is a symbolic link to a folder, none of which is followed,");
    if (!S_ISDIR(st.st_mode))
        return true;
    const int length = snprintf(prefix, sizeof(prefix), "%s/x", path);
    if (!adapter_name_check("name", prefix, NULL))
        return pass_over(scan, path, "cannot be part of a name");
    prefix[length - 1] = 0;
    return scan_folder(scan, open_folder(at, file), prefix);
}

static bool is_folder(int at, const char *file) {
    struct stat st;
    return fstatat(at, file, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

/* Looks at one entry of the folder `at`. `path` is its path below the folder of adapters. */
static bool scan_entry(struct scan *scan, int at, const char *file, char *path) {
    size_t length;
    if (file[0] == '.') /* hidden, or an upload */
        return true;
    if (!has_suffix(path, &length) || is_folder(at, file))
        return scan_below(scan, at, file, path);
    path[length] = 0;
    if (adapter_name_check("name", path, NULL))
        return scan_file(scan->adapters, path, scan->found, scan->err);
    path[length] = '.';
    return pass_over(scan, path, "cannot be asked for by name");
}

/* Reads a folder and the folders in it. `prefix`: what the names of its files begin with, "" or
 * "sub/". ADAPTER_NAME_PARTS_MAX bounds the depth. Takes over `fd`, which may be -1. Returns false
 * and sets scan->err only if memory runs out. */
static bool scan_folder(struct scan *scan, int fd, const char *prefix) {
    char path[SCAN_PATH_BYTES];
    DIR *stream = folder_stream(fd);
    bool ok = true;
    if (!stream) {
        log_warning(
            "%s/%s: cannot be read: %s", scan->adapters->folder_path, prefix, strerror(errno));
        scan->partial = true;
    }
    for (struct dirent *file; ok && stream && (file = readdir(stream));) {
        if (scan->entries++ >= ADAPTER_ENTRIES_MAX) {
            scan->partial = true;
            break;
        }
        snprintf(path, sizeof(path), "%s%s", prefix, file->d_name);
        ok = scan_entry(scan, dirfd(stream), file->d_name, path);
    }
    if (stream)
        closedir(stream);
    return ok;
}

bool folder_scan(struct adapters *adapters, struct adapters_scan *out, struct error *err) {
    *out = (struct adapters_scan){ 0 };
    if (adapters->folder < 0)
        return true;
    const int fd = open_folder(adapters->folder, ".");
    if (fd < 0)
        return error_set(
            err, ERROR_IO, "cannot read %s: %s", adapters->folder_path, strerror(errno));
    for (size_t i = 0; i < adapters->entry_count; i++)
        adapters->entries[i]->marked = adapters->entries[i]->path != NULL;
    struct scan scan = { .adapters = adapters, .found = out, .err = err };
    const bool ok = scan_folder(&scan, fd, "");
    if (scan.entries > ADAPTER_ENTRIES_MAX)
        log_warning("%s: only the first %d files and folders in it are looked at",
            adapters->folder_path, ADAPTER_ENTRIES_MAX);
    for (size_t i = adapters->entry_count; ok && !scan.partial && i-- > 0;)
        if (!adapters->entries[i]->marked) {
            log_info("adapter %s: its file is gone", adapters->entries[i]->name);
            entry_remove(adapters, adapters->entries[i]);
            out->removed++;
        }
    return ok;
}
