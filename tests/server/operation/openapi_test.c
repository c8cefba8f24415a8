/* Compares GET /openapi.json with the table of routes in both directions, its request bodies with
 * the tables of fields, and docs/api.md with both. openapi_valid.py runs a validator on it, and
 * answers_typed.py compares it with the daemon's answers.
 * usage: openapi_test docs/api.md [--write]; without arguments, prints the document. */
#include "base/text/shape.h"
#include "server/generation/generate_json.h"
#include "server/http/dialect.h"
#include "server/routes/openapi.h"
#include "server/routes/routes.h"
#include "server/routes/shapes.h"
#include "train/config.h"

#include "tests/check.h"
#include "tests/page.h"

#include <ctype.h>
#include <string.h>

static int operations;
static json_t *shapes; /* by name */

/* Checks that every $ref in the JSON names an existing shape. */
static void check_references(const json_t *json) {
    const char *begin = "#/components/schemas/", *key;
    const char *to = json_string_value(json_object_get(json, "$ref"));
    json_t *item;
    size_t i;
    if (to && strncmp(to, begin, strlen(begin)) == 0)
        CHECK(json_object_get(shapes, to + strlen(begin)), "no shape is called %s", to);
    json_object_foreach((json_t *)json, key, item) check_references(item);
    json_array_foreach(json, i, item) check_references(item);
}

/* Checks that `text` consists of shapes separated by semicolons, each with or without a status
 * before it. */
static void check_shorthand(const char *what, const char *path, const char *text) {
    for (const char *at = text ? text : ""; *at;) {
        at += strspn(at, "0123456789 ");
        json_t *schema = *at && *at != ';' ? shape_read(&at) : NULL;
        json_decref(schema);
        CHECK(!*at || *at == ';', "%s %s: the shape is wrong at \"%s\"", what, path, at);
        at += strcspn(at, ";");
        at += strspn(at, "; ");
    }
}

static void check_answers(
    const struct route_method *method, const char *path, const json_t *responses) {
    const char *status;
    json_t *answer, *media;
    json_object_foreach((json_t *)responses, status, answer) {
        const json_t *content = json_object_get(answer, "content");
        const char *type;
        json_object_foreach((json_t *)content, type, media) {
            const json_t *schema = json_object_get(media, "schema");
            const bool is_binary = json_object_get(schema, "format");
            CHECK(json_object_size(schema) > 0 &&
                      (strcmp(type, "application/json") != 0 || !is_binary),
                "%s %s: say what its %s holds, .returns", method->name, path, status);
        }
    }
    CHECK(json_object_size(responses) >= (method->returns && !*method->returns ? 2 : 3),
        "%s %s: .returns \"%s\"", method->name, path, method->returns ? method->returns : "");
}

static void check_shapes(void) {
    const char *name, *shape;
    size_t i;
    for (i = 0; (name = shapes_at(i, &shape)); i++) {
        const char *at = shape;
        json_t *schema = shape_read(&at);
        CHECK(schema && !*at, "%s: the shape is wrong at \"%s\"", name, at);
        check_references(schema);
        json_decref(schema);
    }
    printf("%zu shapes\n", i);
}

/* --- docs/api.md --- */

/* Writes a text as code in a cell of a Markdown table, with '|' escaped. */
static void write_code(FILE *out, const char *text, size_t length) {
    fputc('`', out);
    for (size_t i = 0; i < length; i++)
        fprintf(out, text[i] == '|' ? "\\%c" : "%c", text[i]);
    fputc('`', out);
}

/* Writes each word of `words`, which are separated by spaces, as code. */
static void write_codes(FILE *out, const char *words, const char *between) {
    for (const char *at = words; *at; at += strspn(at, " ")) {
        fputs(at == words ? "" : between, out);
        write_code(out, at, strcspn(at, " "));
        at += strcspn(at, " ");
    }
}

static void write_body(FILE *out, const struct route_method *method) {
    const char *between = "";
    if (method->schema == generate_json_schema)
        fputs("[fields.md](fields.md)", out);
    else if (method->schema == train_config_schema)
        fputs("[training-fields.md](training-fields.md)", out);
    else if (method->schema)
        fputs("[openai.md](openai.md)", out);
    else if (method->takes)
        write_code(out, method->takes, strlen(method->takes));
    else
        for (const char *const *type = method->content_types; type && *type; type++, between = ", ")
            if (**type) {
                fputs(between, out);
                write_code(out, *type, strlen(*type));
            }
}

static void write_answers(FILE *out, const struct route_method *method) {
    const char *types = method->answers ? method->answers : "application/json";
    for (const char *at = method->returns ? method->returns : ""; *at; at += strspn(at, "; ")) {
        const size_t digits = strspn(at, "0123456789"), gap = strspn(at + digits, " ");
        fprintf(
            out, "%s%.*s%s", at == method->returns ? "" : ", ", (int)digits, at, gap ? " " : "");
        at += digits + gap;
        const size_t length = strcspn(at, ";");
        if (length)
            write_code(out, at, length);
        at += length;
    }
    if (strncmp(types, "application/json", 16) == 0)
        types += 16 + strspn(types + 16, " ");
    fputs(*types && method->returns && *method->returns ? "; " : "", out);
    write_codes(out, types, ", ");
}

static void write_area(FILE *out, const char *title, const char *dialect) {
    const struct route *route;
    fprintf(
        out, "\n## %s\n\n| request | | query | body | answer |\n|---|---|---|---|---|\n", title);
    for (size_t i = 0; (route = route_at(i)); i++) {
        char path[160];
        if (strcmp(route->dialect ? route->dialect->name : "latentd", dialect) != 0)
            continue;
        openapi_path(route, path, sizeof(path));
        for (int m = 0; m < ROUTE_METHODS_MAX && route->methods[m].name; m++) {
            const struct route_method *method = &route->methods[m];
            fprintf(out, "| `%s %s` | %s | ", method->name, path, method->about);
            write_codes(out, method->query ? method->query : "", ", ");
            fputs(" | ", out);
            write_body(out, method);
            fputs(" | ", out);
            write_answers(out, method);
            fputs(" |\n", out);
        }
    }
}

static void the_page_lists_every_route(const char *path, bool write) {
    char *text = NULL;
    const char *name, *shape;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    write_area(out, "latentd's own routes", "latentd");
    write_area(out, "OpenAI's", "openai");
    write_area(out, "AUTOMATIC1111's", "a1111");
    write_area(out, "Hugging Face's", "huggingface");
    fprintf(out, "\n## Shapes\n\n| name | |\n|---|---|\n");
    for (size_t i = 0; (name = shapes_at(i, &shape)); i++) {
        fprintf(out, "| %s | ", name);
        write_code(out, shape, strlen(shape));
        fputs(" |\n", out);
    }
    fclose(out);
    page_table(path, "<!-- written by openapi_test --write -->\n", text, write);
    free(text);
}

static void check_operation(
    const struct route *route, const struct route_method *method, const json_t *paths) {
    char path[160], name[16] = "";
    openapi_path(route, path, sizeof(path));
    for (size_t i = 0; method->name[i] && i < 15; i++)
        name[i] = (char)tolower((unsigned char)method->name[i]);
    const json_t *operation = json_object_get(json_object_get(paths, path), name);
    CHECK(operation, "%s %s is not in the document", method->name, path);
    CHECK(method->about && method->about[0],
        "%s %s: say what it does, .about in its struct route_method", method->name, path);
    const json_t *content = json_object_get(json_object_get(operation, "requestBody"), "content");
    for (const char *const *type = method->content_types; type && *type; type++) {
        const json_t *schema = json_object_get(json_object_get(content, *type), "schema");
        const bool is_json = strcmp(*type, "application/json") == 0;
        CHECK(!**type || (json_object_size(schema) > 0 &&
                             (!is_json || !json_object_get(schema, "format"))),
            "%s %s: say what its %s holds, .takes or .schema", method->name, path, *type);
    }
    check_shorthand(method->name, path, method->takes);
    check_shorthand(method->name, path, method->returns);
    check_answers(method, path, json_object_get(operation, "responses"));
    check_references(operation);
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
        CHECK(json_object_get(generate, name), "POST /generate lacks the field %s", name);
    CHECK(json_object_size(generate) == count, "POST /generate: %zu fields of %zu", count,
        json_object_size(generate));
    struct train_config_line line;
    for (; train_config_line(lines, &line); lines++)
        CHECK(json_object_get(train, line.name), "POST /train lacks the field %s", line.name);
    CHECK(json_object_size(train) == lines, "POST /train: %zu fields of %zu", lines,
        json_object_size(train));
    printf("POST /generate has %zu fields, POST /train %zu\n", count, lines);
}

int main(int argc, char **argv) {
    json_t *json = openapi_json(true), *paths = json_object_get(json, "paths"), *item;
    const struct route *route;
    const char *path, *method;
    int listed = 0;
    shapes = json_object_get(json_object_get(json, "components"), "schemas");
    if (argc < 2) {
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
    check_shapes();
    the_page_lists_every_route(argv[1], argc > 2);
    json_decref(json);
    return check_done();
}
