#include "engine/adapters/adapters.h"

#include "base/list.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "engine/adapters/internal.h"
#include "kernels/team.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct weight_list *component_list(
    const struct adapters *adapters, enum component component) {
    return component == COMPONENT_UNET ? adapters->base.unet : adapters->base.text_encoder;
}

void work_begin(struct adapters *adapters) {
    pthread_mutex_lock(&adapters->work);
    adapters->team = team_leave();
}

void work_end(struct adapters *adapters) {
    team_rejoin(adapters->team);
    pthread_mutex_unlock(&adapters->work);
}

/* ---- destroying versions and copies without references ---- */

void graveyard_empty(struct adapters *adapters, struct graveyard *graveyard) {
    if (!graveyard->versions && !graveyard->copies)
        return;
    adapters_device_take(adapters);
    while (graveyard->versions) {
        struct adapter_version *version = graveyard->versions;
        graveyard->versions = version->next_dead;
        version_destroy(version);
    }
    while (graveyard->copies) {
        struct adapter_copies *copies = graveyard->copies;
        graveyard->copies = copies->next;
        copies_destroy(adapters, copies);
    }
    adapters_device_give(adapters);
}

/* Moves what `from` holds to `to`. */
static void graveyard_move(struct graveyard *to, struct graveyard *from) {
    while (from->versions) {
        struct adapter_version *version = from->versions;
        from->versions = version->next_dead;
        version->next_dead = to->versions;
        to->versions = version;
    }
    while (from->copies) {
        struct adapter_copies *copies = from->copies;
        from->copies = copies->next;
        copies->next = to->copies;
        to->copies = copies;
    }
}

void graveyard_leave(struct adapters *adapters, struct graveyard *graveyard) {
    if (!graveyard->versions && !graveyard->copies)
        return;
    pthread_mutex_lock(&adapters->lock);
    void (*const collector)(void *user) = device_is_shared(adapters) ? NULL : adapters->collector;
    if (collector) {
        graveyard_move(&adapters->left, graveyard);
        collector(adapters->collector_user);
    }
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, graveyard);
}

void adapters_set_collector(struct adapters *adapters, void (*collector)(void *user), void *user) {
    pthread_mutex_lock(&adapters->lock);
    adapters->collector = collector;
    adapters->collector_user = user;
    pthread_mutex_unlock(&adapters->lock);
    adapters_collect(adapters);
}

void adapters_collect(struct adapters *adapters) {
    struct graveyard dead = { 0 };
    pthread_mutex_lock(&adapters->lock);
    graveyard_move(&dead, &adapters->left);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, &dead);
}

static void count_memory(const struct adapters *adapters) {
    int64_t loaded = 0;
    for (size_t i = 0; i < adapters->entry_count; i++)
        loaded += adapters->entries[i]->version != NULL;
    metric_set(METRIC_lora_loaded, loaded);
    metric_set(METRIC_lora_bytes, (int64_t)adapters->resident_bytes);
}

void version_release(
    struct adapters *adapters, struct adapter_version *version, struct graveyard *dead) {
    if (--version->references > 0)
        return;
    adapters->resident_bytes -= version->bytes;
    version->next_dead = dead->versions;
    dead->versions = version;
}

/* Whether every version that the copies were made from is still the latest version of a name. */
static bool is_current(const struct adapters *adapters, const struct adapter_copies *copies) {
    for (int i = 0; i < copies->source_count; i++) {
        bool found = false;
        for (size_t k = 0; k < adapters->entry_count && !found; k++)
            found = adapters->entries[k]->id == copies->sources[i].id;
        if (!found)
            return false;
    }
    return true;
}

static void bury_copies(
    struct adapters *adapters, struct adapter_copies *copies, struct graveyard *dead) {
    struct adapter_copies **link = &adapters->copies;
    while (*link != copies)
        link = &(*link)->next;
    *link = copies->next;
    adapters->resident_bytes -= copies->bytes;
    copies->next = dead->copies;
    dead->copies = copies;
}

void copies_release(
    struct adapters *adapters, struct adapter_copies *copies, struct graveyard *dead) {
    if (--copies->references == 0 && !is_current(adapters, copies))
        bury_copies(adapters, copies, dead);
}

static void bury_stale_copies(struct adapters *adapters, struct graveyard *dead) {
    for (struct adapter_copies *c = adapters->copies, *next; c; c = next) {
        next = c->next;
        if (c->references == 0 && !is_current(adapters, c))
            bury_copies(adapters, c, dead);
    }
}

/* ---- memory ---- */

/* Moves the least recently used version or copies without users to `dead`, which frees their
 * memory. Returns false if there are none to move. */
static bool give_way(struct adapters *adapters, struct graveyard *dead) {
    struct adapter_copies *oldest_copies = NULL;
    struct adapter_entry *oldest = NULL;
    for (struct adapter_copies *c = adapters->copies; c; c = c->next)
        if (c->references == 0 && (!oldest_copies || c->last_used < oldest_copies->last_used))
            oldest_copies = c;
    for (size_t i = 0; i < adapters->entry_count; i++) {
        struct adapter_entry *e = adapters->entries[i];
        /* A version from a file outside the folder is kept, because that file may be gone or
         * replaced by now. A file named by adapters_refer stays where it is, so its version may be
         * freed. */
        const bool idle = e->version && e->version->references == 1 && e->version->bytes > 0 &&
                          !e->pinned && !e->is_default && (!e->path || e->refers);
        if (idle && (!oldest || e->last_used < oldest->last_used))
            oldest = e;
    }
    if (oldest_copies && (!oldest || oldest_copies->last_used <= oldest->last_used)) {
        bury_copies(adapters, oldest_copies, dead);
        return true;
    }
    if (!oldest)
        return false;
    log_info("adapter %s: unloaded to make room", oldest->name);
    version_release(adapters, oldest->version, dead);
    oldest->version = NULL;
    return true;
}

static bool fits(const struct adapters *adapters, size_t bytes, size_t available) {
    const size_t limit = adapters->options.memory_bytes;
    return bytes <= available &&
           (limit == 0 || (bytes <= limit && adapters->resident_bytes <= limit - bytes));
}

bool memory_take(struct adapters *adapters, size_t bytes, const char *what, struct error *err) {
    struct graveyard dead = { 0 };
    struct available available;
    adapters_collect(adapters);
    adapters->base.kernels->memory->available(&available);
    pthread_mutex_lock(&adapters->lock);
    bool ok = fits(adapters, bytes, available.bytes);
    while (!ok && give_way(adapters, &dead)) {
        pthread_mutex_unlock(&adapters->lock);
        graveyard_empty(adapters, &dead);
        adapters->base.kernels->memory->available(&available);
        pthread_mutex_lock(&adapters->lock);
        ok = fits(adapters, bytes, available.bytes);
    }
    if (ok)
        adapters->resident_bytes += bytes;
    const size_t used = adapters->resident_bytes, limit = adapters->options.memory_bytes;
    count_memory(adapters);
    pthread_mutex_unlock(&adapters->lock);
    if (ok)
        return true;
    if (limit != 0 && (bytes > limit || used > limit - bytes))
        return error_set(err, ERROR_NO_MEMORY,
            "no room for %s: %zu KiB are needed, adapters may take %zu KiB in all, and those in "
            "use, pinned or default take %zu KiB",
            what, bytes >> 10, limit >> 10, used >> 10);
    return error_set(err, ERROR_NO_MEMORY,
        "no room for %s: %zu MiB are needed, and %zu MiB are left%s%s", what, bytes >> 20,
        available.bytes >> 20, available.why[0] ? ": " : "", available.why);
}

void memory_give(struct adapters *adapters, size_t bytes) {
    pthread_mutex_lock(&adapters->lock);
    adapters->resident_bytes -= bytes;
    pthread_mutex_unlock(&adapters->lock);
}

/* ---- names ---- */

static int by_name(const struct adapter_entry *a, const char *name) {
    return strcmp(a->name, name);
}

static int by_stem(const struct adapter_entry *a, const char *stem) {
    return strcmp(a->stem, stem);
}

/* Returns the index of the first entry of a sorted list that does not come before `text`. */
static size_t first_from(struct adapter_entry *const *list, size_t count,
    int (*compare)(const struct adapter_entry *a, const char *text), const char *text) {
    size_t low = 0, high = count;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (compare(list[mid], text) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

size_t entry_position(const struct adapters *adapters, const char *name) {
    return first_from(adapters->entries, adapters->entry_count, by_name, name);
}

static size_t stem_position(const struct adapters *adapters, const char *stem) {
    return first_from(adapters->stems, adapters->stem_count, by_stem, stem);
}

struct adapter_entry *entry_find(const struct adapters *adapters, const char *name) {
    const size_t at = entry_position(adapters, name);
    const bool found = at < adapters->entry_count && strcmp(adapters->entries[at]->name, name) == 0;
    return found ? adapters->entries[at] : NULL;
}

static bool has_stem(const struct adapters *adapters, size_t at, const char *stem) {
    return at < adapters->stem_count && strcmp(adapters->stems[at]->stem, stem) == 0;
}

struct adapter_entry *entry_asked(
    const struct adapters *adapters, const char *asked, bool *several) {
    struct adapter_entry *entry = entry_find(adapters, asked);
    *several = false;
    if (entry)
        return entry;
    const size_t at = stem_position(adapters, asked);
    if (!has_stem(adapters, at, asked))
        return NULL;
    *several = has_stem(adapters, at + 1, asked);
    return *several ? NULL : adapters->stems[at];
}

bool adapters_may_add(
    struct adapters *adapters, const char *param, const char *name, struct error *err) {
    char *folded = adapter_name_fold(name), other[ADAPTER_NAME_MAX_BYTES + 1] = "";
    if (!folded)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a name");
    pthread_mutex_lock(&adapters->lock);
    for (size_t i = 0; !other[0] && !entry_find(adapters, name) && i < adapters->entry_count; i++)
        if (strcmp(adapters->entries[i]->folded, folded) == 0)
            memcpy(other, adapters->entries[i]->name, sizeof(other));
    pthread_mutex_unlock(&adapters->lock);
    free(folded);
    if (!other[0])
        return true;
    error_field(err, param, name,
        "a name that differs from the existing \"%s\" in more than case and the form of its "
        "accents",
        other);
    if (err)
        err->code = ERROR_CONFLICT;
    return false;
}

static void entry_free(struct adapter_entry *entry) {
    free(entry->folded);
    free(entry->path);
    free(entry);
}

static bool in_folder(const struct adapter_entry *entry) {
    return entry->stem != entry->name;
}

static void put_in(
    struct adapter_entry **list, size_t *count, size_t at, struct adapter_entry *entry) {
    memmove(list + at + 1, list + at, (*count - at) * sizeof(struct adapter_entry *));
    list[at] = entry;
    ++*count;
}

/* Removes the entry, which is in the list at `at` or after it. */
static void take_out(
    struct adapter_entry **list, size_t *count, size_t at, const struct adapter_entry *entry) {
    while (list[at] != entry)
        at++;
    --*count;
    memmove(list + at, list + at + 1, (*count - at) * sizeof(struct adapter_entry *));
}

struct adapter_entry *entry_add(struct adapters *adapters, const char *name, struct error *err) {
    struct adapter_entry *entry = entry_find(adapters, name);
    if (entry)
        return entry;
    entry = calloc(1, sizeof(*entry));
    if (entry) {
        memccpy(entry->name, name, 0, sizeof(entry->name) - 1);
        entry->stem = adapter_name_stem(entry->name);
        entry->folded = adapter_name_fold(entry->name);
    }
    pthread_mutex_lock(&adapters->lock);
    const bool ok = entry && entry->folded &&
                    LIST_ROOM(adapters->entries, adapters->entry_count, "a name", NULL) &&
                    LIST_ROOM(adapters->stems, adapters->stem_count, "a name", NULL);
    if (ok) {
        put_in(adapters->entries, &adapters->entry_count, entry_position(adapters, name), entry);
        if (in_folder(entry))
            put_in(adapters->stems, &adapters->stem_count, stem_position(adapters, entry->stem),
                entry);
    }
    pthread_mutex_unlock(&adapters->lock);
    if (ok)
        return entry;
    if (entry)
        entry_free(entry);
    error_set(err, ERROR_NO_MEMORY, "no memory for the name of an adapter");
    return NULL;
}

void entry_remove(struct adapters *adapters, struct adapter_entry *entry) {
    struct graveyard dead = { 0 };
    pthread_mutex_lock(&adapters->lock);
    take_out(
        adapters->entries, &adapters->entry_count, entry_position(adapters, entry->name), entry);
    if (in_folder(entry))
        take_out(
            adapters->stems, &adapters->stem_count, stem_position(adapters, entry->stem), entry);
    if (entry->version)
        version_release(adapters, entry->version, &dead);
    bury_stale_copies(adapters, &dead);
    count_memory(adapters);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, &dead);
    entry_free(entry);
}

/* ---- versions of a name ---- */

bool version_load(struct adapters *adapters, int fd, const char *path, struct adapter_version **out,
    struct error *err) {
    const double begun = monotonic_seconds();
    struct adapter_version *version;
    size_t bytes;
    if (!version_open(adapters, fd, path, &version, &bytes, err))
        return false;
    if (!memory_take(adapters, bytes, path, err)) {
        version_destroy(version);
        return false;
    }
    if (!version_place(adapters, version, err)) {
        memory_give(adapters, bytes);
        graveyard_empty(adapters, &(struct graveyard){ .versions = version });
        return error_prefix(err, "%s", path);
    }
    pthread_mutex_lock(&adapters->lock);
    adapters->resident_bytes += version->bytes - bytes;
    pthread_mutex_unlock(&adapters->lock);
    version->references = 1;
    version->load_s = monotonic_seconds() - begun;
    *out = version;
    return true;
}

void entry_publish(struct adapters *adapters, struct adapter_entry *entry,
    struct adapter_version *version, const struct file_identity *identity) {
    struct graveyard dead = { 0 };
    pthread_mutex_lock(&adapters->lock);
    if (entry->id == 0 || !identity_equal(&entry->identity, identity))
        entry->id = ++adapters->last_id;
    version->id = entry->id;
    entry->identity = entry->seen = *identity;
    entry->summary = version->summary;
    entry->has_summary = true;
    entry->error = (struct error){ 0 };
    entry->last_used = ++adapters->clock;
    if (entry->version)
        version_release(adapters, entry->version, &dead);
    entry->version = version;
    bury_stale_copies(adapters, &dead);
    count_memory(adapters);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, &dead);
    metric_observe(METRIC_lora_load_seconds, version->load_s);
    log_info("adapter %s: version %llu, %zu layers, %zu KiB, loaded in %.1f ms%s", entry->name,
        (unsigned long long)version->id, version->matched, version->bytes >> 10,
        1e3 * version->load_s, version->unmatched_count ? "; not all of it found a layer" : "");
}

/* Whether this file was refused before, so that loading it again would fail again. */
static bool is_refused(const struct adapter_entry *entry, const struct file_identity *identity) {
    const enum error_code code = entry->error.code;
    return (code == ERROR_INVALID || code == ERROR_UNSUPPORTED || code == ERROR_TOO_LARGE) &&
           identity_equal(&entry->seen, identity);
}

bool entry_load(struct adapters *adapters, struct adapter_entry *entry, struct error *err) {
    char shown[NAME_MAX + 1];
    struct file_identity identity = { 0 }; /* zero for a file outside the folder */
    struct adapter_version *version = NULL;
    int fd = -1;
    if (!entry->path) {
        fd = folder_open_file(adapters, entry->name, shown, err);
        if (fd < 0)
            return false;
        identity_read(fd, &identity);
    }
    const bool same = entry->version && identity_equal(&entry->identity, &identity);
    struct error why = entry->error;
    if (same || is_refused(entry, &identity)) {
        if (fd >= 0)
            close(fd);
    } else if (version_load(adapters, fd, entry->path ? entry->path : shown, &version, &why)) {
        entry_publish(adapters, entry, version, &identity);
        return true;
    } else {
        pthread_mutex_lock(&adapters->lock);
        entry->error = why;
        entry->seen = identity;
        pthread_mutex_unlock(&adapters->lock);
    }
    if (!same && err)
        *err = why;
    return same;
}

void entry_unload(struct adapters *adapters, struct adapter_entry *entry) {
    struct graveyard dead = { 0 };
    pthread_mutex_lock(&adapters->lock);
    if (entry->version)
        version_release(adapters, entry->version, &dead);
    entry->version = NULL;
    count_memory(adapters);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, &dead);
}

/* ---- the checkpoint ---- */

static void set_base(struct adapters *adapters, const struct adapters_base *base) {
    const struct kernels *kernels = adapters->base.kernels;
    adapters->base = base ? *base : (struct adapters_base){ .kernels = kernels };
    adapters->base_id++;
    for (int i = 0; i < ADAPTER_COMPONENTS; i++)
        adapters->pristine[i] = base ? weights_from_checkpoint(base->checkpoint, (enum component)i,
                                           base->kernels, base->dtype)
                                     : (struct weights){ 0 };
}

/* Call with `lock` held. Drops everything that was made for the previous checkpoint, and marks the
 * adapters that adapters_rebase must load again. */
static void forget_versions(struct adapters *adapters, struct graveyard *dead) {
    for (size_t i = 0; i < adapters->entry_count; i++) {
        struct adapter_entry *entry = adapters->entries[i];
        entry->marked = entry->version || entry->pinned || entry->is_default;
        if (entry->version)
            version_release(adapters, entry->version, dead);
        entry->version = NULL;
        entry->id = 0;          /* so that the same file gets a new version number */
        if (entry->has_summary) /* an adapter that did not fit the old checkpoint */
            entry->error = (struct error){ 0 };
    }
    bury_stale_copies(adapters, dead);
    count_memory(adapters);
}

void adapters_rebase(struct adapters *adapters, const struct adapters_base *base,
    void (*switched)(uint64_t base_id, void *user), void *user) {
    struct graveyard dead = { 0 };
    work_begin(adapters);
    struct checkpoint *before = adapters->base.checkpoint;
    pthread_mutex_lock(&adapters->lock);
    forget_versions(adapters, &dead);
    set_base(adapters, base);
    switched(adapters->base_id, user);
    pthread_mutex_unlock(&adapters->lock);
    graveyard_empty(adapters, &dead);
    checkpoint_close(before);
    for (size_t i = 0; base && i < adapters->entry_count; i++) {
        struct error why = { 0 };
        if (adapters->entries[i]->marked && !entry_load(adapters, adapters->entries[i], &why))
            log_warning("adapter %s: %s", adapters->entries[i]->name, why.message);
    }
    work_end(adapters);
}

uint64_t adapters_base_id(struct adapters *adapters) {
    pthread_mutex_lock(&adapters->lock);
    const uint64_t id = adapters->base_id;
    pthread_mutex_unlock(&adapters->lock);
    return id;
}

/* ---- creating and destroying the registry ---- */

bool adapters_create(const struct adapters_options *options, const struct adapters_base *base,
    struct adapters **out, struct error *err) {
    struct adapters *adapters = calloc(1, sizeof(*adapters));
    if (!adapters)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a registry of adapters");
    adapters->options = *options;
    adapters->owners = 1;
    pthread_mutex_init(&adapters->lock, NULL);
    pthread_mutex_init(&adapters->work, NULL);
    pthread_mutex_init(&adapters->turn.lock, NULL);
    pthread_cond_init(&adapters->turn.given, NULL);
    struct adapters_scan scan;
    adapters->base = *base;
    adapters->base.checkpoint = NULL; /* owned by the caller until success */
    if (!folder_open(adapters, err) || !folder_scan(adapters, &scan, err)) {
        adapters_destroy(adapters);
        return false;
    }
    set_base(adapters, base);
    if (adapters->folder >= 0)
        log_info("%s: %d adapters%s", adapters->folder_path, scan.added,
            scan.failed || scan.passed_over ? ", and files that are none" : "");
    *out = adapters;
    return true;
}

struct adapters *adapters_share(struct adapters *adapters) {
    pthread_mutex_lock(&adapters->lock);
    adapters->owners++;
    pthread_mutex_unlock(&adapters->lock);
    return adapters;
}

static bool is_last_owner(struct adapters *adapters) {
    pthread_mutex_lock(&adapters->lock);
    const bool last = --adapters->owners == 0;
    pthread_mutex_unlock(&adapters->lock);
    return last;
}

void adapters_destroy(struct adapters *adapters) {
    if (!adapters || !is_last_owner(adapters))
        return;
    struct graveyard dead = { 0 };
    for (size_t i = 0; i < adapters->entry_count; i++) {
        struct adapter_entry *entry = adapters->entries[i];
        if (entry->version)
            version_release(adapters, entry->version, &dead);
        entry_free(entry);
    }
    dead.copies = adapters->copies;
    graveyard_move(&dead, &adapters->left);
    graveyard_empty(adapters, &dead);
    for (size_t i = 0; i < adapters->text_key_count; i++)
        free(adapters->text_keys[i].sources);
    free(adapters->entries);
    free(adapters->stems);
    checkpoint_close(adapters->base.checkpoint);
    if (adapters->folder >= 0)
        close(adapters->folder);
    free(adapters->folder_path);
    pthread_mutex_destroy(&adapters->lock);
    pthread_mutex_destroy(&adapters->work);
    pthread_mutex_destroy(&adapters->turn.lock);
    pthread_cond_destroy(&adapters->turn.given);
    free(adapters);
}
