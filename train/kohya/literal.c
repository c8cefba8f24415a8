#include "train/kohya/literal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Converts a number, True, False or None; NULL if the text is none of them. */
static json_t *scalar(const char *text, size_t size) {
    char word[64];
    while (size && *text == ' ') {
        text++;
        size--;
    }
    while (size && text[size - 1] == ' ')
        size--;
    if (!size || size >= sizeof(word))
        return NULL;
    memcpy(word, text, size);
    word[size] = 0;
    if (strcmp(word, "True") == 0 || strcmp(word, "true") == 0)
        return json_true();
    if (strcmp(word, "False") == 0 || strcmp(word, "false") == 0)
        return json_false();
    if (strcmp(word, "None") == 0)
        return json_null();
    char *end;
    const double number = strtod(word, &end);
    if (*end || strspn(word, "0123456789+-.eE") != size || !isfinite(number))
        return NULL;
    return strspn(word, "0123456789+-") == size && fabs(number) < 1e15
               ? json_integer((json_int_t)number)
               : json_real(number);
}

/* Converts numbers with commas between them; NULL if the text is something else. */
static json_t *tuple(const char *text, size_t size) {
    const bool round = size > 1 && text[0] == '(' && text[size - 1] == ')';
    const bool square = size > 1 && text[0] == '[' && text[size - 1] == ']';
    const char *at = text + (round || square), *end = text + size - (round || square);
    json_t *list = json_array();
    while (list && at < end) {
        const char *comma = memchr(at, ',', (size_t)(end - at));
        json_t *item = scalar(at, (size_t)((comma ? comma : end) - at));
        if (!item || json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
        at = comma ? comma + 1 : end;
    }
    return list;
}

json_t *kohya_literal(const char *text) {
    const size_t size = strlen(text);
    json_t *value = scalar(text, size);
    if (!value && size)
        value = tuple(text, size);
    return value ? value : json_string(text);
}

/* Adds the argument `text` to *out. */
static bool add(struct translation *t, const char *key, const json_t *item, json_t *out) {
    const char *text = json_string_value(item), *equals = text ? strchr(text, '=') : NULL;
    if (!equals || equals == text)
        return kohya_refuse(t, key, item, "texts of the form \"key=value\"");
    char *name = strndup(text, (size_t)(equals - text));
    if (!name)
        return error_set(t->err, ERROR_NO_MEMORY, "no memory for arguments");
    const bool ok = !json_object_get(out, name) || kohya_refuse(t, key, item, "each key once");
    if (ok)
        json_object_set_new(out, name, kohya_literal(equals + 1));
    free(name);
    return ok;
}

bool kohya_take_arguments(struct translation *t, const char *key, json_t **out) {
    json_t *list = kohya_take(t, key), *item;
    size_t i;
    *out = json_object();
    bool ok = *out || error_set(t->err, ERROR_NO_MEMORY, "no memory for arguments");
    if (ok && list && !json_is_array(list))
        ok = kohya_refuse(t, key, list, "a list of texts of the form \"key=value\"");
    json_array_foreach(list, i, item) {
        ok = ok && add(t, key, item, *out);
    }
    json_decref(list);
    return ok;
}
