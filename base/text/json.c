#include "base/text/json.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/text/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Checks depth and size before jansson parses. jansson recurses up to 2048 levels, both when it
 * parses and when it frees, and takes 40 bytes or more for a value of two bytes. So this counts
 * brackets and commas outside of strings. Whether they are in the right places is left to
 * jansson. */
static bool is_bounded(const char *text, size_t size, int values_max, struct error *err) {
    int depth = 0, commas = 0;
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_MAX_DEPTH)
                return error_set(err, ERROR_INVALID,
                    "JSON is nested deeper than %d levels at byte %zu", JSON_MAX_DEPTH, i);
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && ++commas >= values_max) {
            return error_set(err, ERROR_INVALID, "JSON of more than %d values", values_max);
        }
    }
    return true;
}

static json_t *parse(
    const char *text, size_t size, int values_max, size_t flags, struct error *err) {
    if (!is_bounded(text, size, values_max, err))
        return NULL;
    json_error_t problem;
    json_t *value = json_loadb(
        size ? text : "", size, flags | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    if (!value && problem.line < 0) /* jansson's parser could not start */
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes of JSON", size);
    else if (!value)
        error_set(err, ERROR_INVALID, "not valid JSON at line %d, column %d: %s", problem.line,
            problem.column, problem.text);
    return value;
}

json_t *json_parse(const char *text, size_t size, struct error *err) {
    return parse(text, size, JSON_MAX_VALUES, 0, err);
}

json_t *json_parse_request(const char *text, size_t size, struct error *err) {
    return parse(text, size, JSON_REQUEST_MAX_VALUES, 0, err);
}

/* Replaces Infinity and -Infinity outside of strings by null. */
static void write_over_infinities(char *text, size_t size) {
    static const char *const words[] = { "-Infinity", "Infinity" };
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        for (size_t k = 0; k < 2 && !in_string; k++) {
            size_t length = strlen(words[k]);
            if (i < size && length <= size - i && memcmp(text + i, words[k], length) == 0)
                memcpy(memset(text + i, ' ', length), "null", 4);
        }
    }
}

static json_t *parse_file(
    const char *path, size_t max_bytes, size_t flags, bool from_python, struct error *err) {
    char *text;
    size_t size;
    if (!file_read(path, max_bytes, &text, &size, err)) {
        return NULL;
    }
    if (from_python)
        write_over_infinities(text, size);
    json_t *value = parse(text, size, JSON_MAX_VALUES, flags, err);
    free(text);
    if (!value) {
        error_prefix(err, "%s", path);
    }
    return value;
}

json_t *json_parse_file(const char *path, size_t max_bytes, struct error *err) {
    return parse_file(path, max_bytes, 0, false, err);
}

json_t *json_parse_file_as_reals(const char *path, size_t max_bytes, struct error *err) {
    return parse_file(path, max_bytes, JSON_DECODE_INT_AS_REAL, false, err);
}

json_t *json_parse_python_file(const char *path, size_t max_bytes, struct error *err) {
    return parse_file(path, max_bytes, 0, true, err);
}

bool json_exact_integer(const json_t *value, int64_t *out) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    /* 2^53: above it, several integers have the same double. */
    double real = json_is_real(value) ? json_real_value(value) : 0.5;
    if (real != floor(real) || fabs(real) > 9007199254740992.0)
        return false;
    *out = (int64_t)real;
    return true;
}

/* A text buffer of fixed size. `full`: something did not fit. */
struct cut {
    char *text;
    size_t size, used;
    bool full;
};

static void put(struct cut *cut, const char *text, size_t length) {
    const size_t room = cut->size - cut->used;
    const size_t count = length < room ? length : room;
    memcpy(cut->text + cut->used, text, count);
    cut->used += count;
    cut->full = cut->full || count < length;
}

static void put_text(struct cut *cut, const char *text) {
    put(cut, text, strlen(text));
}

/* Writes the value as JSON without its last `end` bytes. Numbers have 15 digits, so that 0.1 is not
 * shown as 0.10000000000000001. */
static void put_dumped(struct cut *cut, const json_t *value, size_t end) {
    char *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    const char *shown = dump ? dump : "(unprintable)";
    const size_t length = strlen(shown);
    put(cut, shown, dump && end < length ? length - end : length);
    free(dump);
}

/* Writes a string as JSON. Looks at no more bytes than the buffer has: escapes only make a text
 * longer. */
static void put_string(struct cut *cut, const char *text, size_t length) {
    size_t shown = length < cut->size ? length : cut->size;
    while (shown < length && shown > 0 && ((unsigned char)text[shown] & 0xc0) == 0x80)
        shown--; /* do not cut inside a character */
    json_t *string = json_stringn(text, shown);
    put_dumped(cut, string, shown < length ? 1 : 0); /* drop the closing quote if cut */
    cut->full = cut->full || shown < length;
    json_decref(string);
}

static void put_value(struct cut *cut, const json_t *value) {
    const char *key;
    json_t *member;
    if (json_is_string(value)) {
        put_string(cut, json_string_value(value), json_string_length(value));
    } else if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value) && !cut->full; i++) {
            put_text(cut, i ? "," : "[");
            put_value(cut, json_array_get(value, i));
        }
        put_text(cut, json_array_size(value) > 0 ? "]" : "[]");
    } else if (json_is_object(value)) {
        bool first = true;
        json_object_foreach((json_t *)value, key, member) {
            put_text(cut, first ? "{" : ",");
            first = false;
            put_string(cut, key, strlen(key));
            put_text(cut, ":");
            put_value(cut, member);
            if (cut->full)
                break;
        }
        put_text(cut, first ? "{}" : "}");
    } else {
        put_dumped(cut, value, 0);
    }
}

const char *json_describe(const json_t *value, char *text, size_t size) {
    struct cut cut = { .text = text, .size = size - 1 };
    if (value)
        put_value(&cut, value);
    else
        put_text(&cut, "(missing)");
    text[cut.used] = 0;
    if (cut.full && size > 4) {
        size_t end = size - 4;
        while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
            end--; /* do not cut inside a character */
        memcpy(text + end, "...", 4);
    }
    return text;
}

bool json_bad_field(const char *name, const json_t *value, const char *allowed, struct error *err) {
    char text[128];
    return error_field(err, name, json_describe(value, text, sizeof(text)), "%s", allowed);
}

json_t *json_lenient_string(const char *text) {
    static const char replacement[] = "\xef\xbf\xbd";
    const size_t size = strlen(text);
    if (size > (SIZE_MAX - 1) / 3)
        return NULL;
    char *clean = malloc(3 * size + 1);
    if (!clean)
        return NULL;
    size_t used = 0;
    for (size_t at = 0; at < size;) {
        const int length = utf8_character_bytes(text + at, size - at);
        if (length < 0)
            break;
        const char *from = length ? text + at : replacement;
        const size_t count = length ? (size_t)length : sizeof(replacement) - 1;
        memcpy(clean + used, from, count);
        used += count;
        at += length ? (size_t)length : 1;
    }
    json_t *string = json_stringn(clean, used);
    free(clean);
    return string;
}

bool json_write_file(const char *folder, const char *name, const json_t *json, struct error *err) {
    char *path = file_join(folder, name);
    char *text = json ? json_dumps(json, JSON_INDENT(2)) : NULL;
    const struct file_part parts[] = { { text, text ? strlen(text) : 0 }, { "\n", 1 } };
    const bool ok = path && text ? file_write(path, parts, 2, err)
                                 : error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
    free(path);
    free(text);
    return ok;
}
