#include "train/data/store.h"

#include "base/disk_room.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/random.h"
#include "train/data/archive.h"
#include "train/data/dataset.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define TEMPORARY_PREFIX ".upload-"
#define TEMPORARY_BYTES 32

struct dataset_store {
    char *path; /* owned */
    int fd;
    uint64_t max_bytes;
};

struct dataset_upload {
    struct dataset_store *store; /* borrowed */
    char name[DATASET_NAME_MAX_BYTES + 1];
    char what[DATASET_NAME_MAX_BYTES + 16]; /* "the data set NAME", for messages */
    int fd;                                 /* the archive's file, which has no name */
    uint64_t announced, written;            /* bytes; announced 0: unknown */
    uint64_t taken;                         /* disk space (base/disk_room.h) */
};

/* --- Folders --- */

static int open_folder(int at, const char *name) {
    return openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static DIR *list_folder(int fd) {
    const int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = own < 0 ? NULL : fdopendir(own);
    if (!dir && own >= 0)
        close(own);
    return dir;
}

static bool is_own(const char *name) {
    return strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static bool temporary_name(char name[TEMPORARY_BYTES], struct error *err) {
    memcpy(name, TEMPORARY_PREFIX, sizeof(TEMPORARY_PREFIX));
    return random_text(name + strlen(TEMPORARY_PREFIX), 8, err);
}

/* Removes hidden folders that a crash has left. A process that unpacks into such a folder, also
 * another daemon, holds a lock on it; a locked folder stays. */
static void remove_leftovers(struct dataset_store *store) {
    DIR *dir = list_folder(store->fd);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        if (strncmp(e->d_name, TEMPORARY_PREFIX, strlen(TEMPORARY_PREFIX)) != 0)
            continue;
        const int fd = open_folder(store->fd, e->d_name);
        if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
            file_remove_tree(store->fd, e->d_name);
        if (fd >= 0)
            close(fd);
    }
    if (dir)
        closedir(dir);
}

bool dataset_store_open(
    const char *folder, uint64_t max_bytes, struct dataset_store **out, struct error *err) {
    struct dataset_store *store = calloc(1, sizeof(*store));
    *out = NULL;
    if (!store || !(store->path = strdup(folder))) {
        free(store);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    }
    store->max_bytes = max_bytes;
    store->fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (store->fd < 0) {
        error_set(err, errno == ENOENT || errno == ENOTDIR ? ERROR_NOT_FOUND : ERROR_IO,
            "cannot open the folder of data sets %s: %s", folder, strerror(errno));
        dataset_store_close(store);
        return false;
    }
    remove_leftovers(store);
    *out = store;
    return true;
}

void dataset_store_close(struct dataset_store *store) {
    if (!store)
        return;
    if (store->fd >= 0)
        close(store->fd);
    free(store->path);
    free(store);
}

/* --- Names --- */

static bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_name(const char *name) {
    const size_t length = strlen(name);
    if (length < 1 || length > DATASET_NAME_MAX_BYTES || !is_letter_or_digit(name[0]))
        return false;
    for (size_t i = 1; i < length; i++)
        if (!is_letter_or_digit(name[i]) && !memchr("._-", name[i], 3))
            return false;
    return true;
}

bool dataset_name_check(const char *param, const char *name, struct error *err) {
    return is_name(name) ||
           error_field(err, param, name,
               "1 to %d letters, digits, '.', '_' and '-', the first a letter or digit",
               DATASET_NAME_MAX_BYTES);
}

static bool not_there(const char *name, struct error *err) {
    return error_set(err, ERROR_NOT_FOUND, "there is no data set %s", name);
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_all(char **names, size_t count) {
    for (size_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

bool dataset_store_list(struct dataset_store *store, json_t **out, struct error *err) {
    char **names = NULL;
    size_t count = 0;
    bool ok = true;
    DIR *dir = list_folder(store->fd);
    for (struct dirent *e; dir && ok && (e = readdir(dir));) {
        char *whole = is_name(e->d_name) ? file_join(store->path, e->d_name) : NULL;
        if (whole && file_is_folder(whole)) {
            ok = LIST_ROOM(names, count, "a list of data sets", err) &&
                 (names[count] = strdup(e->d_name));
            count += ok;
        }
        free(whole);
    }
    if (dir)
        closedir(dir);
    *out = json_array();
    if (count)
        qsort(names, count, sizeof(*names), by_text);
    for (size_t i = 0; ok && i < count; i++)
        ok = json_array_append_new(*out, json_string(names[i])) == 0;
    free_all(names, count);
    if (dir && ok && *out)
        return true;
    json_decref(*out);
    return error_set(err, dir ? ERROR_NO_MEMORY : ERROR_IO, "cannot list %s", store->path);
}

/* Reports on a data set. `folder` is relative to the store's folder. */
static bool report_of(struct dataset_store *store, const char *folder, const char *name,
    json_t **out, struct error *err) {
    const struct dataset_options options = {
        .root = store->path, .report_only = true, .buckets = BUCKET_OPTIONS_DEFAULT
    };
    char *path = file_join(store->path, folder);
    struct dataset *dataset = NULL;
    bool ok = path || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    ok = ok && dataset_open(path, &options, &dataset, err);
    *out = ok ? dataset_report(dataset) : NULL;
    if (ok && (!*out || json_object_set_new(*out, "name", json_string(name)) != 0))
        ok = error_set(err, ERROR_NO_MEMORY, "no memory for a report");
    dataset_destroy(dataset);
    free(path);
    return ok;
}

bool dataset_store_describe(
    struct dataset_store *store, const char *name, json_t **out, struct error *err) {
    struct stat st;
    *out = NULL;
    if (!dataset_name_check("name", name, err))
        return false;
    if (fstatat(store->fd, name, &st, 0) != 0)
        return not_there(name, err);
    return report_of(store, name, name, out, err);
}

bool dataset_store_measure(struct dataset_store *store, const char *name, int64_t *created_s,
    uint64_t *bytes, struct error *err) {
    struct stat st;
    if (!dataset_name_check("name", name, err))
        return false;
    if (fstatat(store->fd, name, &st, 0) != 0 || !S_ISDIR(st.st_mode))
        return not_there(name, err);
    *created_s = st.st_mtime;
    *bytes = 0;
    char *path = file_join(store->path, name);
    char *const paths[] = { path, NULL };
    FTS *tree = path ? fts_open(paths, FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, NULL) : NULL;
    for (FTSENT *entry; tree && (entry = fts_read(tree));)
        if (entry->fts_info == FTS_F)
            *bytes += (uint64_t)entry->fts_statp->st_size;
    if (tree)
        fts_close(tree);
    free(path);
    return tree || error_set(err, ERROR_IO, "cannot read the data set %s", name);
}

bool dataset_store_delete(struct dataset_store *store, const char *name, struct error *err) {
    char hidden[TEMPORARY_BYTES];
    if (!dataset_name_check("name", name, err) || !temporary_name(hidden, err))
        return false;
    const int fd = open_folder(store->fd, name);
    if (fd < 0)
        return errno == ENOENT ? not_there(name, err)
                               : error_set(err, ERROR_INVALID, "%s is no folder of ours", name);
    const bool ok = renameat(store->fd, name, store->fd, hidden) == 0 ||
                    error_set(err, ERROR_IO, "cannot remove %s: %s", name, strerror(errno));
    if (ok) {
        fsync(store->fd); /* or a crash could leave a half-deleted data set with its name */
        file_remove_tree(store->fd, hidden);
    }
    close(fd);
    return ok;
}

/* --- Uploads --- */

static bool write_failed(const struct dataset_upload *upload, int reason, struct error *err) {
    return error_set(err, error_code_of_write(reason), "cannot write the data set %s: %s",
        upload->name, strerror(reason));
}

static bool taken(const struct dataset_upload *upload, struct error *err) {
    return error_set(
        err, ERROR_CONFLICT, "there is a data set %s already; delete it first", upload->name);
}

static bool grow(struct dataset_upload *upload, uint64_t size, struct error *err) {
    return disk_room_grow(upload->fd, size, upload->announced, &upload->taken, upload->what, err);
}

/* Creates the archive's file without a name, so that a crash leaves nothing behind. Fails at once
 * if the disk has no room for the archive. */
static bool open_archive(struct dataset_upload *upload, struct error *err) {
    char name[TEMPORARY_BYTES];
    const int folder = upload->store->fd;
    if (!temporary_name(name, err))
        return false;
    upload->fd = openat(folder, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (upload->fd < 0)
        return write_failed(upload, errno, err);
    unlinkat(folder, name, 0);
    return disk_room_check(upload->fd, upload->announced, upload->what, err);
}

bool dataset_upload_begin(struct dataset_store *store, const char *name, uint64_t bytes,
    struct dataset_upload **out, struct error *err) {
    struct stat st;
    *out = NULL;
    if (!dataset_name_check("name", name, err))
        return false;
    struct dataset_upload *upload = calloc(1, sizeof(*upload));
    if (!upload)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an upload");
    *upload = (struct dataset_upload){ .store = store, .fd = -1, .announced = bytes };
    snprintf(upload->name, sizeof(upload->name), "%s", name);
    snprintf(upload->what, sizeof(upload->what), "the data set %s", name);
    const bool is_taken = fstatat(store->fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0;
    if (is_taken ? taken(upload, err) : open_archive(upload, err)) {
        *out = upload;
        return true;
    }
    dataset_upload_abort(upload);
    return false;
}

bool dataset_upload_write(
    struct dataset_upload *upload, const void *bytes, size_t size, struct error *err) {
    upload->written += size;
    if (upload->written > upload->store->max_bytes)
        return error_set(err, ERROR_TOO_LARGE, "an archive of more than %llu bytes",
            (unsigned long long)upload->store->max_bytes);
    if (!grow(upload, upload->written, err))
        return false;
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(upload->fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno != EINTR)
            return write_failed(upload, errno, err);
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

/* Finds the folder of the data set in the unpacked archive, as a path relative to the store's
 * folder. If the archive has a single folder, it is that folder, unless the layout gives the
 * folder's name a meaning (train, 10_cat). Otherwise it is the hidden folder itself. */
static void find_inner(int fd, const char *hidden, char path[NAME_MAX + TEMPORARY_BYTES + 1]) {
    char only[NAME_MAX + 1] = "";
    int count = 0;
    DIR *dir = list_folder(fd);
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (is_own(e->d_name) && count++ == 0)
            snprintf(only, sizeof(only), "%s", e->d_name);
    if (dir)
        closedir(dir);
    const size_t digits = strspn(only, "0123456789");
    const bool says = strcmp(only, "train") == 0 || (digits > 0 && only[digits] == '_');
    const int inner = count == 1 && !says ? open_folder(fd, only) : -1;
    snprintf(path, NAME_MAX + TEMPORARY_BYTES + 1, "%s%s%s", hidden, inner >= 0 ? "/" : "",
        inner >= 0 ? only : "");
    if (inner >= 0)
        close(inner);
}

/* Unpacks, examines and renames the data set. `fd` is the hidden folder, which the caller has
 * locked. */
static bool unpack(struct dataset_upload *upload, int fd, const char *hidden, struct cancel cancel,
    json_t **report, struct error *err) {
    struct dataset_store *store = upload->store;
    char inner[NAME_MAX + TEMPORARY_BYTES + 1];
    if (!archive_extract(upload->fd, fd, store->max_bytes, cancel, err))
        return false;
    find_inner(fd, hidden, inner);
    if (!report_of(store, inner, upload->name, report, err))
        return false;
    /* Syncs all files before the rename, so that the name never refers to files that are not on the
     * disk. */
    if (syncfs(store->fd) != 0)
        return write_failed(upload, errno, err);
    if (renameat(store->fd, inner, store->fd, upload->name) != 0)
        return errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR
                   ? taken(upload, err)
                   : write_failed(upload, errno, err);
    fsync(store->fd);
    return true;
}

bool dataset_upload_end(
    struct dataset_upload *upload, struct cancel cancel, json_t **report, struct error *err) {
    struct dataset_store *store = upload->store;
    char hidden[TEMPORARY_BYTES];
    *report = NULL;
    bool ok = upload->announced == 0 || upload->written == upload->announced ||
              error_set(err, ERROR_INVALID, "%llu of the %llu bytes came that were announced",
                  (unsigned long long)upload->written, (unsigned long long)upload->announced);
    ok = ok && temporary_name(hidden, err);
    if (ok && (lseek(upload->fd, 0, SEEK_SET) != 0 || mkdirat(store->fd, hidden, 0777) != 0))
        ok = write_failed(upload, errno, err);
    if (ok) {
        const int fd = open_folder(store->fd, hidden);
        ok = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
        ok = ok ? unpack(upload, fd, hidden, cancel, report, err)
                : write_failed(upload, errno, err);
        file_remove_tree(store->fd, hidden); /* after success: only what was not renamed */
        if (fd >= 0)
            close(fd);
    }
    if (!ok) {
        json_decref(*report);
        *report = NULL;
    }
    dataset_upload_abort(upload);
    return ok;
}

void dataset_upload_abort(struct dataset_upload *upload) {
    if (!upload)
        return;
    if (upload->fd >= 0)
        close(upload->fd);
    free(upload);
}
