/* The operations that change a name: load, unload, delete, set, rescan. One runs at a time
 * (`work`). */
#include "engine/adapters/internal.h"

#include "base/file.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool no_such_name(const char *name, struct error *err) {
    return error_set(
        err, ERROR_NOT_FOUND, "there is no adapter \"%.*s\"", ADAPTER_NAME_MAX_BYTES, name);
}

/* Returns the name's entry. Adds one if a file of that name has appeared in the folder since the
 * last scan. */
static struct adapter_entry *find_or_look(
    struct adapters *adapters, const char *name, struct error *err) {
    char shown[NAME_MAX + 1];
    struct adapter_entry *entry = entry_find(adapters, name);
    if (entry)
        return entry;
    struct error why;
    if (adapters->folder < 0 || !adapter_name_check("name", name, &why)) {
        no_such_name(name, err);
        return NULL;
    }
    const int fd = folder_open_file(adapters, name, shown, &why);
    if (fd < 0) {
        if (why.code == ERROR_NOT_FOUND)
            no_such_name(name, err);
        else if (err)
            *err = why;
        return NULL;
    }
    close(fd);
    return entry_add(adapters, name, err);
}

static bool describe(
    struct adapters *adapters, const char *name, struct adapter_info *info, struct error *err) {
    return !info || entry_describe(adapters, name, info, err);
}

bool adapters_load(
    struct adapters *adapters, const char *name, struct adapter_info *info, struct error *err) {
    work_begin(adapters);
    struct adapter_entry *entry = find_or_look(adapters, name, err);
    const bool ok = entry && entry_load(adapters, entry, err) &&
                    describe(adapters, name, info, err);
    work_end(adapters);
    return ok;
}

bool adapters_load_file(struct adapters *adapters, const char *name, const char *path,
    struct adapter_info *info, struct error *err) {
    if (!adapter_name_check("name", name, err))
        return false;
    work_begin(adapters);
    struct adapter_entry *entry = entry_find(adapters, name);
    const bool is_new = !entry;
    char *copy = strdup(path);
    bool ok = copy || error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    if (ok && !is_new)
        ok = error_set(err, ERROR_INVALID,
            "%.200s: it would be the adapter %s, and there is another of that name%s%.200s: give "
            "it "
            "another file name",
            path, name, adapters->folder_path ? " in " : "",
            adapters->folder_path ? adapters->folder_path : "");
    if (ok && (entry = entry_add(adapters, name, err))) {
        entry->path = copy;
        copy = NULL;
        ok = entry_load(adapters, entry, err) && describe(adapters, name, info, err);
        if (!ok)
            entry_remove(adapters, entry);
    }
    free(copy);
    work_end(adapters);
    return ok && entry;
}

bool adapters_unload(struct adapters *adapters, const char *name, struct error *err) {
    work_begin(adapters);
    struct adapter_entry *entry = entry_find(adapters, name);
    bool ok = entry != NULL;
    if (!ok)
        no_such_name(name, err);
    else if (entry->is_default || entry->pinned)
        ok = error_set(err, ERROR_CONFLICT,
            "%s is %s and therefore stays loaded: change that first", name,
            entry->pinned ? "pinned" : "a default");
    else
        entry_unload(adapters, entry);
    work_end(adapters);
    return ok;
}

bool adapters_delete(struct adapters *adapters, const char *name, struct error *err) {
    work_begin(adapters);
    struct adapter_entry *entry = entry_find(adapters, name);
    bool ok = entry != NULL;
    if (!ok)
        no_such_name(name, err);
    else if (entry->path || folder_remove(adapters, entry->name, err))
        entry_remove(adapters, entry);
    else
        ok = false;
    work_end(adapters);
    if (ok)
        log_info("adapter %s: deleted", name);
    return ok;
}

static bool check_default(const char *param, double weight, struct error *err) {
    char value[32];
    if (isfinite(weight) && fabs(weight) <= ADAPTER_WEIGHT_MAX)
        return true;
    snprintf(value, sizeof(value), "%g", weight);
    return error_field(
        err, param, value, "a number from %g to %g", -ADAPTER_WEIGHT_MAX, ADAPTER_WEIGHT_MAX);
}

bool adapters_set(struct adapters *adapters, const char *name,
    const struct adapter_settings *settings, struct adapter_info *info, struct error *err) {
    const bool becomes_default = settings->has_default && settings->is_default;
    if (becomes_default &&
        (!check_default("default_weight", settings->weight, err) ||
            !check_default("text_encoder_weight", settings->text_encoder_weight, err)))
        return false;
    work_begin(adapters);
    struct adapter_entry *entry = find_or_look(adapters, name, err);
    const bool stays = becomes_default || (settings->has_pinned && settings->pinned);
    bool ok = entry && (!stays || entry->version || entry_load(adapters, entry, err));
    if (ok && becomes_default)
        ok = defaults_prepare(
            adapters, entry, settings->weight, settings->text_encoder_weight, err);
    if (ok) {
        pthread_mutex_lock(&adapters->lock);
        if (settings->has_default) {
            entry->is_default = settings->is_default;
            entry->default_weight = settings->is_default ? settings->weight : 0;
            entry->default_text_encoder_weight = settings->is_default
                                                     ? settings->text_encoder_weight
                                                     : 0;
        }
        if (settings->has_pinned)
            entry->pinned = settings->pinned;
        pthread_mutex_unlock(&adapters->lock);
        ok = describe(adapters, name, info, err);
    }
    work_end(adapters);
    return ok;
}

bool adapters_rescan(struct adapters *adapters, struct adapters_scan *out, struct error *err) {
    work_begin(adapters);
    const bool ok = folder_scan(adapters, out, err);
    work_end(adapters);
    return ok;
}

/* Returns the name's entry for the file at `path`, adding it if needed. *is_new: the entry's header
 * has not been read yet. */
static struct adapter_entry *refer(struct adapters *adapters, const char *name, const char *path,
    bool *is_new, struct error *err) {
    struct adapter_entry *entry = entry_find(adapters, name);
    *is_new = !entry || !entry->path || strcmp(entry->path, path) != 0;
    if (!*is_new)
        return entry;
    char *copy = strdup(path);
    if (!copy) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a path");
        return NULL;
    }
    if (entry) /* another file, so it gets a new version number */
        entry_remove(adapters, entry);
    entry = entry_add(adapters, name, err);
    if (!entry) {
        free(copy);
        return NULL;
    }
    entry->path = copy;
    entry->refers = true;
    return entry;
}

bool adapters_refer(
    struct adapters *adapters, const char *name, const char *path, struct error *err) {
    struct file_identity identity;
    uint64_t bytes;
    bool is_new = false;
    if (!adapter_reference_check("name", name, err))
        return false;
    const int fd = file_open_regular(path, &bytes, err);
    if (fd < 0)
        return false;
    work_begin(adapters);
    struct adapter_entry *entry = identity_read(fd, &identity)
                                      ? refer(adapters, name, path, &is_new, err)
                                      : NULL;
    if (entry && is_new)
        entry_look(adapters, entry, fd, path, &identity);
    else
        close(fd);
    work_end(adapters);
    return entry;
}

void adapters_forget(struct adapters *adapters, const char *folder, bool gone) {
    const size_t length = strlen(folder);
    work_begin(adapters);
    for (size_t i = adapters->entry_count; i-- > 0;) {
        struct adapter_entry *entry = adapters->entries[i];
        if (entry->refers && strncmp(entry->path, folder, length) == 0 &&
            entry->path[length] == '/' && !(gone && file_exists(entry->path)))
            entry_remove(adapters, entry);
    }
    work_end(adapters);
}
