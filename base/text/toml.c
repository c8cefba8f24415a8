#include "base/text/toml.h"

#include "base/file.h"
#include "base/limits.h"
#include "base/text/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* While a file is read, each table has this key, which no file can have. Its value says what the
 * table may still get; a table without it was only named on the way to another (`a` in [a.b]). */
#define MARK ""
enum mark {
    MARK_HEADER = 1, /* [a] or [[a]]: tables below it by headers */
    MARK_DOTTED,     /* a.b = 1: more keys by dots */
    MARK_INLINE,     /* { b = 1 }: nothing */
};

struct reader {
    const char *at, *end;
    int line, depth;
    struct error *err;
};

/* --- errors --- */

__attribute__((format(printf, 2, 3))) static bool refuse(
    struct reader *r, const char *format, ...) {
    char text[200];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    return error_set(r->err, ERROR_INVALID, "not valid TOML at line %d: %s", r->line, text);
}

static bool no_memory(struct reader *r) {
    return error_set(r->err, ERROR_NO_MEMORY, "no memory for a TOML file");
}

/* --- characters --- */

static bool is_at(const struct reader *r, char c) {
    return r->at < r->end && *r->at == c;
}

static bool skip(struct reader *r, char c) {
    const bool is_there = is_at(r, c);
    r->at += is_there;
    return is_there;
}

static void skip_blanks(struct reader *r) {
    while (is_at(r, ' ') || is_at(r, '\t'))
        r->at++;
}

static void skip_comment(struct reader *r) {
    if (is_at(r, '#'))
        while (r->at < r->end && *r->at != '\n')
            r->at++;
}

/* Skips blanks, comments and ends of lines. */
static void skip_lines(struct reader *r) {
    for (;;) {
        skip_blanks(r);
        skip_comment(r);
        if (is_at(r, '\r') && r->end - r->at > 1 && r->at[1] == '\n')
            r->at++;
        if (!skip(r, '\n'))
            return;
        r->line++;
    }
}

/* Checks that nothing but a comment follows in the line. */
static bool end_line(struct reader *r) {
    skip_blanks(r);
    skip_comment(r);
    if (is_at(r, '\r') && r->end - r->at > 1 && r->at[1] == '\n')
        r->at++;
    return r->at == r->end || is_at(r, '\n') || refuse(r, "more than one value in a line");
}

/* --- strings --- */

static int hex_of(char c) {
    return isdigit((unsigned char)c) ? c - '0' : tolower((unsigned char)c) - 'a' + 10;
}

/* Writes a character as UTF-8; returns its end. */
static char *put_character(unsigned long code, char *out) {
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const unsigned char heads[] = { 0, 0xc0, 0xe0, 0xf0 };
    *out++ = (char)(heads[more] | code >> 6 * more);
    for (int i = more - 1; i >= 0; i--)
        *out++ = (char)(0x80 | (code >> 6 * i & 0x3f));
    return out;
}

/* Reads what follows a backslash. */
static bool read_escape(struct reader *r, char **out) {
    static const char from[] = "btnfr\"\\", to[] = "\b\t\n\f\r\"\\";
    const char c = *r->at++;
    const char *simple = c ? strchr(from, c) : NULL;
    if (simple) {
        *(*out)++ = to[simple - from];
        return true;
    }
    const int digits = c == 'u' ? 4 : c == 'U' ? 8 : 0;
    unsigned long code = 0;
    for (int i = 0; i < digits; i++) {
        if (r->at == r->end || !isxdigit((unsigned char)*r->at))
            return refuse(r, "\\%c needs %d hexadecimal digits", c, digits);
        code = code * 16 + (unsigned long)hex_of(*r->at++);
    }
    if (!digits || code == 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
        return refuse(r, "an escape that TOML does not have, or no character");
    *out = put_character(code, *out);
    return true;
}

/* Reads a string in either kind of quotes, at its first quote. The caller frees *out. */
static bool read_string(struct reader *r, char **out) {
    const char quote = *r->at++;
    const bool basic = quote == '"';
    if (is_at(r, quote) && r->end - r->at > 1 && r->at[1] == quote)
        return refuse(r, "strings of several lines are not read here");
    const char *close = r->at;
    while (close < r->end && *close != quote && *close != '\n')
        close += basic && *close == '\\' && close + 1 < r->end ? 2 : 1;
    if (close >= r->end || *close != quote)
        return refuse(r, "a string does not end");
    char *text = malloc((size_t)(close - r->at) + 1), *to = text;
    if (!text)
        return no_memory(r);
    bool ok = true;
    while (ok && r->at < close) {
        const unsigned char c = (unsigned char)*r->at++;
        if (basic && c == '\\')
            ok = read_escape(r, &to);
        else if ((c < 0x20 && c != '\t') || c == 0x7f)
            ok = refuse(r, "a control character in a string");
        else
            *to++ = (char)c;
    }
    if (!ok) {
        free(text);
        return false;
    }
    *to = 0;
    r->at = close + 1;
    *out = text;
    return true;
}

/* --- keys --- */

/* Reads one part of a key. The caller frees *out. */
static bool read_key(struct reader *r, char **out) {
    skip_blanks(r);
    if (is_at(r, '"') || is_at(r, '\'')) {
        if (!read_string(r, out))
            return false;
    } else {
        const char *from = r->at;
        while (r->at < r->end && (isalnum((unsigned char)*r->at) || *r->at == '_' || *r->at == '-'))
            r->at++;
        *out = strndup(from, (size_t)(r->at - from));
        if (!*out)
            return no_memory(r);
    }
    skip_blanks(r);
    if (**out)
        return true;
    free(*out);
    return refuse(r, "a key is expected: letters, digits, _ and -, or a text in quotes");
}

static int mark_of(const json_t *table) {
    return (int)json_integer_value(json_object_get(table, MARK));
}

/* Adds a value, which it takes over. */
static bool add(struct reader *r, json_t *table, const char *key, json_t *value) {
    if (value && json_object_get(table, key)) {
        json_decref(value);
        return refuse(r, "%.100s is given twice", key);
    }
    return json_object_set_new(table, key, value) == 0 || no_memory(r);
}

static json_t *new_table(enum mark mark) {
    return mark ? json_pack("{s:i}", MARK, (int)mark) : json_object();
}

/* Goes to the table `key` of *table, which it makes if it is missing. `by_header`: the key is part
 * of a header, which goes on from the last table of an array, and may put tables into one that
 * dotted keys have made. */
static bool enter(struct reader *r, json_t **table, const char *key, bool by_header) {
    json_t *next = json_object_get(*table, key);
    if (++r->depth > JSON_MAX_DEPTH)
        return refuse(r, "tables are nested deeper than %d levels", JSON_MAX_DEPTH);
    if (!next) {
        if (!add(r, *table, key, new_table(by_header ? 0 : MARK_DOTTED)))
            return false;
        next = json_object_get(*table, key);
    } else if (by_header && json_is_array(next)) {
        next = json_array_get(next, json_array_size(next) - 1);
        if (mark_of(next) != MARK_HEADER)
            return refuse(r, "%.100s is an array of values, and no array of tables", key);
    }
    const int mark = json_is_object(next) ? mark_of(next) : MARK_INLINE;
    *table = next;
    return (by_header ? mark <= MARK_DOTTED : mark == MARK_DOTTED) ||
           refuse(r, "%.100s is no table that can get more keys here", key);
}

/* Opens the table that a header names: [key], or the next one of [[key]]. */
static bool open_table(struct reader *r, json_t **table, const char *key, bool in_array) {
    json_t *parent = *table, *there = json_object_get(parent, key);
    if (!in_array && json_is_object(there) && !json_object_get(there, MARK)) {
        *table = there;
        return json_object_set_new(there, MARK, json_integer(MARK_HEADER)) == 0 || no_memory(r);
    }
    if (!in_array) {
        if (!add(r, parent, key, new_table(MARK_HEADER)))
            return false;
        *table = json_object_get(parent, key);
        return true;
    }
    if (!there && !add(r, parent, key, json_array()))
        return false;
    json_t *list = json_object_get(parent, key);
    const size_t count = json_array_size(list);
    if (there && (!count || mark_of(json_array_get(list, count - 1)) != MARK_HEADER))
        return refuse(r, "%.100s is no array of tables", key);
    if (json_array_append_new(list, new_table(MARK_HEADER)) != 0)
        return no_memory(r);
    *table = json_array_get(list, count);
    return true;
}

/* Reads a line with a header; *table becomes the table of the keys that follow. */
static bool read_header(struct reader *r, json_t *root, json_t **table) {
    char *key;
    r->at++;
    const bool in_array = skip(r, '[');
    *table = root;
    r->depth = 0;
    for (;;) {
        if (!read_key(r, &key))
            return false;
        const bool more = skip(r, '.');
        const bool ok = more ? enter(r, table, key, true) : open_table(r, table, key, in_array);
        free(key);
        if (!ok)
            return false;
        if (!more)
            break;
    }
    r->depth = 0;
    if (!skip(r, ']') || (in_array && !skip(r, ']')))
        return refuse(r, "a header ends with ] or, in an array of tables, with ]]");
    return end_line(r);
}

/* --- values --- */

static bool read_pair(struct reader *r, json_t *table);
static bool read_value(struct reader *r, json_t **out);

/* Copies digits without the _ between them; returns their number, or 0 if they are not as TOML
 * wants them. */
static size_t read_digits(const char **at, const char *end, char **out) {
    size_t count = 0;
    for (; *at < end && isdigit((unsigned char)**at); count++) {
        *(*out)++ = *(*at)++;
        if (end - *at > 1 && **at == '_' && isdigit((unsigned char)(*at)[1]))
            (*at)++;
    }
    return count;
}

/* Converts a word of at most 63 characters if it is a decimal number; returns NULL if not. */
static json_t *number_of(const char *word, const char *end) {
    char text[64], *to = text;
    bool real = false;
    if (word < end && (*word == '+' || *word == '-'))
        *to++ = *word++;
    const char *first = word;
    const size_t whole = read_digits(&word, end, &to);
    bool ok = whole == 1 || (whole > 1 && *first != '0');
    if (ok && word < end && *word == '.') {
        *to++ = *word++;
        real = true;
        ok = read_digits(&word, end, &to);
    }
    if (ok && word < end && (*word == 'e' || *word == 'E')) {
        *to++ = *word++;
        if (word < end && (*word == '+' || *word == '-'))
            *to++ = *word++;
        real = true;
        ok = read_digits(&word, end, &to);
    }
    *to = 0;
    if (!ok || word != end)
        return NULL;
    errno = 0;
    if (real)
        return isfinite(strtod(text, NULL)) ? json_real(strtod(text, NULL)) : NULL;
    const long long integer = strtoll(text, NULL, 10);
    return errno ? NULL : json_integer(integer);
}

/* Reads a number, true or false. */
static bool read_word(struct reader *r, json_t **out) {
    const char *from = r->at;
    while (r->at < r->end && !strchr(" \t\r\n,]}#", *r->at))
        r->at++;
    const size_t size = (size_t)(r->at - from);
    if (size == 4 && memcmp(from, "true", 4) == 0)
        *out = json_true();
    else if (size == 5 && memcmp(from, "false", 5) == 0)
        *out = json_false();
    else
        *out = size < 64 ? number_of(from, r->at) : NULL;
    return *out || refuse(r,
                       "%.*s is none of these: a text in quotes, a number, true, false, "
                       "a list, a table",
                       (int)(size < 60 ? size : 60), from);
}

static bool read_array(struct reader *r, json_t *list) {
    r->at++;
    for (;;) {
        json_t *item;
        skip_lines(r);
        if (skip(r, ']'))
            return true;
        if (!read_value(r, &item))
            return false;
        if (json_array_append_new(list, item) != 0)
            return no_memory(r);
        skip_lines(r);
        if (!skip(r, ',') && !is_at(r, ']'))
            return refuse(r, "a list goes on with a comma or ends with ]");
    }
}

static bool read_inline_table(struct reader *r, json_t *table) {
    r->at++;
    skip_blanks(r);
    if (skip(r, '}'))
        return true;
    do {
        if (!read_pair(r, table))
            return false;
        skip_blanks(r);
    } while (skip(r, ','));
    return skip(r, '}') || refuse(r, "a table in a line goes on with a comma or ends with }");
}

/* Reads one value; *out is a new reference. */
static bool read_value(struct reader *r, json_t **out) {
    char *text;
    *out = NULL;
    if (is_at(r, '"') || is_at(r, '\'')) {
        if (!read_string(r, &text))
            return false;
        *out = json_string(text);
        free(text);
        return *out || no_memory(r);
    }
    if (!is_at(r, '[') && !is_at(r, '{'))
        return read_word(r, out);
    const bool is_list = is_at(r, '[');
    const int depth = r->depth;
    if (++r->depth > JSON_MAX_DEPTH)
        return refuse(r, "values are nested deeper than %d levels", JSON_MAX_DEPTH);
    *out = is_list ? json_array() : new_table(MARK_INLINE);
    const bool ok = *out ? is_list ? read_array(r, *out) : read_inline_table(r, *out)
                         : no_memory(r);
    r->depth = depth;
    if (!ok)
        json_decref(*out);
    return ok;
}

/* Reads `key = value` into the table. */
static bool read_pair(struct reader *r, json_t *table) {
    const int depth = r->depth;
    char *key;
    for (;;) {
        if (!read_key(r, &key))
            return false;
        if (!skip(r, '.'))
            break;
        const bool ok = enter(r, &table, key, false);
        free(key);
        if (!ok)
            return false;
    }
    json_t *value = NULL;
    bool ok = skip(r, '=') || refuse(r, "%.100s: = and a value are expected", key);
    skip_blanks(r);
    ok = ok && read_value(r, &value) && add(r, table, key, value);
    free(key);
    r->depth = depth;
    return ok;
}

/* --- files --- */

/* Removes the marks of a table and of all below it. */
static void unmark(json_t *value) {
    const char *key;
    json_t *item;
    size_t i;
    if (json_is_object(value)) {
        json_object_del(value, MARK);
        json_object_foreach(value, key, item) {
            unmark(item);
        }
    }
    json_array_foreach(value, i, item) {
        unmark(item);
    }
}

json_t *toml_parse(const char *text, size_t size, struct error *err) {
    struct reader r = { .at = text, .end = text + size, .line = 1, .err = err };
    const size_t valid = utf8_valid_bytes(text, size);
    if (valid < size || memchr(text, 0, size)) {
        error_set(err, ERROR_INVALID, "not valid TOML: %s",
            valid < size ? "it is not UTF-8" : "it has a NUL character");
        return NULL;
    }
    json_t *root = json_object(), *table = root;
    bool ok = root || no_memory(&r);
    for (skip_lines(&r); ok && r.at < r.end; skip_lines(&r))
        ok = is_at(&r, '[') ? read_header(&r, root, &table) : read_pair(&r, table) && end_line(&r);
    if (ok) {
        unmark(root);
        return root;
    }
    json_decref(root);
    return NULL;
}

json_t *toml_parse_file(const char *path, size_t max_bytes, struct error *err) {
    char *text;
    size_t size;
    if (!file_read(path, max_bytes, &text, &size, err))
        return NULL;
    json_t *value = toml_parse(text, size, err);
    free(text);
    if (!value)
        error_prefix(err, "%s", path);
    return value;
}
