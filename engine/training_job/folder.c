#include "engine/training_job/folder.h"

#include "base/file.h"
#include "base/text/json.h"
#include "base/text/words.h"
#include "train/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

char *job_folder_path(const char *state_folder, const char *id) {
    char *path;
    return asprintf(&path, "%s/jobs/%s", state_folder, id) < 0 ? NULL : path;
}

static bool make_one(const char *path, struct error *err) {
    return mkdir(path, 0755) == 0 || errno == EEXIST ||
           error_set(err, ERROR_IO, "%s: %s", path, strerror(errno));
}

bool job_folder_make(const char *folder, struct error *err) {
    const char *slash = strrchr(folder, '/');
    char *parent = slash ? strndup(folder, (size_t)(slash - folder)) : NULL;
    if (slash && !parent)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    const bool has_parent = parent && *parent;
    const bool ok = (!has_parent || make_one(parent, err)) && make_one(folder, err);
    if (ok)
        file_sync_folder_of(folder);
    if (ok && has_parent)
        file_sync_folder_of(parent);
    free(parent);
    return ok;
}

void job_folder_remove(const char *folder) {
    file_remove_tree(AT_FDCWD, folder);
}

bool job_folder_adapter_name(const char *folder, char out[ADAPTER_NAME_MAX_BYTES + 1]) {
    char *path = file_join(folder, "config.json");
    json_t *config = path ? json_parse_file(path, TRAIN_CONFIG_MAX_BYTES, NULL) : NULL;
    const char *name = json_string_value(json_object_get(config, "name"));
    const bool ok = name && words_check_name("name", name, NULL);
    if (ok)
        snprintf(out, ADAPTER_NAME_MAX_BYTES + 1, "%s", name);
    json_decref(config);
    free(path);
    return ok;
}

char *job_folder_adapter(const char *folder, const char *name, bool is_second) {
    char *path;
    return asprintf(&path, "%s/%s%s.safetensors", folder, name, is_second ? ".kohya" : "") < 0
               ? NULL
               : path;
}

bool job_folder_checkpoint_name(
    const char *adapter, int64_t step, char out[ADAPTER_NAME_MAX_BYTES + 1]) {
    const int length = snprintf(
        out, ADAPTER_NAME_MAX_BYTES + 1, "%s@%lld", adapter, (long long)step);
    return length > 0 && length <= ADAPTER_NAME_MAX_BYTES;
}

static char *checkpoint_path(const char *folder, int64_t step, const char *file) {
    char *path;
    return asprintf(&path, "%s/checkpoint-%lld%s", folder, (long long)step, file) < 0 ? NULL : path;
}

char *job_folder_checkpoint_adapter(const char *folder, int64_t step) {
    return checkpoint_path(folder, step, "/adapter.safetensors");
}

/* Returns the size of all files in a folder. */
static json_int_t bytes_in(const char *path) {
    json_int_t bytes = 0;
    DIR *dir = opendir(path);
    struct stat st;
    for (struct dirent *e; dir && (e = readdir(dir));)
        if (fstatat(dirfd(dir), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            bytes += st.st_size;
    if (dir)
        closedir(dir);
    return bytes;
}

/* Adds a checkpoint to the list, unless it has just been removed. Returns false if there is no
 * memory. */
static bool add_checkpoint(const char *folder, const char *adapter, int64_t step, json_t *list) {
    char *path = checkpoint_path(folder, step, ""), *file = NULL;
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    struct stat st;
    bool ok = path && (file = job_folder_checkpoint_adapter(folder, step));
    if (ok && stat(path, &st) == 0) {
        const bool named = adapter && file_exists(file) &&
                           job_folder_checkpoint_name(adapter, step, name);
        ok = json_array_append_new(
                 list, json_pack("{s:I, s:s, s:s?, s:I, s:f}", "step", (json_int_t)step, "name",
                           strrchr(path, '/') + 1, "adapter", named ? name : NULL, "bytes",
                           bytes_in(path), "created_at",
                           (double)st.st_mtim.tv_sec + 1e-9 * (double)st.st_mtim.tv_nsec)) == 0;
    }
    free(path);
    free(file);
    return ok;
}

bool job_folder_checkpoints(const char *folder, json_t **out, struct error *err) {
    char adapter[ADAPTER_NAME_MAX_BYTES + 1];
    const bool named = job_folder_adapter_name(folder, adapter);
    int64_t *steps;
    size_t count;
    *out = NULL;
    if (!checkpoint_list(folder, &steps, &count, err))
        return false;
    json_t *list = json_array();
    bool ok = list;
    for (size_t i = 0; ok && i < count; i++)
        ok = add_checkpoint(folder, named ? adapter : NULL, steps[i], list);
    free(steps);
    if (ok) {
        *out = list;
        return true;
    }
    json_decref(list);
    return error_set(err, ERROR_NO_MEMORY, "no memory to list %s", folder);
}

char *job_folder_validation(const char *folder) {
    return file_join(folder, "validation");
}

char *job_folder_validation_step(const char *folder, int64_t step) {
    char *path;
    return asprintf(&path, "%s/validation/step-%lld", folder, (long long)step) < 0 ? NULL : path;
}

/* Accepts only names that validation.c and grid.c write: formats the name again from the numbers
 * parsed from it, and compares. */
char *job_folder_validation_file(const char *folder, const char *name) {
    char again[64], *path;
    long long step;
    int prompt, image;
    if (sscanf(name, "step-%lld/%d-%d.png", &step, &prompt, &image) == 3)
        snprintf(again, sizeof(again), "step-%lld/%d-%d.png", step, prompt, image);
    else
        snprintf(again, sizeof(again), "grid.png");
    if (strcmp(name, again) != 0)
        return NULL;
    return asprintf(&path, "%s/validation/%s", folder, name) < 0 ? NULL : path;
}

bool job_folder_validations(const char *folder, json_t **out, struct error *err) {
    char *path = job_folder_validation(folder);
    int64_t *steps = NULL;
    size_t count = 0;
    json_t *list = json_array();
    err->code = ERROR_NONE;
    bool ok = path && list && checkpoint_list_named(path, "step-", &steps, &count, err);
    for (size_t i = 0; ok && i < count; i++) {
        char *step = job_folder_validation_step(folder, steps[i]);
        char *file = step ? file_join(step, VALIDATION_LIST) : NULL;
        json_t *json = file ? json_parse_file(file, TRAIN_CONFIG_MAX_BYTES, NULL) : NULL;
        ok = file;
        if (json_is_object(json)) /* else its pictures are still being drawn */
            ok = json_array_append(list, json) == 0;
        json_decref(json);
        free(file);
        free(step);
    }
    free(steps);
    free(path);
    if (ok) {
        *out = list;
        return true;
    }
    json_decref(list);
    return err->code != ERROR_NONE
               ? false
               : error_set(err, ERROR_NO_MEMORY, "no memory to list %s", folder);
}
