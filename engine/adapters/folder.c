#include "base/random.h"
#include "engine/adapters/internal.h"

#include "base/log.h"
#include "base/text/words.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* No adapter name can begin with this prefix: names begin with a letter or digit. */
#define TEMPORARY_PREFIX ".upload-"

/* No adapter may have this name: /loras/rescan is a route. */
static const char reserved[] = "rescan";

static bool is_name(const char *name, size_t length) {
    const bool is_reserved = length == strlen(reserved) && memcmp(name, reserved, length) == 0;
    return !is_reserved && words_are_name(name, length);
}

bool adapter_name_check(const char *param, const char *name, struct error *err) {
    return is_name(name, strlen(name)) ||
           error_field(err, param, name,
               "1 to %d letters, digits, '.', '_' and '-', the first a letter or digit; not \"%s\"",
               ADAPTER_NAME_MAX_BYTES, reserved);
}

bool adapter_reference_check(const char *param, const char *name, struct error *err) {
    const char *mark = strchr(name, '@');
    const size_t digits = mark ? strspn(mark + 1, "0123456789") : 0;
    const bool is_reference = digits > 0 && !mark[1 + digits] &&
                              strlen(name) <= ADAPTER_NAME_MAX_BYTES &&
                              is_name(name, (size_t)(mark - name));
    return is_reference || adapter_name_check(param, name, err);
}

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

/* Opens the folder for reading. Returns NULL and sets errno on failure. */
static DIR *folder_stream(const struct adapters *adapters) {
    const int fd = openat(adapters->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream && fd >= 0)
        close(fd);
    return stream;
}

/* Removes temporary files whose upload was interrupted. Every running upload holds a lock on its
 * file, also those of another daemon that uses this folder. */
static void remove_broken_uploads(const struct adapters *adapters) {
    DIR *stream = folder_stream(adapters);
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
    file_of(name, file);
    /* `file` is a name without a separator, and links are not followed, so the path cannot lead
     * outside the folder. O_NONBLOCK: opening a FIFO must not block. */
    const int fd = openat(
        adapters->folder, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode))
        return fd;
    if (fd >= 0) {
        close(fd);
        error_set(err, ERROR_INVALID, "%s is not a regular file", file);
    } else if (errno == ELOOP) {
        error_set(err, ERROR_INVALID, "%s is a symbolic link, and none is followed here", file);
    } else {
        error_set(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_IO, "cannot open %s: %s", file,
            strerror(errno));
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

bool folder_keep(const struct adapters *adapters, int fd, const char *temporary, const char *name,
    struct error *err) {
    char file[NAME_MAX + 1];
    file_of(name, file);
    if (fsync(fd) != 0)
        return error_set(
            err, error_code_of_write(errno), "cannot write %s: %s", file, strerror(errno));
    if (renameat(adapters->folder, temporary, adapters->folder, file) != 0)
        return error_set(err, error_code_of_write(errno),
            "cannot put a file in the place of %s: %s", file, strerror(errno));
    /* The rename is done. If this sync fails, the new name may not survive a power failure, but the
     * file stays. */
    if (fsync(adapters->folder) != 0)
        log_warning("%s: cannot sync the folder: %s", adapters->folder_path, strerror(errno));
    return true;
}

void folder_remove_temporary(const struct adapters *adapters, const char *temporary) {
    unlinkat(adapters->folder, temporary, 0);
}

bool folder_remove(const struct adapters *adapters, const char *name, struct error *err) {
    char file[NAME_MAX + 1];
    file_of(name, file);
    if (unlinkat(adapters->folder, file, 0) != 0 && errno != ENOENT)
        return error_set(err, ERROR_IO, "cannot remove %s: %s", file, strerror(errno));
    fsync(adapters->folder);
    return true;
}

bool entry_look(struct adapters *adapters, struct adapter_entry *entry, int fd, const char *shown,
    const struct file_identity *identity) {
    struct safetensors *file = NULL;
    struct adapter_summary summary = { 0 };
    struct error error = { 0 };
    bool ok = safetensors_open_fd(fd, shown, &file, &error);
    if (ok && !adapter_summarize(file, &summary))
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

static bool scan_files(
    struct adapters *adapters, DIR *stream, struct adapters_scan *scan, struct error *err) {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    size_t length;
    for (struct dirent *file; (file = readdir(stream));) {
        if (is_upload(file->d_name) || !has_suffix(file->d_name, &length))
            continue;
        if (!is_name(file->d_name, length)) {
            log_warning("%s/%s cannot be asked for by name and is passed over",
                adapters->folder_path, file->d_name);
            scan->passed_over++;
            continue;
        }
        memcpy(name, file->d_name, length);
        name[length] = 0;
        if (!scan_file(adapters, name, scan, err))
            return false;
    }
    return true;
}

bool folder_scan(struct adapters *adapters, struct adapters_scan *out, struct error *err) {
    *out = (struct adapters_scan){ 0 };
    if (adapters->folder < 0)
        return true;
    DIR *stream = folder_stream(adapters);
    if (!stream)
        return error_set(
            err, ERROR_IO, "cannot read %s: %s", adapters->folder_path, strerror(errno));
    for (size_t i = 0; i < adapters->entry_count; i++)
        adapters->entries[i]->marked = adapters->entries[i]->path != NULL;
    const bool ok = scan_files(adapters, stream, out, err);
    closedir(stream);
    for (size_t i = adapters->entry_count; ok && i-- > 0;)
        if (!adapters->entries[i]->marked) {
            log_info("adapter %s: its file is gone", adapters->entries[i]->name);
            entry_remove(adapters, adapters->entries[i]);
            out->removed++;
        }
    return ok;
}
