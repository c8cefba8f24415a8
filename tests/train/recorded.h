/* Reads the cases recorded by tests/reference/training.py: a JSON array. */
#ifndef TESTS_TRAIN_RECORDED_H
#define TESTS_TRAIN_RECORDED_H

#include "tests/check.h"

#include <jansson.h>
#include <stdint.h>

/* Loads the file's array. Without it the test fails. */
static inline json_t *recorded_load(int argc, char **argv) {
    json_error_t why = { .text = "no file given" };
    json_t *cases = argc >= 2 ? json_load_file(argv[1], 0, &why) : NULL;
    CHECK(cases, "%s", why.text);
    return cases;
}

static inline double recorded_number(const json_t *object, const char *key) {
    return json_number_value(json_object_get(object, key));
}

static inline int64_t recorded_integer(const json_t *object, const char *key) {
    return (int64_t)recorded_number(object, key);
}

/* Returns number i of a list. */
static inline double recorded_at(const json_t *list, size_t i) {
    return json_number_value(json_array_get(list, i));
}

/* Returns |a - b| / max(1, |b|). */
static inline double recorded_difference(double a, double b) {
    return fabs(a - b) / fmax(1, fabs(b));
}

#endif
