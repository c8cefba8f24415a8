/* Captions shuffled by the rule of kohya's scripts, compared with Python
 * (tests/reference/captions.py). */
#include "train/examples/shuffle.h"

#include "tests/train/recorded.h"

#include <stdlib.h>

int main(int argc, char **argv) {
    json_t *cases = recorded_load(argc, argv), *item;
    size_t i, moved = 0;
    json_array_foreach(cases, i, item) {
        const char *caption = json_string_value(json_object_get(item, "caption"));
        const char *result = json_string_value(json_object_get(item, "result"));
        const struct shuffle_options options = { json_string_value(
                                                     json_object_get(item, "separator")),
            json_string_value(json_object_get(item, "keep_separator")),
            recorded_integer(item, "keep_tokens") };
        const uint64_t key = shuffle_key(
            (uint64_t)json_integer_value(json_object_get(item, "seed")),
            recorded_integer(item, "epoch"), recorded_integer(item, "item"));
        char *got;
        struct error err = { 0 };
        CHECK(shuffle_caption(&options, caption, key, &got, &err), "%s", err.message);
        CHECK_STRING(got, result);
        moved += strcmp(caption, result) != 0;
        free(got);
    }
    printf("%zu captions as Python shuffles them, %zu of them changed\n", i, moved);
    CHECK(i == 30 && moved >= 15, "%zu captions, %zu changed", i, moved);
    json_decref(cases);
    return check_done();
}
