#include "engine/adapters/internal.h"

#include "base/disk_room.h"
#include "base/file.h"
#include "base/monotonic.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct adapter_upload {
    struct adapter_upload *next; /* registry's list; its `lock` guards these four */
    double heard_s;              /* when the last bytes arrived */
    bool ending;                 /* all bytes have arrived */
    bool passed;                 /* silent for too long: another upload has its name */
    struct adapters *adapters;   /* borrowed */
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    char temporary[64]; /* name of its file until that is renamed; then "" */
    int fd;
    uint64_t announced, written; /* bytes; announced 0: unknown */
    uint64_t taken;              /* bytes reserved on the disk (base/disk_room.h) */
    bool is_own;                 /* made by the daemon itself: may fill the disk */
};

static bool too_large(uint64_t bytes, struct error *err) {
    return error_set(err, ERROR_TOO_LARGE,
        "the file has %llu bytes or more; at most %llu are taken", (unsigned long long)bytes,
        (unsigned long long)ADAPTER_FILE_MAX_BYTES);
}

static bool write_failed(const struct adapter_upload *upload, int reason, struct error *err) {
    return error_set(err, error_code_of_write(reason), "cannot write %s%s: %s", upload->name,
        ADAPTER_SUFFIX, strerror(reason));
}

static double patience_s(const struct adapters *adapters) {
    const double asked = adapters->options.upload_patience_s;
    return asked > 0 ? asked : ADAPTER_UPLOAD_PATIENCE_S;
}

/* Only one upload per name at a time. An upload that has been silent for a while is aborted in
 * favour of a new one. */
static bool enter(struct adapter_upload *upload, struct error *err) {
    struct adapters *adapters = upload->adapters;
    const double patience = patience_s(adapters);
    pthread_mutex_lock(&adapters->lock);
    upload->heard_s = monotonic_seconds();
    struct adapter_upload *other = adapters->uploads;
    while (other && (other->passed || strcmp(other->name, upload->name) != 0))
        other = other->next;
    const bool taken = other && (other->ending || upload->heard_s - other->heard_s < patience);
    if (!taken) {
        if (other)
            other->passed = true;
        upload->next = adapters->uploads;
        adapters->uploads = upload;
    }
    pthread_mutex_unlock(&adapters->lock);
    return !taken || error_set(err, ERROR_CONFLICT,
                         "another upload of %s is in progress: wait until it has ended, or was "
                         "silent for %g s",
                         upload->name, patience);
}

/* Call when bytes have arrived. `ending`: these were the last. Fails if the upload has lost its
 * name. */
static bool keeps_name(struct adapter_upload *upload, bool ending, struct error *err) {
    struct adapters *adapters = upload->adapters;
    pthread_mutex_lock(&adapters->lock);
    upload->heard_s = monotonic_seconds();
    upload->ending = ending;
    const bool passed = upload->passed;
    pthread_mutex_unlock(&adapters->lock);
    return !passed ||
           error_set(err, ERROR_CONFLICT,
               "this upload was silent for %g s, and another upload of %s has replaced it",
               patience_s(adapters), upload->name);
}

static void leave(struct adapter_upload *upload) {
    struct adapters *adapters = upload->adapters;
    pthread_mutex_lock(&adapters->lock);
    struct adapter_upload **link = &adapters->uploads;
    while (*link != upload)
        link = &(*link)->next;
    *link = upload->next;
    pthread_mutex_unlock(&adapters->lock);
}

static bool begin(struct adapters *adapters, const char *name, uint64_t bytes, bool is_own,
    struct adapter_upload **out, struct error *err) {
    if (!adapter_name_check("name", name, err) ||
        (!is_own && !adapters_may_add(adapters, "name", name, err)))
        return false;
    if (bytes > ADAPTER_FILE_MAX_BYTES)
        return too_large(bytes, err);
    if (adapters->folder < 0)
        return error_set(err, ERROR_UNSUPPORTED,
            "there is no folder of adapters to keep it in: start with --lora-dir");
    struct adapter_upload *upload = calloc(1, sizeof(*upload));
    if (!upload)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an upload");
    upload->adapters = adapters;
    upload->announced = bytes;
    upload->is_own = is_own;
    memccpy(upload->name, name, 0, sizeof(upload->name) - 1);
    upload->fd = -1;
    if (!enter(upload, err)) {
        free(upload);
        return false;
    }
    upload->fd = folder_create_temporary(
        adapters, upload->temporary, sizeof(upload->temporary), err);
    if (upload->fd < 0)
        upload->temporary[0] = 0;
    /* Fails early if the disk has no room for the file. */
    if (upload->fd >= 0 && (is_own || disk_room_check(upload->fd, bytes, upload->name, err))) {
        *out = upload;
        return true;
    }
    adapter_upload_abort(upload);
    return false;
}

bool adapter_upload_begin(struct adapters *adapters, const char *name, uint64_t bytes,
    struct adapter_upload **out, struct error *err) {
    return begin(adapters, name, bytes, false, out, err);
}

bool adapter_upload_write(
    struct adapter_upload *upload, const void *bytes, size_t size, struct error *err) {
    upload->written += size;
    if (upload->written > ADAPTER_FILE_MAX_BYTES)
        return too_large(upload->written, err);
    if (upload->announced && upload->written > upload->announced)
        return error_set(err, ERROR_INVALID, "more than the announced %llu bytes came",
            (unsigned long long)upload->announced);
    if (!upload->is_own && !disk_room_grow(upload->fd, upload->written, upload->announced,
                               &upload->taken, upload->name, err))
        return false;
    for (size_t done = 0; done < size;) {
        const ssize_t n = write(upload->fd, (const char *)bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return write_failed(upload, errno, err);
        done += (size_t)n;
    }
    return keeps_name(upload, false, err);
}

/* Call with `work` held. Loads the file, and gives it the name only if loading succeeds. */
static bool upload_take(struct adapter_upload *upload, struct error *err) {
    struct adapters *adapters = upload->adapters;
    struct file_identity identity;
    struct adapter_version *version;
    struct graveyard dead = { 0 };
    const int fd = fcntl(upload->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0 || !identity_read(fd, &identity)) {
        const int reason = errno;
        if (fd >= 0)
            close(fd);
        return write_failed(upload, reason, err);
    }
    /* Another upload or a scan may have added a name since this one began. */
    if (!upload->is_own && !adapters_may_add(adapters, "name", upload->name, err)) {
        close(fd);
        return false;
    }
    if (!version_load(adapters, fd, upload->name, &version, err))
        return false;
    const bool was_there = entry_find(adapters, upload->name) != NULL;
    struct adapter_entry *entry = entry_add(adapters, upload->name, err);
    const double begun = monotonic_seconds();
    if (entry && folder_keep(adapters, upload->fd, upload->temporary, upload->name, err)) {
        upload->temporary[0] = 0;
        version->sync_s = monotonic_seconds() - begun;
        entry_publish(adapters, entry, version, &identity);
        return true;
    }
    pthread_mutex_lock(&adapters->lock);
    version_release(adapters, version, &dead);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, &dead);
    if (entry && !was_there)
        entry_remove(adapters, entry);
    return false;
}

bool adapter_upload_end(
    struct adapter_upload *upload, struct adapter_info *info, struct error *err) {
    struct adapters *adapters = upload->adapters;
    bool ok = upload->announced == 0 || upload->written == upload->announced ||
              error_set(err, ERROR_INVALID, "only %llu of the announced %llu bytes came",
                  (unsigned long long)upload->written, (unsigned long long)upload->announced);
    ok = ok && keeps_name(upload, true, err);
    if (ok) {
        work_begin(adapters);
        ok = upload_take(upload, err) &&
             (!info || entry_describe(adapters, upload->name, info, err));
        work_end(adapters);
    }
    adapter_upload_abort(upload);
    return ok;
}

void adapter_upload_abort(struct adapter_upload *upload) {
    if (!upload)
        return;
    leave(upload);
    if (upload->temporary[0])
        folder_remove_temporary(upload->adapters, upload->temporary);
    if (upload->fd >= 0)
        close(upload->fd);
    free(upload);
}

bool adapters_add_file(
    struct adapters *adapters, const char *name, const char *path, struct error *err) {
    struct adapter_upload *upload;
    char *bytes;
    size_t size;
    if (adapters->folder < 0)
        return adapters_load_file(adapters, name, path, NULL, err);
    if (!file_read(path, ADAPTER_FILE_MAX_BYTES, &bytes, &size, err))
        return false;
    bool ok = begin(adapters, name, size, true, &upload, err);
    if (ok && !adapter_upload_write(upload, bytes, size, err)) {
        adapter_upload_abort(upload);
        ok = false;
    } else if (ok) {
        ok = adapter_upload_end(upload, NULL, err);
    }
    free(bytes);
    return ok;
}
