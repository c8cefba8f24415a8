#include "train/checkpoint.h"

#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "models/checkpoint/safetensors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "checkpoint-"
#define STATE_FILE "state.safetensors"
#define WRITING ".writing" /* suffix of a folder that is not complete yet */
#define DELETING ".deleting"
#define ASIDE ".aside"

/* --- checksum --- */

/* FNV-1a over 64-bit words in four lanes. Each step can be inverted, so a single changed word
 * always changes the sum of its lane. */
static void sum_bytes(uint64_t lanes[4], const void *bytes, size_t size) {
    const char *at = bytes;
    for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, at + i, size - i < sizeof(word) ? size - i : sizeof(word));
        uint64_t *lane = &lanes[i / sizeof(word) % 4];
        *lane = (*lane ^ word) * 0x100000001b3u;
    }
}

static void sum_start(uint64_t lanes[4]) {
    for (uint64_t i = 0; i < 4; i++)
        lanes[i] = 0xcbf29ce484222325u + i;
}

static void sum_text(const uint64_t lanes[4], char text[65]) {
    snprintf(text, 65, "%016" PRIx64 "%016" PRIx64 "%016" PRIx64 "%016" PRIx64, lanes[0], lanes[1],
        lanes[2], lanes[3]);
}

/* --- writing --- */

/* Returns a part's bytes in host memory; the caller frees *copy. */
static const void *host_bytes(const struct checkpoint_part *part, void **copy, struct error *err) {
    *copy = NULL;
    if (!part->memory)
        return part->data;
    const void *seen = part->memory->view(part->data, part->bytes, err);
    if (!seen || seen == part->data)
        return seen;
    *copy = malloc(part->bytes); /* the next view would overwrite it */
    if (!*copy)
        error_set(err, ERROR_NO_MEMORY, "no memory to save %s", part->name);
    else
        memcpy(*copy, seen, part->bytes);
    return *copy;
}

static bool write_state(const char *path, const struct checkpoint_state *state, void **copies,
    struct safetensors_item *items, struct error *err) {
    char *numbers = json_dumps(state->numbers, JSON_COMPACT | JSON_SORT_KEYS);
    if (!numbers)
        return error_set(err, ERROR_NO_MEMORY, "no memory to save a job's numbers");
    uint64_t lanes[4];
    sum_start(lanes);
    sum_bytes(lanes, numbers, strlen(numbers));
    bool ok = true;
    for (size_t i = 0; ok && i < state->count; i++) {
        const struct checkpoint_part *part = &state->parts[i];
        const void *bytes = host_bytes(part, &copies[i], err);
        ok = bytes != NULL;
        items[i] = (struct safetensors_item){ part->name,
            tensor_1d((void *)bytes, DTYPE_I32, (int64_t)(part->bytes / 4)) };
        if (ok)
            sum_bytes(lanes, bytes, part->bytes);
    }
    char checksum[65];
    sum_text(lanes, checksum);
    json_t *metadata = json_pack("{s:s, s:s}", "numbers", numbers, "checksum", checksum);
    free(numbers);
    ok = ok && (metadata || error_set(err, ERROR_NO_MEMORY, "no memory to save a job")) &&
         safetensors_write(path, items, state->count, metadata, err);
    json_decref(metadata);
    return ok;
}

static bool write_file(
    const char *folder, const struct checkpoint_state *state, struct error *err) {
    char *path = file_join(folder, STATE_FILE);
    void **copies = calloc(state->count + 1, sizeof(*copies));
    struct safetensors_item *items = calloc(state->count + 1, sizeof(*items));
    const bool ok = path && copies && items
                        ? write_state(path, state, copies, items, err)
                        : error_set(err, ERROR_NO_MEMORY, "no memory to save a job");
    for (size_t i = 0; copies && i < state->count; i++)
        free(copies[i]);
    free(copies);
    free(items);
    free(path);
    return ok;
}

/* Deletes a folder of files; logs a warning if it cannot be deleted. */
static void delete_folder(const char *path) {
    DIR *folder = opendir(path);
    const struct dirent *entry;
    while (folder && (entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder)
        closedir(folder);
    if (rmdir(path) != 0 && errno != ENOENT)
        log_warning("%s could not be deleted: %s", path, strerror(errno));
}

static bool sync_folder(const char *path, struct error *err) {
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* Some file systems cannot sync folders. */
    const bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP);
    if (!ok)
        error_set(err, error_code_of_write(errno), "cannot sync %s: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Renames the folder `fresh` to `path`. If a folder was called `path` before, it is called `fresh`
 * or `old` afterwards. After a failure both folders have their former names. */
static bool take_name(const char *fresh, const char *path, const char *old) {
    if (renameat2(AT_FDCWD, fresh, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return true;
    if (errno == ENOENT) /* `path` does not exist */
        return rename(fresh, path) == 0;
    if ((errno != EINVAL && errno != ENOSYS) || rename(path, old) != 0)
        return false;
    /* This file system cannot exchange two names. */
    if (rename(fresh, path) == 0)
        return true;
    const int why = errno;
    if (rename(old, path) != 0)
        log_warning("the checkpoint %s is called %s now: %s", path, old, strerror(errno));
    errno = why;
    return false;
}

/* Renames the complete folder `fresh` to `path`, replacing a folder of that name. After a failure
 * `path` is unchanged. */
static bool put_in_place(
    const char *folder, const char *fresh, const char *path, struct error *err) {
    char *old = NULL;
    if (asprintf(&old, "%s" DELETING, path) < 0)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
    delete_folder(old);
    const bool named = take_name(fresh, path, old) ||
                       error_set(err, error_code_of_write(errno), "cannot make %s: %s", path,
                           strerror(errno));
    const bool ok = named && sync_folder(folder, err);
    if (named) {
        delete_folder(fresh);
        delete_folder(old);
    }
    free(old);
    return ok;
}

static char *path_of(const char *folder, int64_t step, const char *suffix) {
    char *path;
    return asprintf(&path, "%s/" PREFIX "%lld%s", folder, (long long)step, suffix) < 0 ? NULL
                                                                                       : path;
}

static void delete_oldest(const char *folder, int64_t limit) {
    int64_t *steps;
    size_t count;
    if (limit < 1 || !checkpoint_list(folder, &steps, &count, NULL))
        return;
    for (size_t i = 0; i + (size_t)limit < count; i++) {
        char *path = path_of(folder, steps[i], ""), *dying = path_of(folder, steps[i], DELETING);
        /* Renamed first, so that a half-deleted folder is never taken for a checkpoint. */
        if (path && dying && rename(path, dying) == 0)
            delete_folder(dying);
        free(path);
        free(dying);
    }
    free(steps);
}

bool checkpoint_write(const char *folder, int64_t step, const struct checkpoint_state *state,
    int64_t limit, bool (*beside)(void *user, const char *folder, struct error *err), void *user,
    struct error *err) {
    char *path = path_of(folder, step, ""), *fresh = path_of(folder, step, WRITING);
    bool ok = (path && fresh) || error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
    if (ok)
        delete_folder(fresh);
    ok = ok && (mkdir(fresh, 0777) == 0 || error_set(err, error_code_of_write(errno),
                                               "cannot make %s: %s", fresh, strerror(errno)));
    const bool made = ok;
    ok = ok && write_file(fresh, state, err) && (!beside || beside(user, fresh, err)) &&
         sync_folder(fresh, err) && put_in_place(folder, fresh, path, err);
    if (ok)
        delete_oldest(folder, limit);
    else if (made)
        delete_folder(fresh);
    free(path);
    free(fresh);
    return ok;
}

/* --- reading --- */

static bool read_part(struct safetensors *file, const struct checkpoint_part *part,
    uint64_t lanes[4], struct error *err) {
    const ptrdiff_t at = safetensors_find(file, part->name);
    struct tensor t;
    if (at < 0)
        return error_set(err, ERROR_INVALID, "it has no %s: it is another job's", part->name);
    if (!safetensors_view(file, (size_t)at, &t, err))
        return false;
    if (tensor_bytes(&t) != part->bytes)
        return error_set(err, ERROR_INVALID,
            "its %s has %zu bytes, this job's has %zu: another job", part->name, tensor_bytes(&t),
            part->bytes);
    sum_bytes(lanes, t.data, part->bytes);
    if (part->memory)
        return part->memory->upload(part->data, t.data, part->bytes, err);
    memcpy(part->data, t.data, part->bytes);
    return true;
}

static bool read_file(struct safetensors *file, struct checkpoint_state *state, struct error *err) {
    const json_t *metadata = safetensors_get_header(file)->metadata;
    const char *numbers = json_string_value(json_object_get(metadata, "numbers"));
    const char *expected = json_string_value(json_object_get(metadata, "checksum"));
    if (!numbers || !expected)
        return error_set(err, ERROR_INVALID, "it is no state of a job");
    uint64_t lanes[4];
    sum_start(lanes);
    sum_bytes(lanes, numbers, strlen(numbers));
    if (safetensors_get_header(file)->count != state->count)
        return error_set(err, ERROR_INVALID, "it has %zu parts, this job has %zu: another job",
            safetensors_get_header(file)->count, state->count);
    for (size_t i = 0; i < state->count; i++) {
        if (!read_part(file, &state->parts[i], lanes, err))
            return false;
        safetensors_drop_pages(file); /* a part may be as large as a model */
    }
    char checksum[65];
    sum_text(lanes, checksum);
    if (strcmp(checksum, expected) != 0)
        return error_set(err, ERROR_INVALID, "it is damaged: its checksum is not right");
    state->numbers = json_loads(numbers, 0, NULL);
    return json_is_object(state->numbers) ||
           error_set(err, ERROR_INVALID, "its numbers cannot be read");
}

bool checkpoint_read(const char *path, struct checkpoint_state *state, struct error *err) {
    struct safetensors *file = NULL;
    char *name = file_join(path, STATE_FILE);
    state->numbers = NULL;
    if (!name)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
    bool ok = safetensors_open(name, &file, err);
    if (ok)
        ok = (read_file(file, state, err) || error_prefix(err, "%s", path)) &&
             safetensors_intact(file, err);
    safetensors_close(file);
    free(name);
    if (!ok) {
        json_decref(state->numbers);
        state->numbers = NULL;
    }
    return ok;
}

static int by_step(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Returns the step in a name PREFIX-STEP, or -1. */
static int64_t step_of(const char *name, const char *prefix) {
    const size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0 || name[length] < '0' || name[length] > '9')
        return -1;
    char *end;
    errno = 0;
    const long long step = strtoll(name + length, &end, 10);
    return *end || errno ? -1 : step;
}

int64_t checkpoint_step(const char *name) {
    return step_of(name, PREFIX);
}

bool checkpoint_list(const char *folder, int64_t **steps, size_t *count, struct error *err) {
    return checkpoint_list_named(folder, PREFIX, steps, count, err);
}

bool checkpoint_list_named(
    const char *folder, const char *prefix, int64_t **steps, size_t *count, struct error *err) {
    *steps = NULL;
    *count = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT ||
               error_set(err, ERROR_IO, "cannot list %s: %s", folder, strerror(errno));
    const struct dirent *entry;
    bool ok = true;
    while (ok && (entry = readdir(dir))) {
        const int64_t step = step_of(entry->d_name, prefix);
        if (step < 0)
            continue;
        ok = LIST_ROOM(*steps, *count, "a list of checkpoints", err);
        if (ok)
            (*steps)[(*count)++] = step;
    }
    closedir(dir);
    if (ok && *count)
        qsort(*steps, *count, sizeof(**steps), by_step);
    if (!ok) {
        free(*steps);
        *steps = NULL;
    }
    return ok;
}

bool checkpoint_read_last(
    const char *folder, struct checkpoint_state *state, int64_t *step, struct error *err) {
    int64_t *steps;
    size_t count;
    *step = -1;
    if (!checkpoint_list(folder, &steps, &count, err))
        return false;
    bool found = count == 0;
    for (size_t i = count; i > 0 && !found; i--) {
        struct error why = { 0 };
        char *path = path_of(folder, steps[i - 1], "");
        found = path ? checkpoint_read(path, state, &why)
                     : error_set(&why, ERROR_NO_MEMORY, "no memory for a file name");
        free(path);
        if (found)
            *step = steps[i - 1];
        else
            log_warning("a checkpoint is passed over: %s", why.message);
        if (!found && i == 1)
            error_set(err, ERROR_INVALID,
                "%s: none of its %zu checkpoints can be used; the first: %s", folder, count,
                why.message);
    }
    free(steps);
    return found;
}

/* Returns the numbers of one checkpoint, or NULL. */
static json_t *numbers_at(const char *folder, int64_t step) {
    struct safetensors *file = NULL;
    struct error ignored;
    char *path = path_of(folder, step, ""), *name = path ? file_join(path, STATE_FILE) : NULL;
    json_t *numbers = NULL;
    if (name && safetensors_open(name, &file, &ignored)) {
        const json_t *metadata = safetensors_get_header(file)->metadata;
        const char *text = json_string_value(json_object_get(metadata, "numbers"));
        numbers = text ? json_loads(text, 0, NULL) : NULL;
    }
    safetensors_close(file);
    free(name);
    free(path);
    return numbers;
}

bool checkpoint_read_numbers(
    const char *folder, int64_t step, json_t **numbers, struct error *err) {
    int64_t *steps;
    size_t count;
    *numbers = NULL;
    if (!checkpoint_list(folder, &steps, &count, err))
        return false;
    for (size_t i = count; i > 0 && !*numbers; i--)
        if (step < 0 || steps[i - 1] == step)
            *numbers = numbers_at(folder, steps[i - 1]);
    free(steps);
    return true;
}

/* Reports that there is no checkpoint of the step, and lists the existing ones. */
static bool is_not_there(const char *folder, int64_t step, struct error *err) {
    int64_t *steps;
    size_t count, length = 0;
    char name[64], there[ERROR_ALLOWED_BYTES / 2] = "there is none";
    if (!checkpoint_list(folder, &steps, &count, err))
        return false;
    for (size_t i = 0; i < count && length < sizeof(there); i++)
        length += (size_t)snprintf(there + length, sizeof(there) - length, "%s" PREFIX "%lld",
            i ? ", " : "", (long long)steps[i]);
    free(steps);
    snprintf(name, sizeof(name), PREFIX "%lld", (long long)step);
    return error_field(
        err, "resume_from_checkpoint", name, "a checkpoint of %.100s: %s", folder, there);
}

bool checkpoint_read_step(
    const char *folder, int64_t step, struct checkpoint_state *state, struct error *err) {
    char *path = path_of(folder, step, "");
    const bool ok = !path ? error_set(err, ERROR_NO_MEMORY, "no memory for a file name")
                    : file_is_folder(path) ? checkpoint_read(path, state, err)
                                           : is_not_there(folder, step, err);
    free(path);
    return ok;
}

bool checkpoint_put_aside(const char *folder, int64_t after, struct error *err) {
    int64_t *steps;
    size_t count;
    bool ok = checkpoint_list(folder, &steps, &count, err);
    for (size_t i = count; ok && i > 0 && steps[i - 1] > after; i--) {
        char *path = path_of(folder, steps[i - 1], ""), *to = path_of(folder, steps[i - 1], ASIDE);
        ok = (path && to) || error_set(err, ERROR_NO_MEMORY, "no memory for a file name");
        if (ok && file_is_folder(to))
            delete_folder(to);
        ok = ok && (rename(path, to) == 0 || error_set(err, error_code_of_write(errno),
                                                 "cannot rename %s: %s", path, strerror(errno)));
        if (ok)
            log_warning(
                "%s is behind the checkpoint that the job goes on from: it is now %s", path, to);
        free(path);
        free(to);
    }
    free(steps);
    return ok;
}
