/* Compares shapes, the shorthand for JSON schemas, with the same schemas written out. Also tests
 * which shapes are refused. */
#include "base/text/shape.h"
#include "tests/check.h"

#include <string.h>

static const char *const right[][2] = {
    { "string", "{\"type\": \"string\"}" },
    { "any", "{}" },
    { "binary", "{\"type\": \"string\", \"format\": \"binary\"}" },
    { "[ [integer] ]",
        "{\"type\": \"array\", \"items\": {\"type\": \"array\", \"items\": {\"type\": "
        "\"integer\"}}}" },
    { "Image|null",
        "{\"anyOf\": [{\"$ref\": \"#/components/schemas/Image\"}, {\"type\": \"null\"}]}" },
    { "'a'|'b c'", "{\"type\": \"string\", \"enum\": [\"a\", \"b c\"]}" },
    { "integer|'auto'",
        "{\"anyOf\": [{\"type\": \"string\", \"enum\": [\"auto\"]}, {\"type\": \"integer\"}]}" },
    { "{}", "{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": false}" },
    { "{a: number, b?: boolean}",
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"number\"}, \"b\": {\"type\": "
        "\"boolean\"}}, \"required\": [\"a\"], \"additionalProperties\": false}" },
    { "{a?: object, ...}", "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"object\"}},"
                           " \"additionalProperties\": true}" },
    { "{*: integer}", "{\"type\": \"object\", \"properties\": {}, \"additionalProperties\": "
                      "{\"type\": \"integer\"}}" },
};

/* Shapes that are refused, each with the rest of its text from where the reader stops. */
static const char *const wrong[][2] = { { "", "" }, { "text", "" }, { "{a}", "}" },
    { "{a: }", "}" }, { "{a: string", "" }, { "[string", "" }, { "'word", "" },
    { "{a: string,, b: string}", ", b: string}" }, { "string|", "" },
    { "{?: string}", "?: string}" }, { "{a: string b: string}", "b: string}" },
    { "{a: string, ...: string}", ": string}" } };

int main(void) {
    for (size_t i = 0; i < sizeof(right) / sizeof(right[0]); i++) {
        const char *at = right[i][0];
        json_t *read = shape_read(&at), *schema = json_loads(right[i][1], 0, NULL);
        CHECK(schema && json_equal(read, schema) && !*at, "%s is wrong at \"%s\"", right[i][0], at);
        json_decref(schema);
        json_decref(read);
    }
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        const char *at = wrong[i][0];
        CHECK(!shape_read(&at), "\"%s\" is read", wrong[i][0]);
        CHECK_STRING(at, wrong[i][1]);
    }
    const char *at = "string limit:integer";
    json_t *first = shape_read(&at);
    CHECK(first, "shape_read does not read the first of two properties");
    CHECK_STRING(at, "limit:integer");
    json_decref(first);
    printf("%zu shapes, %zu wrong ones\n", sizeof(right) / sizeof(right[0]),
        sizeof(wrong) / sizeof(wrong[0]));
    return check_done();
}
