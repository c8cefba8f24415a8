/* Compares GET /openapi.json with the table of routes in both directions, and its request bodies
 * with the tables of fields. (openapi_valid.py runs a validator on it.) With an argument, prints
 * the document. */
#include "server/generation/generate_json.h"
#include "server/routes/openapi.h"
#include "server/routes/routes.h"
#include "train/config.h"

#include "tests/check.h"

#include <ctype.h>
#include <string.h>

static int operations;

static void check_operation(
    const struct route *route, const struct route_method *method, const json_t *paths) {
    char path[160], name[16] = "";
    openapi_path(route, path, sizeof(path));
    for (size_t i = 0; method->name[i] && i < 15; i++)
        name[i] = (char)tolower((unsigned char)method->name[i]);
    const json_t *operation = json_object_get(json_object_get(paths, path), name);
    CHECK(operation, "%s %s is not in it", method->name, path);
    CHECK(method->about && method->about[0],
        "%s %s: say what it does, .about in its struct route_method", method->name, path);
    const json_t *content = json_object_get(json_object_get(operation, "requestBody"), "content");
    for (const char *const *type = method->content_types; type && *type; type++)
        CHECK(!**type || json_object_get(content, *type), "%s %s: %s", method->name, path, *type);
    CHECK(!method->schema ||
              json_object_size(json_object_get(
                  json_object_get(json_object_get(content, "application/json"), "schema"),
                  "properties")) > 0,
        "%s %s: its schema", method->name, path);
    operations++;
}

/* A path of the document must lead to the route that has this path in the document. */
static void check_path(const char *path) {
    const struct route *route = route_find(path);
    char text[160] = "";
    if (route)
        openapi_path(route, text, sizeof(text));
    CHECK(strcmp(path, text) == 0, "%s leads to %s", path, text);
}

static const json_t *schema_of(const json_t *paths, const char *path) {
    const json_t *post = json_object_get(json_object_get(paths, path), "post");
    const json_t *content = json_object_get(json_object_get(post, "requestBody"), "content");
    return json_object_get(
        json_object_get(json_object_get(content, "application/json"), "schema"), "properties");
}

static void check_fields(const json_t *paths) {
    const json_t *generate = schema_of(paths, "/generate"), *train = schema_of(paths, "/train");
    size_t count = 0, lines = 0;
    const char *name;
    for (; (name = generate_json_field(count)); count++)
        CHECK(json_object_get(generate, name), "POST /generate: %s", name);
    CHECK(json_object_size(generate) == count, "POST /generate: %zu fields of %zu", count,
        json_object_size(generate));
    struct train_config_line line;
    for (; train_config_line(lines, &line); lines++)
        CHECK(json_object_get(train, line.name), "POST /train: %s", line.name);
    CHECK(json_object_size(train) == lines, "POST /train: %zu fields of %zu", lines,
        json_object_size(train));
    printf("POST /generate has %zu fields, POST /train %zu\n", count, lines);
}

int main(int argc, char **argv) {
    json_t *json = openapi_json(true), *paths = json_object_get(json, "paths"), *item;
    const struct route *route;
    const char *path, *method;
    int listed = 0;
    (void)argv;
    if (argc > 1) {
        json_dumpf(json, stdout, JSON_INDENT(1));
        json_decref(json);
        return 0;
    }
    for (size_t i = 0; (route = route_at(i)); i++)
        for (int m = 0; m < ROUTE_METHODS_MAX && route->methods[m].name; m++)
            check_operation(route, &route->methods[m], paths);
    json_object_foreach(paths, path, item) {
        json_t *operation;
        check_path(path);
        json_object_foreach(item, method, operation) listed++;
    }
    CHECK(listed == operations, "%d operations, %d in the table", listed, operations);
    printf("%zu paths, %d methods, in the table and in the document\n", json_object_size(paths),
        listed);
    check_fields(paths);
    json_decref(json);
    return check_done();
}
