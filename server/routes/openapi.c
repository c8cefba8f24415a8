#include "server/routes/openapi.h"

#include "base/text/shape.h"
#include "server/http/dialect.h"
#include "server/http/respond.h"
#include "server/routes/routes.h"
#include "server/routes/shapes.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#define PATH_BYTES 160
#define JSON "application/json"

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

static json_t *parameter(const char *name, size_t length, bool is_query, json_t *schema) {
    return json_pack("{s:s%, s:s, s:b, s:o}", "name", name, length, "in",
        is_query ? "query" : "path", "required", !is_query, "schema", schema);
}

static json_t *schema_of(const char *shape) {
    return shape_read(&shape);
}

/* Returns the schema of a text in a path or a query: the guard (server/http/guard/guard.h) refuses
 * control characters and backslashes there, escaped or not. */
static json_t *text_schema(bool is_query) {
    return json_pack("{s:s, s:s}", "type", "string", "pattern",
        is_query ? "^[^\\x00-\\x1f\\x7f\\\\]*$" : "^[^\\x00-\\x1f\\x7f\\\\]+$");
}

/* Lists the parameters of the path and of the query. */
static json_t *parameters(const char *path, const char *query) {
    json_t *list = json_array();
    for (const char *at = path; (at = strchr(at, '{')); at++)
        json_array_append_new(
            list, parameter(at + 1, strcspn(at + 1, "}"), false, text_schema(false)));
    for (const char *at = query ? query : ""; *at;) {
        const char *name = at;
        const size_t length = strcspn(name, ": ");
        const bool is_typed = name[length] == ':';
        at += length + (name[length] != 0);
        json_array_append_new(
            list, parameter(name, length, true, is_typed ? shape_read(&at) : text_schema(true)));
    }
    return list;
}

/* A media type's entry. `schema`, which may be NULL, is for JSON and forms; other types have their
 * bytes or their text. */
static json_t *media_json(const char *type, json_t *schema) {
    const bool is_json = strcmp(type, JSON) == 0 || strcmp(type, content_type_form) == 0;
    return json_pack("{s:o}", "schema",
        is_json && schema ? json_incref(schema)
                          : schema_of(strncmp(type, "text/", 5) == 0 ? "string" : "binary"));
}

static json_t *request_body(const struct route_method *method) {
    json_t *content = json_object();
    json_t *schema = method->schema  ? method->schema()
                     : method->takes ? schema_of(method->takes)
                                     : NULL;
    json_t *form = method->form_schema ? method->form_schema() : json_incref(schema);
    bool required = true;
    for (const char *const *type = method->content_types; *type; type++)
        if (**type)
            json_object_set_new(content, *type,
                media_json(*type, strcmp(*type, content_type_form) == 0 ? form : schema));
        else
            required = false; /* the body may be missing */
    json_decref(schema);
    json_decref(form);
    return json_pack("{s:b, s:o}", "required", required, "content", content);
}

static const char *error_shape_of(const struct route *route) {
    return route->dialect ? route->dialect->error_shape : "Error";
}

/* `types` are separated by spaces. */
static json_t *content_json(const char *types, json_t *schema) {
    json_t *content = json_object();
    for (const char *at = types; *at; at += strspn(at, " ")) {
        json_t *name = json_stringn(at, strcspn(at, " "));
        json_object_set_new(
            content, json_string_value(name), media_json(json_string_value(name), schema));
        at += json_string_length(name);
        json_decref(name);
    }
    return content;
}

static json_t *responses(const struct route *route, const struct route_method *method) {
    json_t *json = json_object();
    const char *types = method->answers ? method->answers : JSON;
    for (const char *at = method->returns ? method->returns : "200"; *at; types = JSON) {
        char status[4] = "200";
        if (isdigit((unsigned char)*at)) {
            snprintf(status, sizeof(status), "%s", at);
            at += strlen(status);
            at += strspn(at, " ");
        }
        json_t *schema = *at && *at != ';' ? shape_read(&at) : NULL;
        json_t *answer = json_pack("{s:s}", "description", "what was asked for");
        if (strcmp(status, "204") != 0 && strcmp(status, "304") != 0)
            json_object_set_new(answer, "content", content_json(types, schema));
        json_object_set_new(json, status, answer);
        json_decref(schema);
        at += strcspn(at, ";");
        at += strspn(at, "; ");
    }
    for (int i = 4; i <= 5; i++) {
        const char status[4] = { (char)('0' + i), 'X', 'X', 0 };
        json_object_set_new(json, status,
            json_pack(
                "{s:o}", "$ref", json_sprintf("#/components/responses/%s", error_shape_of(route))));
    }
    return json;
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
        parameters(path, method->query), "responses", responses(route, method));
    json_object_set_new(
        json, "tags", json_pack("[s]", route->dialect ? route->dialect->name : "latentd"));
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

/* Describes the errors of each dialect. */
static json_t *errors_json(void) {
    json_t *json = json_object();
    const struct route *route;
    for (size_t i = 0; (route = route_at(i)); i++)
        json_object_set_new(json, error_shape_of(route),
            json_pack("{s:s, s:{s:{s:{s:o}}}}", "description",
                "what was wrong, with which value, and what would be right", "content", JSON,
                "schema", "$ref", json_sprintf("#/components/schemas/%s", error_shape_of(route))));
    return json;
}

static json_t *components_json(void) {
    return json_pack("{s:{s:{s:s, s:s}, s:{s:s, s:s}}, s:o, s:o}", "securitySchemes", "bearer",
        "type", "http", "scheme", "bearer", "basic", "type", "http", "scheme", "basic", "responses",
        errors_json(), "schemas", shapes_json());
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
    .methods = { { "GET", .handle = handle, .about = "this document", .returns = "object" } } };
