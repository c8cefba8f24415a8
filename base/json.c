#include "base/json.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* jansson recurses up to 2048 levels, when it parses and again when it frees, and makes 40 bytes
 * and more of a value that takes two. Count brackets and commas outside of strings first; whether
 * they are right is jansson's business. */
static bool is_bounded(const char *text, size_t size, struct error *err) {
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
        } else if (c == ',' && ++commas >= JSON_MAX_VALUES) {
            return error_set(err, ERROR_INVALID, "JSON of more than %d values", JSON_MAX_VALUES);
        }
    }
    return true;
}

static json_t *parse(const char *text, size_t size, size_t flags, struct error *err) {
    if (!is_bounded(text, size, err))
        return NULL;
    json_error_t problem;
    json_t *value = json_loadb(
        size ? text : "", size, flags | JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &problem);
    if (!value && problem.line < 0) /* its parser could not begin */
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu bytes of JSON", size);
    else if (!value)
        error_set(err, ERROR_INVALID, "not valid JSON at line %d, column %d: %s", problem.line,
            problem.column, problem.text);
    return value;
}

json_t *json_parse(const char *text, size_t size, struct error *err) {
    return parse(text, size, 0, err);
}

/* Writes null over Infinity and -Infinity outside of strings. */
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
    json_t *value = parse(text, size, flags, err);
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
    /* 2^53: beyond it a double no longer says which integer was meant. */
    double real = json_is_real(value) ? json_real_value(value) : 0.5;
    if (real != floor(real) || fabs(real) > 9007199254740992.0)
        return false;
    *out = (int64_t)real;
    return true;
}

/* Numbers as a person wrote them: 0.1, not 0.10000000000000001. */
const char *json_describe(const json_t *value, char *text, size_t size) {
    char *dump = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15))
                       : NULL;
    const char *shown = dump ? dump : value ? "(unprintable)" : "(missing)";
    int length = snprintf(text, size, "%s", shown);
    if (length >= 0 && (size_t)length >= size && size > 4) {
        size_t end = size - 4;
        while (end > 0 && ((unsigned char)text[end] & 0xc0) == 0x80)
            end--; /* not inside a character */
        memcpy(text + end, "...", 4);
    }
    free(dump);
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
