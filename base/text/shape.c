#include "base/text/shape.h"

#include <ctype.h>
#include <stdbool.h>
#include <string.h>

struct reader {
    const char *at;
    bool failed;
};

static json_t *read_shape(struct reader *r);

static void skip(struct reader *r, size_t length) {
    r->at += length;
    r->at += strspn(r->at, " ");
}

/* Skips `token` if it is next. Returns false and skips nothing if it is not, or if an error was
 * found before. */
static bool take(struct reader *r, const char *token) {
    const bool is_there = !r->failed && strncmp(r->at, token, strlen(token)) == 0;
    if (is_there)
        skip(r, strlen(token));
    return is_there;
}

static void expect(struct reader *r, const char *token) {
    r->failed = !take(r, token);
}

/* Returns a new reference. */
static json_t *read_name(struct reader *r) {
    size_t length = 0;
    while (isalnum((unsigned char)r->at[length]) || r->at[length] == '_')
        length++;
    json_t *name = json_stringn(r->at, length);
    r->failed = r->failed || length == 0;
    if (!r->failed)
        skip(r, length);
    return name;
}

/* Reads a key and its shape. The key * means all keys that are not named. */
static void read_member(
    struct reader *r, json_t *properties, json_t *required, json_t **additional) {
    const bool is_any = take(r, "*");
    json_t *key = is_any ? json_string("") : read_name(r);
    if (!is_any && !take(r, "?"))
        json_array_append(required, key);
    expect(r, ":");
    json_t *shape = read_shape(r);
    if (is_any) {
        json_decref(*additional);
        *additional = shape;
    } else {
        json_object_set_new(properties, json_string_value(key), shape);
    }
    json_decref(key);
}

/* Reads the rest of an object whose opening brace has been read. */
static json_t *read_object(struct reader *r) {
    json_t *properties = json_object(), *required = json_array(), *additional = json_false();
    while (!r->failed && !take(r, "}")) {
        if (take(r, "..."))
            additional = json_true();
        else
            read_member(r, properties, required, &additional);
        if (*r->at != '}')
            expect(r, ",");
    }
    json_t *schema = json_pack("{s:s, s:o, s:o}", "type", "object", "properties", properties,
        "additionalProperties", additional);
    if (json_array_size(required) > 0)
        json_object_set(schema, "required", required);
    json_decref(required);
    return schema;
}

/* Reads one of the types, or the name of a schema. */
static json_t *read_type(struct reader *r) {
    static const char *const types[] = { "string", "integer", "number", "boolean", "null",
        "object" };
    json_t *schema = NULL, *name = read_name(r);
    const char *text = json_string_value(name);
    if (!r->failed && isupper((unsigned char)text[0]))
        schema = json_pack("{s:o}", "$ref", json_sprintf("#/components/schemas/%s", text));
    else if (!r->failed && strcmp(text, "binary") == 0)
        schema = json_pack("{s:s, s:s}", "type", "string", "format", "binary");
    else if (!r->failed && strcmp(text, "any") == 0)
        schema = json_object();
    for (size_t i = 0; !r->failed && !schema && i < sizeof(types) / sizeof(types[0]); i++)
        if (strcmp(text, types[i]) == 0)
            schema = json_pack("{s:s}", "type", text);
    r->failed = r->failed || !schema;
    json_decref(name);
    return schema;
}

static json_t *read_one(struct reader *r) {
    if (take(r, "{"))
        return read_object(r);
    if (!take(r, "["))
        return read_type(r);
    json_t *items = read_shape(r);
    expect(r, "]");
    return json_pack("{s:s, s:o}", "type", "array", "items", items);
}

/* 'WORD' */
static void read_word(struct reader *r, json_t *words) {
    const size_t length = strcspn(r->at, "'");
    json_array_append_new(words, json_stringn(r->at, length));
    r->at += length;
    expect(r, "'");
}

/* Reads a shape, or several separated by |. */
static json_t *read_shape(struct reader *r) {
    json_t *all = json_array(), *words = json_array();
    do {
        if (take(r, "'"))
            read_word(r, words);
        else
            json_array_append_new(all, read_one(r));
    } while (take(r, "|"));
    if (json_array_size(words) > 0)
        json_array_insert_new(all, 0, json_pack("{s:s, s:O}", "type", "string", "enum", words));
    json_decref(words);
    if (json_array_size(all) != 1)
        return json_pack("{s:o}", "anyOf", all);
    json_t *only = json_incref(json_array_get(all, 0));
    json_decref(all);
    return only;
}

json_t *shape_read(const char **text) {
    struct reader r = { .at = *text };
    json_t *schema = read_shape(&r);
    *text = r.at;
    if (!r.failed)
        return schema;
    json_decref(schema);
    return NULL;
}
