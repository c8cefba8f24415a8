#include "kernels/tuner_cache.h"

#include "base/file.h"
#include "base/hash.h"
#include "base/limits.h"
#include "base/list.h"
#include "base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define FORMAT "latentd-tuner 1"
#define FILE_MAX_BYTES (4u << 20)
#define WHY_BYTES 1024

void tuner_cache_init(struct tuner_cache *cache, const char *identity) {
    memset(cache, 0, sizeof(*cache));
    snprintf(cache->identity, sizeof(cache->identity), "%s", identity);
}

void tuner_cache_finish(struct tuner_cache *cache) {
    free(cache->entries);
    memset(cache, 0, sizeof(*cache));
}

/* --- identities --- */

static size_t part_length(const char *at) {
    const char *end = strstr(at, ", ");
    return end ? (size_t)(end - at) : strlen(at);
}

/* Returns the part after this one, or NULL. */
static const char *next_part(const char *at) {
    at += part_length(at);
    return *at ? at + 2 : NULL;
}

static bool has_part(const char *identity, const char *part) {
    const size_t length = part_length(part);
    for (; identity; identity = next_part(identity))
        if (part_length(identity) == length && memcmp(identity, part, length) == 0)
            return true;
    return false;
}

/* Appends `word` and the parts of `of` that are not in `other`; appends nothing if there are
 * none. */
static void list_parts(
    const char *word, const char *of, const char *other, char *text, size_t size) {
    for (; of; of = next_part(of)) {
        const size_t used = strlen(text);
        if (has_part(other, of))
            continue;
        snprintf(text + used, size - used, "%s%.*s", word, (int)part_length(of), of);
        word = ", ";
    }
}

static void say_difference(const char *theirs, const char *ours, char *why, size_t size) {
    snprintf(why, size, "it was measured");
    list_parts(" with ", theirs, ours, why, size);
    list_parts(strstr(why, " with ") ? "; this is " : " without ", ours, theirs, why, size);
}

/* --- files --- */

bool tuner_cache_path(const char *identity, char *path, size_t size) {
    const char *given = getenv("LATENTD_TUNER_CACHE");
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const uint64_t h = hash_fnv1a(identity, part_length(identity));
    int used;
    if (given && *given)
        used = snprintf(path, size, "%s", given);
    else if (cache && cache[0] == '/')
        used = snprintf(path, size, "%s/latentd/tuner-%016" PRIx64 ".txt", cache, h);
    else if (home && home[0] == '/')
        used = snprintf(path, size, "%s/.cache/latentd/tuner-%016" PRIx64 ".txt", home, h);
    else
        return false;
    return used > 0 && (size_t)used < size;
}

const struct tuner_entry *tuner_cache_find(const struct tuner_cache *cache, const char *key) {
    for (int i = 0; i < cache->count; i++)
        if (strcmp(cache->entries[i].key, key) == 0)
            return &cache->entries[i];
    return NULL;
}

bool tuner_cache_put(
    struct tuner_cache *cache, const struct tuner_entry *entry, struct error *err) {
    struct tuner_entry *old = (struct tuner_entry *)tuner_cache_find(cache, entry->key);
    if (old) {
        *old = *entry;
        return true;
    }
    if (cache->count == TUNER_SHAPES_MAX)
        return error_set(err, ERROR_NO_MEMORY, "the tuner keeps at most %d shapes", cache->count);
    if (!LIST_ROOM(cache->entries, cache->count, "the tuner's choices", err))
        return false;
    cache->entries[cache->count++] = *entry;
    return true;
}

/* Copies the next field of a line, which ends with `end`, and moves *at behind it. */
static bool take(const char **at, char end, char *out, size_t size) {
    const char *found = strchr(*at, end);
    if (!found || (size_t)(found - *at) >= size || memchr(*at, '\n', (size_t)(found - *at)))
        return false;
    memcpy(out, *at, (size_t)(found - *at));
    out[found - *at] = 0;
    *at = found + 1;
    return true;
}

static bool take_number(const char **at, char end, double *out) {
    char text[40], *rest;
    if (!take(at, end, text, sizeof(text)))
        return false;
    *out = strtod(text, &rest);
    return rest != text && !*rest && *out >= 0 && *out < 1e12;
}

/* Reads the file. Its first line has the format and the identity. Its last line has the number of
 * entries and a hash of the text before it. */
static bool parse(struct tuner_cache *cache, const char *text, size_t size, char *why) {
    char word[TUNER_IDENTITY_BYTES], tail[64];
    const char *at = text;
    snprintf(why, WHY_BYTES, "it is no file of this version");
    if (!take(&at, '\t', word, sizeof(word)) || strcmp(word, FORMAT) != 0 ||
        !take(&at, '\n', word, sizeof(word)))
        return false;
    if (strcmp(word, cache->identity) != 0) {
        say_difference(word, cache->identity, why, WHY_BYTES);
        return false;
    }
    snprintf(why, WHY_BYTES, "it is damaged");
    while (strncmp(at, "end\t", 4) != 0) {
        struct tuner_entry e = { 0 };
        double candidates, wrong;
        if (!take(&at, '\t', e.key, sizeof(e.key)) || !take(&at, '\t', e.name, sizeof(e.name)) ||
            !take_number(&at, '\t', &e.us) || !take_number(&at, '\t', &e.default_us) ||
            !take_number(&at, '\t', &candidates) || !take_number(&at, '\n', &wrong))
            return false;
        e.candidates = candidates < 1e6 ? (int)candidates : 0;
        e.wrong = wrong < 1e6 ? (int)wrong : 0;
        if (!tuner_cache_put(cache, &e, NULL))
            return false;
    }
    snprintf(tail, sizeof(tail), "end\t%d\t%016" PRIx64 "\n", cache->count,
        hash_fnv1a(text, (size_t)(at - text)));
    return strlen(at) == strlen(tail) && strcmp(at, tail) == 0 && (size_t)(at - text) < size;
}

void tuner_cache_load(struct tuner_cache *cache, const char *path) {
    char *text = NULL;
    size_t size = 0;
    struct error err = { 0 };
    char why[WHY_BYTES];
    const bool is_read = file_read(path, FILE_MAX_BYTES, &text, &size, &err);
    if (is_read && parse(cache, text, size, why)) {
        free(text);
        return;
    }
    if (err.code != ERROR_NOT_FOUND)
        log_warning("%s: ignored, %s", path, is_read ? why : err.message);
    free(text);
    free(cache->entries);
    cache->entries = NULL;
    cache->count = 0;
}

/* Creates every folder above the file. */
static bool make_folders(const char *path, struct error *err) {
    char folder[4096];
    if (snprintf(folder, sizeof(folder), "%s", path) >= (int)sizeof(folder))
        return error_set(err, ERROR_INVALID, "%s: too long a path", path);
    for (char *slash = strchr(folder + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            return error_set(err, ERROR_IO, "%s: %s", folder, strerror(errno));
        *slash = '/';
    }
    return true;
}

bool tuner_cache_store(const struct tuner_cache *cache, const char *path, struct error *err) {
    char *text = NULL;
    size_t size = 0;
    if (!make_folders(path, err))
        return false;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the tuner's file");
    fprintf(out, "%s\t%s\n", FORMAT, cache->identity);
    for (int i = 0; i < cache->count; i++) {
        const struct tuner_entry *e = &cache->entries[i];
        fprintf(out, "%s\t%s\t%.3f\t%.3f\t%d\t%d\n", e->key, e->name, e->us, e->default_us,
            e->candidates, e->wrong);
    }
    fflush(out);
    fprintf(out, "end\t%d\t%016" PRIx64 "\n", cache->count, hash_fnv1a(text, size));
    bool ok = fclose(out) == 0 || error_set(err, ERROR_NO_MEMORY, "no memory for the tuner's file");
    const struct file_part part = { text, size };
    ok = ok && file_write(path, &part, 1, err);
    free(text);
    return ok;
}

int tuner_cache_apply(const struct tuner_cache *cache, const struct tuner *tuner) {
    int applied = 0;
    for (int i = 0; i < cache->count; i++)
        applied += tuner->choose(cache->entries[i].key, cache->entries[i].name);
    return applied;
}
