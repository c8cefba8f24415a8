#include "server/openai/metadata_filter.h"

#include "base/limits.h"
#include "server/http/query.h"

#include <string.h>

#define NAME "metadata"
#define NAME_BYTES 96   /* metadata[KEY], with a key of at most 64 bytes */
#define VALUE_BYTES 513 /* of a value, with its NUL */

/* Reads the key of metadata[KEY] in place. Returns false if `name` has another form. */
static bool read_key(char *name) {
    const size_t begin = strlen(NAME) + 1, length = strlen(name);
    if (length <= begin || name[begin - 1] != '[' || name[length - 1] != ']')
        return false;
    name[length - 1] = 0;
    memmove(name, name + begin, length - begin);
    return true;
}

static bool add(struct metadata_filter *filter, char *name, const char *value, struct error *err) {
    const bool is_whole = strcmp(name, NAME) == 0;
    if (is_whole ? strcmp(value, "null") != 0 || filter->wanted || filter->none : filter->none)
        return error_field(err, NAME, value, "metadata[KEY]=VALUE, or null alone");
    if (is_whole) {
        filter->none = true;
        return true;
    }
    if (!read_key(name))
        return error_field(err, name, value, "metadata[KEY]=VALUE");
    if (json_object_get(filter->wanted, name))
        return error_field(err, NAME, name, "each key at most once");
    if (json_object_size(filter->wanted) == FINE_TUNING_METADATA_MAX)
        return error_field(err, NAME, name, "at most %d keys", FINE_TUNING_METADATA_MAX);
    if (!filter->wanted)
        filter->wanted = json_object();
    return json_object_set_new(filter->wanted, name, json_string(value)) == 0 ||
           error_field(err, NAME, "bytes", "a text in UTF-8");
}

/* Adds the pair of `length` bytes if it is the filter's: *taken. */
static bool take(const char *pair, size_t length, struct metadata_filter *filter, bool *taken,
    struct error *err) {
    char name[NAME_BYTES], value[VALUE_BYTES];
    const char *equals = memchr(pair, '=', length);
    const size_t name_length = equals ? (size_t)(equals - pair) : length;
    *taken = strncmp(pair, NAME, strlen(NAME)) == 0;
    if (!*taken)
        return true;
    if (!query_unescape(pair, name_length, true, name, sizeof(name)) ||
        !query_unescape(equals ? equals + 1 : "", equals ? length - name_length - 1 : 0, true,
            value, sizeof(value)))
        return error_field(err, NAME, "a key or a value",
            "keys of at most 64 bytes and values of at most 512, rightly escaped");
    return add(filter, name, value, err);
}

bool metadata_filter_take(
    const char *target, struct metadata_filter *out, char **rest, struct error *err) {
    const char *query = strchr(target, '?');
    *out = (struct metadata_filter){ 0 };
    *rest = strdup(target);
    if (!*rest)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    if (!query)
        return true;
    char *end = *rest + (query - target), separator = '?';
    for (const char *at = query; *at;) {
        const size_t length = strcspn(++at, "&");
        bool taken;
        if (!take(at, length, out, &taken, err))
            return false;
        if (!taken) {
            *end++ = separator;
            memcpy(end, at, length);
            end += length;
            separator = '&';
        }
        at += length;
    }
    *end = 0;
    return true;
}

void metadata_filter_finish(struct metadata_filter *filter) {
    json_decref(filter->wanted);
    *filter = (struct metadata_filter){ 0 };
}
