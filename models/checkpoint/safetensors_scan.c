#include "models/checkpoint/safetensors_scan.h"

#include "base/limits.h"
#include "base/text/json.h"

#include <stdlib.h>
#include <string.h>

struct scanner {
    const char *at, *end;
};

static void skip_spaces(struct scanner *s) {
    while (s->at < s->end && (*s->at == ' ' || *s->at == '\n' || *s->at == '\t' || *s->at == '\r'))
        s->at++;
}

static bool take(struct scanner *s, char c) {
    skip_spaces(s);
    if (s->at == s->end || *s->at != c)
        return false;
    s->at++;
    return true;
}

/* Takes a text of printable ASCII without escapes. */
static bool take_text(struct scanner *s, const char **text, size_t *length) {
    if (!take(s, '"'))
        return false;
    *text = s->at;
    while (s->at < s->end && *s->at != '"' && *s->at != '\\' && *s->at >= 0x20 && *s->at <= 0x7e)
        s->at++;
    *length = (size_t)(s->at - *text);
    return take(s, '"') && s->at == *text + *length + 1;
}

/* Takes an integer from 0 to 10^18 - 1. */
static bool take_integer(struct scanner *s, uint64_t *out) {
    skip_spaces(s);
    const char *begin = s->at;
    for (*out = 0; s->at < s->end && *s->at >= '0' && *s->at <= '9' && s->at - begin < 18; s->at++)
        *out = *out * 10 + (uint64_t)(*s->at - '0');
    return s->at > begin && (*begin != '0' || s->at == begin + 1);
}

static bool is_text(const char *text, size_t length, const char *word) {
    return length == strlen(word) && memcmp(text, word, length) == 0;
}

static bool take_dtype(struct scanner *s, struct safetensors_entry *entry) {
    const char *word;
    size_t length;
    if (!take_text(s, &word, &length))
        return false;
    for (int i = 0; i < SAFETENSORS_DTYPE_COUNT; i++)
        if (is_text(word, length, safetensors_dtype_name((enum safetensors_dtype)i))) {
            entry->dtype = (enum safetensors_dtype)i;
            return true;
        }
    return false;
}

static bool take_shape(struct scanner *s, struct safetensors_entry *entry) {
    uint64_t size;
    entry->elements = 1;
    if (!take(s, '['))
        return false;
    if (take(s, ']'))
        return true;
    do {
        if (entry->rank == TENSOR_MAX_RANK || !take_integer(s, &size) || size < 1 ||
            size > INT32_MAX || __builtin_mul_overflow(entry->elements, size, &entry->elements))
            return false;
        entry->shape[entry->rank++] = (int64_t)size;
    } while (take(s, ','));
    return take(s, ']');
}

static bool take_offsets(struct scanner *s, struct safetensors_entry *entry) {
    return take(s, '[') && take_integer(s, &entry->begin) && take(s, ',') &&
           take_integer(s, &entry->end) && take(s, ']');
}

/* Takes {"dtype": ..., "shape": [...], "data_offsets": [..., ...]}, in any order. */
static bool take_entry(struct scanner *s, uint64_t data_bytes, struct safetensors_entry *entry) {
    static const struct {
        const char *key;
        bool (*take)(struct scanner *s, struct safetensors_entry *entry);
    } members[] = { { "dtype", take_dtype }, { "shape", take_shape },
        { "data_offsets", take_offsets } };
    bool taken[3] = { false };
    const char *key;
    size_t length;
    if (!take(s, '{'))
        return false;
    for (int i = 0; i < 3; i++) {
        int which = 0;
        if ((i > 0 && !take(s, ',')) || !take_text(s, &key, &length) || !take(s, ':'))
            return false;
        while (which < 3 && !is_text(key, length, members[which].key))
            which++;
        if (which == 3 || taken[which] || !members[which].take(s, entry))
            return false;
        taken[which] = true;
    }
    uint64_t bytes;
    return take(s, '}') && entry->begin <= entry->end && entry->end <= data_bytes &&
           !__builtin_mul_overflow(
               entry->elements, (uint64_t)safetensors_dtype_size(entry->dtype), &bytes) &&
           bytes == entry->end - entry->begin;
}

/* Takes an object without objects in it, and parses it as JSON. */
static bool take_metadata(struct scanner *s, struct safetensors_header *out) {
    bool in_text = false;
    skip_spaces(s);
    const char *begin = s->at;
    for (; s->at < s->end && (in_text || *s->at != '}'); s->at++) {
        if (*s->at == '\\' && s->at + 1 < s->end)
            s->at++;
        else if (*s->at == '"')
            in_text = !in_text;
    }
    if (out->json || !take(s, '}'))
        return false;
    out->json = out->metadata = json_parse(begin, (size_t)(s->at - begin), NULL);
    return out->json;
}

/* Adds an empty entry with this name. *room: how many entries fit. */
static struct safetensors_entry *add_entry(
    struct safetensors_header *out, size_t *room, char **names, const char *name, size_t length) {
    if (length == 0 || length > SAFETENSORS_MAX_NAME_BYTES || out->count == SAFETENSORS_MAX_TENSORS)
        return NULL;
    if (out->count == *room) {
        *room = *room ? 2 * *room : 256;
        struct safetensors_entry *more = reallocarray(out->entries, *room, sizeof(*more));
        if (!more)
            return NULL;
        out->entries = more;
    }
    struct safetensors_entry *entry = &out->entries[out->count++];
    *entry = (struct safetensors_entry){ .name = *names };
    memcpy(*names, name, length);
    (*names)[length] = 0;
    *names += length + 1;
    return entry;
}

static bool scan(struct scanner *s, uint64_t data_bytes, struct safetensors_header *out) {
    char *names = out->names;
    size_t room = 0, length;
    const char *name;
    if (!take(s, '{'))
        return false;
    do {
        if (!take_text(s, &name, &length) || !take(s, ':'))
            return false;
        if (is_text(name, length, "__metadata__")) {
            if (!take_metadata(s, out))
                return false;
            continue;
        }
        struct safetensors_entry *entry = add_entry(out, &room, &names, name, length);
        if (!entry || !take_entry(s, data_bytes, entry))
            return false;
    } while (take(s, ','));
    if (!take(s, '}'))
        return false;
    skip_spaces(s);
    return s->at == s->end;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool names_differ(const struct safetensors_header *header) {
    const char **names = calloc(header->count + 1, sizeof(*names));
    bool ok = names;
    for (size_t i = 0; ok && i < header->count; i++)
        names[i] = header->entries[i].name;
    if (ok)
        qsort(names, header->count, sizeof(*names), by_text);
    for (size_t i = 1; ok && i < header->count; i++)
        ok = strcmp(names[i - 1], names[i]) != 0;
    free(names);
    return ok;
}

bool safetensors_scan(
    const char *text, size_t size, uint64_t data_bytes, struct safetensors_header *out) {
    struct scanner s = { text, text + size };
    *out = (struct safetensors_header){ .names = malloc(size + 1) };
    if (out->names && scan(&s, data_bytes, out) && names_differ(out))
        return true;
    safetensors_header_finish(out);
    return false;
}
