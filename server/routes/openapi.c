#include "server/routes/openapi.h"

#include "server/http/respond.h"
#include "server/routes/routes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 160

static const char *piece_of(const struct route *route) {
    return route->piece ? route->piece : "name";
}

const char *openapi_path(const struct route *route, char *text, size_t size) {
    const char *suffix = route->suffix ? route->suffix : "";
    const size_t length = strlen(suffix);
    if (route->suffix || route->is_prefix)
        snprintf(text, size, "%s{%s}%s%s", route->path, piece_of(route), suffix,
            length && suffix[length - 1] == '/' ? "{file}" : "");
    else
        snprintf(text, size, "%s", route->path);
    return text;
}

static json_t *parameter(const char *name, size_t length, const char *in, bool required) {
    return json_pack("{s:s%, s:s, s:b, s:{s:s}}", "name", name, length, "in", in, "required",
        required, "schema", "type", "string");
}

/* Lists the parameters of the path and of the query. */
static json_t *parameters(const char *path, const char *query) {
    json_t *list = json_array();
    for (const char *at = path; (at = strchr(at, '{')); at++)
        json_array_append_new(list, parameter(at + 1, strcspn(at + 1, "}"), "path", true));
    for (const char *at = query ? query : ""; *at; at += strspn(at, " ")) {
        json_array_append_new(list, parameter(at, strcspn(at, " "), "query", false));
        at += strcspn(at, " ");
    }
    return list;
}

static json_t *request_body(const struct route_method *method) {
    json_t *content = json_object();
    bool required = true;
    for (const char *const *type = method->content_types; *type; type++) {
        const bool is_json = strcmp(*type, "application/json") == 0;
        if (**type)
            json_object_set_new(content, *type,
                json_pack("{s:o}", "schema",
                    is_json && method->schema ? method->schema() : json_object()));
        else
            required = false; /* the body may be missing */
    }
    return json_pack("{s:b, s:o}", "required", required, "content", content);
}

static json_t *responses(const struct route_method *method) {
    json_t *content = json_object();
    for (const char *at = method->answers ? method->answers : "application/json"; *at;
         at += strspn(at, " ")) {
        json_t *name = json_stringn(at, strcspn(at, " "));
        json_object_set_new(content, json_string_value(name), json_object());
        json_decref(name);
        at += strcspn(at, " ");
    }
    return json_pack("{s:{s:s, s:o}, s:{s:s}}", "2XX", "description", "what was asked for",
        "content", content, "default", "$ref", "#/components/responses/error");
}

/* Returns an id such as "get_jobs_id_events", which is unique, and a valid name in most
 * languages. */
static json_t *operation_id(const char *method, const char *path) {
    char text[PATH_BYTES + 16];
    size_t used = 0;
    for (const char *p = method; *p && used < 15; p++)
        text[used++] = (char)tolower((unsigned char)*p);
    for (const char *p = path; *p && used + 1 < sizeof(text); p++)
        if (isalnum((unsigned char)*p))
            text[used++] = *p;
        else if (text[used - 1] != '_' && *p != '}')
            text[used++] = '_';
    while (used > 0 && text[used - 1] == '_')
        used--;
    return json_stringn(text, used);
}

static json_t *operation(
    const struct route *route, const struct route_method *method, const char *path, bool keys) {
    json_t *json = json_pack("{s:s, s:o, s:o, s:o}", "summary", method->about ? method->about : "",
        "operationId", operation_id(method->name, path), "parameters",
        parameters(path, method->query), "responses", responses(method));
    if (method->content_types)
        json_object_set_new(json, "requestBody", request_body(method));
    if (keys && route->open)
        json_object_set_new(json, "security", json_array());
    return json;
}

static json_t *paths_json(bool keys) {
    json_t *paths = json_object();
    const struct route *route;
    for (size_t i = 0; (route = route_at(i)); i++) {
        char path[PATH_BYTES], name[16];
        openapi_path(route, path, sizeof(path));
        json_t *item = json_object_get(paths, path);
        if (!item) {
            item = json_object();
            json_object_set_new(paths, path, item);
        }
        for (int m = 0; m < ROUTE_METHODS_MAX && route->methods[m].name; m++) {
            const struct route_method *method = &route->methods[m];
            size_t used = 0;
            for (; method->name[used] && used + 1 < sizeof(name); used++)
                name[used] = (char)tolower((unsigned char)method->name[used]);
            name[used] = 0;
            json_object_set_new(item, name, operation(route, method, path, keys));
        }
    }
    return paths;
}

/* Returns the shared components. They describe a native error; dialects have other forms. */
static json_t *components_json(void) {
    json_t *error = json_pack(
        "{s:s, s:{s:{s:s, s:{s:{s:s}, s:{s:s}, s:{s:s}, s:{s:s}, s:{s:s}}, s:[s, s]}}, s:[s]}",
        "type", "object", "properties", "error", "type", "object", "properties", "code", "type",
        "string", "message", "type", "string", "param", "type", "string", "value", "type", "string",
        "allowed", "type", "string", "required", "code", "message", "required", "error");
    return json_pack("{s:{s:{s:s, s:s}, s:{s:s, s:s}}, s:{s:{s:s, s:{s:{s:o}}}}}",
        "securitySchemes", "bearer", "type", "http", "scheme", "bearer", "basic", "type", "http",
        "scheme", "basic", "responses", "error", "description",
        "what was wrong, with which value, and what would be right", "content", "application/json",
        "schema", error);
}

json_t *openapi_json(bool keys) {
    json_t *json = json_pack("{s:s, s:{s:s, s:s, s:s}, s:o, s:o}", "openapi", "3.1.0", "info",
        "title", "latentd", "version", LATENTD_VERSION, "summary", "Stable Diffusion over HTTP",
        "paths", paths_json(keys), "components", components_json());
    if (json && keys)
        json_object_set_new(json, "security", json_pack("[{s:[]}, {s:[]}]", "bearer", "basic"));
    return json;
}

static enum MHD_Result handle(struct exchange *exchange) {
    return respond_json(exchange, 200, openapi_json(exchange->server->options.keys != NULL));
}

const struct route route_openapi = { .path = "/openapi.json",
    .methods = { { "GET", .handle = handle, .about = "this document" } } };
