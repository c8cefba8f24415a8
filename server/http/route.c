#include "server/http/route.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

const char *const content_types_json[] = { "application/json", NULL };
const char content_type_form[] = "multipart/form-data";

#define BOUNDARY_MAX_BYTES 70

static bool matches_with_suffix(const struct route *route, const char *path) {
    const size_t length = strlen(route->path), suffix = strlen(route->suffix);
    if (strncmp(path, route->path, length) != 0)
        return false;
    const char *piece = path + length, *rest = strchr(piece, '/');
    return rest && rest > piece && strncmp(rest, route->suffix, suffix) == 0 &&
           (!rest[suffix] || route->suffix[suffix - 1] == '/');
}

const char *route_piece(const struct route *route, const char *target, size_t *length) {
    const char *piece = target + strlen(route->path);
    *length = strcspn(piece, route->suffix ? "/?" : "?");
    return piece;
}

const char *route_below(const struct route *route, const char *target, size_t *length) {
    size_t piece;
    const char *below = route_piece(route, target, &piece) + piece + strlen(route->suffix);
    *length = strcspn(below, "?");
    return below;
}

bool route_matches(const struct route *route, const char *path) {
    if (route->suffix)
        return matches_with_suffix(route, path);
    return strcmp(path, route->path) == 0 ||
           (route->is_prefix && strncmp(path, route->path, strlen(route->path)) == 0);
}

static bool has_method(const struct route *route, int index) {
    return index < ROUTE_METHODS_MAX && route->methods[index].name;
}

const struct route_method *route_find_method(const struct route *route, const char *name) {
    if (strcmp(name, "HEAD") == 0)
        name = "GET";
    for (int i = 0; has_method(route, i); i++)
        if (strcmp(route->methods[i].name, name) == 0)
            return &route->methods[i];
    return NULL;
}

const char *route_allow(const struct route *route, char *text, size_t size) {
    size_t used = 0;
    for (int i = 0; has_method(route, i) && used < size; i++) {
        const char *name = route->methods[i].name;
        const char *head = strcmp(name, "GET") == 0 ? "HEAD, " : "";
        used += (size_t)snprintf(text + used, size - used, "%s, %s", name, head);
    }
    if (used < size)
        snprintf(text + used, size - used, "OPTIONS");
    return text;
}

static const char *skip_spaces(const char *text) {
    return text + strspn(text, " \t");
}

/* Returns whether the text is boundary=..., with or without quotation marks. The boundary may have
 * only those characters of RFC 2046 that need no escapes. It needs two of them, because
 * libmicrohttpd refuses a boundary of one character. */
static bool is_boundary(const char *text) {
    static const char name[] = "boundary="; /* spelt as libmicrohttpd expects it */
    if (strncmp(text, name, strlen(name)) != 0)
        return false;
    text += strlen(name);
    const bool quoted = *text == '"';
    text += quoted;
    const size_t length = strspn(
        text, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ'()+_,-./:=?");
    return length > 1 && length <= BOUNDARY_MAX_BYTES &&
           (quoted ? text[length] == '"' && !text[length + 1] : !text[length]);
}

static bool is_type(const char *value, const char *type) {
    static const char *const charsets[] = { "charset=utf-8", "charset=\"utf-8\"" };
    const size_t length = strlen(type);
    if (strncasecmp(value, type, length) != 0)
        return false;
    const char *rest = skip_spaces(value + length);
    if (!*rest)
        return strcmp(type, content_type_form) != 0; /* a form requires a boundary */
    if (*rest != ';')
        return false;
    rest = skip_spaces(rest + 1);
    if (strcmp(type, content_type_form) == 0)
        return is_boundary(rest);
    for (size_t i = 0; i < sizeof(charsets) / sizeof(charsets[0]); i++)
        if (strncasecmp(rest, charsets[i], strlen(charsets[i])) == 0 &&
            !*skip_spaces(rest + strlen(charsets[i])))
            return true;
    return false;
}

bool route_takes(const struct route_method *method, const char *content_type) {
    for (const char *const *type = method->content_types; type && *type; type++)
        if (content_type && **type ? is_type(content_type, *type) : !content_type && !**type)
            return true;
    return false;
}
