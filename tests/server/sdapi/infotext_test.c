/* Infotexts to parameters, against what Python makes of them: tests/reference/infotexts.py. */
#include "server/sdapi/infotext.h"

#include "base/json.h"
#include "tests/check.h"

#include <stdlib.h>

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
    return check_done();
}
