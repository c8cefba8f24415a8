/* Parses infotexts and compares the parameters with Python's: tests/reference/infotexts.py. */
#include "server/sdapi/infotext.h"

#include "base/text/json.h"
#include "tests/check.h"

#include <stdlib.h>
#include <string.h>

/* Long texts from untrusted clients must be parsed in linear time. */
static void long_lines_end(void) {
    static const char *const pieces[] = { "a", "aa:\"x,", "aa:", "a " };
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        const size_t length = strlen(pieces[i]), count = (8u << 20) / length;
        char *text = malloc(length * count + 1);
        for (size_t k = 0; text && k < count; k++)
            memcpy(text + k * length, pieces[i], length + 1);
        json_t *parameters = text ? sdapi_infotext_parse(text) : NULL;
        const char *prompt = json_string_value(json_object_get(parameters, "Prompt"));
        CHECK(prompt && strlen(prompt) + 1 >= length * count,
            "a prompt of 8 MiB of \"%s\" is not read in full", pieces[i]);
        json_decref(parameters);
        free(text);
    }
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    json_t *rows = argc == 2 ? json_parse_file(argv[1], 1 << 20, &err) : NULL, *row;
    size_t index;
    CHECK(json_array_size(rows) > 100, "%zu infotexts: %s", json_array_size(rows), err.message);
    json_array_foreach(rows, index, row) {
        const char *text = json_string_value(json_object_get(row, "text"));
        const json_t *expected = json_object_get(row, "parameters");
        json_t *parameters = sdapi_infotext_parse(text);
        char *found = json_dumps(parameters, JSON_SORT_KEYS | JSON_ENCODE_ANY);
        char *right = json_dumps(expected, JSON_SORT_KEYS);
        CHECK(json_equal(parameters, (json_t *)expected), "%s\nis %s\nnot %s", text, found, right);
        free(found);
        free(right);
        json_decref(parameters);
    }
    printf("%zu infotexts\n", json_array_size(rows));
    json_decref(rows);
    long_lines_end();
    return check_done();
}
