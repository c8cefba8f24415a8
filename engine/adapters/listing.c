#include "engine/adapters/internal.h"

#include <stdlib.h>
#include <string.h>

/* A listing holds the lock for this many adapters at a time, so that requests need not wait for a
 * long list. */
#define LISTED_AT_ONCE 32

const char *adapter_state_name(enum adapter_state state) {
    static const char *const names[] = {
        [ADAPTER_ON_DISK] = "on_disk",
        [ADAPTER_LOADED] = "loaded",
        [ADAPTER_FAILED] = "failed",
    };
    return names[state];
}

static bool copy_unmatched(const struct adapter_version *version, struct adapter_info *out) {
    out->unmatched = calloc(version->unmatched_count + 1, sizeof(*out->unmatched));
    if (!out->unmatched)
        return false;
    for (size_t i = 0; i < version->unmatched_count; i++) {
        out->unmatched[i] = strdup(version->unmatched[i]);
        if (!out->unmatched[i])
            return false;
        out->unmatched_count++;
    }
    return true;
}

/* Returns where the shortest name that a request may use for the entry begins in its name. */
static size_t short_name(const struct adapters *adapters, const struct adapter_entry *entry) {
    bool several;
    return entry_asked(adapters, entry->stem, &several) == entry
               ? (size_t)(entry->stem - entry->name)
               : 0;
}

/* Call with `lock` held. The caller finishes *out, even on failure. */
static bool fill(
    const struct adapters *adapters, const struct adapter_entry *entry, struct adapter_info *out) {
    const struct adapter_version *version = entry->version;
    *out = (struct adapter_info){
        .short_name = short_name(adapters, entry),
        .state = version             ? ADAPTER_LOADED
                 : entry->error.code ? ADAPTER_FAILED
                                     : ADAPTER_ON_DISK,
        .version = entry->id,
        .file_bytes = version ? version->file_bytes : (uint64_t)entry->seen.bytes,
        .pinned = entry->pinned,
        .is_default = entry->is_default,
        .default_weight = entry->default_weight,
        .default_text_encoder_weight = entry->default_text_encoder_weight,
        .summary = version ? version->summary : entry->summary,
        .has_summary = version || entry->has_summary,
        .error = entry->error,
    };
    memcpy(out->name, entry->name, sizeof(out->name));
    if (!version)
        return true;
    out->resident_bytes = version->bytes;
    out->users = version->users;
    out->matched = version->matched;
    out->load_s = version->load_s;
    out->sync_s = version->sync_s;
    return copy_unmatched(version, out);
}

void adapter_info_finish(struct adapter_info *info) {
    for (size_t i = 0; i < info->unmatched_count; i++)
        free(info->unmatched[i]);
    free(info->unmatched);
    *info = (struct adapter_info){ 0 };
}

bool entry_describe(
    struct adapters *adapters, const char *name, struct adapter_info *out, struct error *err) {
    pthread_mutex_lock(&adapters->lock);
    const struct adapter_entry *entry = entry_find(adapters, name);
    const bool filled = entry && fill(adapters, entry, out);
    pthread_mutex_unlock(&adapters->lock);
    if (!entry)
        return error_set(
            err, ERROR_NOT_FOUND, "there is no adapter \"%.*s\"", ADAPTER_NAME_MAX_BYTES, name);
    if (filled)
        return true;
    adapter_info_finish(out);
    return error_set(err, ERROR_NO_MEMORY, "no memory to describe an adapter");
}

bool adapters_describe(
    struct adapters *adapters, const char *name, struct adapter_info *out, struct error *err) {
    return entry_describe(adapters, name, out, err);
}

bool adapters_find(struct adapters *adapters, const char *asked,
    char name[ADAPTER_NAME_MAX_BYTES + 1], struct error *err) {
    bool several;
    pthread_mutex_lock(&adapters->lock);
    const struct adapter_entry *entry = entry_asked(adapters, asked, &several);
    if (entry)
        memcpy(name, entry->name, sizeof(entry->name));
    pthread_mutex_unlock(&adapters->lock);
    return entry || error_set(err, ERROR_NOT_FOUND,
                        several ? "there are several adapters \"%.*s\" in different folders"
                                : "there is no adapter \"%.*s\"",
                        ADAPTER_NAME_MAX_BYTES, asked);
}

/* Call with `lock` held. Appends the next entries to the listing, at most LISTED_AT_ONCE, for
 * which there is room. They are those after the listing's last name, because others may have come
 * and gone. *more: further entries follow. */
static bool list_some(const struct adapters *adapters, struct adapters_listing *out, bool *more) {
    const char *last = out->count > 0 ? out->items[out->count - 1].name : NULL;
    size_t at = last ? entry_position(adapters, last) : 0;
    if (last && at < adapters->entry_count && strcmp(adapters->entries[at]->name, last) == 0)
        at++;
    bool ok = true;
    for (int i = 0; ok && i < LISTED_AT_ONCE && at < adapters->entry_count; i++, out->count++)
        ok = fill(adapters, adapters->entries[at++], &out->items[out->count]);
    out->resident_bytes = adapters->resident_bytes;
    *more = at < adapters->entry_count;
    return ok;
}

bool adapters_list(struct adapters *adapters, struct adapters_listing *out, struct error *err) {
    *out = (struct adapters_listing){ .limit_bytes = adapters->options.memory_bytes,
        .merge = adapters->options.merge,
        .folder = adapters->folder_path };
    bool ok = true;
    for (bool more = true; ok && more;) {
        struct adapter_info *items = realloc(
            out->items, (out->count + LISTED_AT_ONCE) * sizeof(*items));
        ok = items != NULL;
        if (!ok)
            break;
        out->items = items;
        pthread_mutex_lock(&adapters->lock);
        ok = list_some(adapters, out, &more);
        pthread_mutex_unlock(&adapters->lock);
    }
    if (ok)
        return true;
    adapters_listing_finish(out);
    return error_set(err, ERROR_NO_MEMORY, "no memory to list the adapters");
}

void adapters_listing_finish(struct adapters_listing *listing) {
    for (size_t i = 0; i < listing->count; i++)
        adapter_info_finish(&listing->items[i]);
    free(listing->items);
    *listing = (struct adapters_listing){ 0 };
}
