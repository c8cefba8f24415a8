/* The functions that base/text/json adds to jansson. */
#include "base/text/json.h"

#include "base/limits.h"
#include "tests/check.h"

#include <stdlib.h>
#include <unistd.h>

/* Unicode 15, table 3-7: the well-formed sequences, and the most similar sequences that are not
 * well-formed. */
static void stray_bytes_are_replaced(void) {
#define BAD "\xef\xbf\xbd"
    static const struct {
        const char *text, *clean;
    } rows[] = {
        { "", "" }, { "plain", "plain" },
        { "\xc3\xa9 \xe7\x8c\xab \xf0\x9f\x90\x88", "\xc3\xa9 \xe7\x8c\xab \xf0\x9f\x90\x88" },
        { "ab\xe7\x8c", "ab" },     /* cut */
        { "ab\xf0\x9f\x90", "ab" }, /* cut */
        { "\xff"
          "ab",
            BAD "ab" },                                 /* never valid in UTF-8 */
        { "\xe7\x8c: \xc3\xa9", BAD BAD ": \xc3\xa9" }, /* cut in the middle */
        { "\xc0\xaf", BAD BAD },                        /* overlong */
        { "\xe0\x9f\xbf", BAD BAD BAD },                /* overlong */
        { "\xe0\xa0\x80", "\xe0\xa0\x80" }, { "\xed\xa0\x80", BAD BAD BAD }, /* a surrogate */
        { "\xed\x9f\xbf", "\xed\x9f\xbf" }, { "\xf0\x8f\xbf\xbf", BAD BAD BAD BAD },
        { "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf" },
        { "\xf4\x90\x80\x80", BAD BAD BAD BAD }, /* past U+10FFFF */
    };
#undef BAD
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *string = json_lenient_string(rows[i].text);
        CHECK_STRING(json_string_value(string), rows[i].clean);
        json_decref(string);
    }
}

static json_t *nested(int depth, struct error *err) {
    char *text = malloc(2 * (size_t)depth);
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    json_t *value = json_parse(text, 2 * (size_t)depth, err);
    free(text);
    return value;
}

static void nesting_and_repetition_are_bounded(void) {
    struct error err = { 0 };
    json_t *value = nested(JSON_MAX_DEPTH, &err);
    CHECK(value != NULL, "%s", err.message);
    json_decref(value);
    CHECK(!nested(JSON_MAX_DEPTH + 1, &err), "one level more is accepted");
    CHECK_CONTAINS(err.message, "deeper than 16 levels");
    const char twice[] = "{\"a\": 1, \"a\": 2}", brackets[] = "\"[[[[[[[[[[[[[[[[[[[[\"";
    CHECK(!json_parse(twice, sizeof(twice) - 1, &err), "a repeated key is accepted");
    value = json_parse(brackets, sizeof(brackets) - 1, &err);
    CHECK(json_is_string(value), "brackets in a string are text: %s", err.message);
    json_decref(value);
    const char quoted[] = "\"\\\"[[[[[[[[[[[[[[[[[[[[\"";
    value = json_parse(quoted, sizeof(quoted) - 1, &err);
    CHECK(json_is_string(value), "brackets after an escaped quote are text: %s", err.message);
    json_decref(value);
}

/* [,,,...] is not JSON at all, but the count of values is checked before the syntax. */
static void values_are_bounded(void) {
    struct error err = { 0 };
    char *text = malloc(JSON_MAX_VALUES + 2);
    memset(text, ',', JSON_MAX_VALUES + 2);
    text[0] = '[';
    CHECK(!json_parse(text, JSON_MAX_VALUES, &err), "invalid JSON with many commas is accepted");
    CHECK_CONTAINS(err.message, "not valid JSON");
    CHECK(!json_parse(text, JSON_MAX_VALUES + 1, &err), "one value more is accepted");
    CHECK_CONTAINS(err.message, "JSON of more than 2097152 values");
    text[0] = '"';
    text[JSON_MAX_VALUES + 1] = '"';
    json_t *value = json_parse(text, JSON_MAX_VALUES + 2, &err);
    CHECK(json_is_string(value), "commas in a string are text: %s", err.message);
    json_decref(value);
    free(text);
}

/* The bytes that jansson allocates; the next test counts them. */
static size_t asked_bytes;

static void *count_malloc(size_t size) {
    asked_bytes += size;
    return malloc(size);
}

static void requests_are_bounded_before_memory_is_spent(void) {
    struct error err = { 0 };
    const size_t most = JSON_REQUEST_MAX_VALUES;
    char *text = malloc(2 * most + 4);
    text[0] = '[';
    for (size_t i = 0; i <= most; i++)
        memcpy(text + 1 + 2 * i, "0,", 2);
    text[2 * most] = ']';
    json_t *value = json_parse_request(text, 2 * most + 1, &err);
    CHECK(json_array_size(value) == most, "%zu values: %zu, %s", most, json_array_size(value),
        err.message);
    json_decref(value);
    text[2 * most] = ',';
    text[2 * most + 2] = ']';
    asked_bytes = 0;
    json_set_alloc_funcs(count_malloc, free);
    value = json_parse_request(text, 2 * most + 3, &err);
    json_set_alloc_funcs(malloc, free);
    printf("%zu values: %zu bytes asked for, '%s'\n", most + 1, asked_bytes, err.message);
    CHECK(
        !value && asked_bytes == 0, "one value more is accepted, or costs %zu bytes", asked_bytes);
    CHECK_CONTAINS(err.message, "JSON of more than 4096 values");
    CHECK(err.code == ERROR_INVALID, "code %d", err.code);
    value = json_parse(text, 2 * most + 3, &err);
    CHECK(value, "a file may have more values than a request: %s", err.message);
    json_decref(value);
    free(text);
}

/* A description is the beginning of what json_dumps returns. */
static void descriptions_are_cut_and_cost_what_they_show(void) {
    static const char *const texts[] = { "null", "[]", "{}", "0.1", "-7", "true", "\"a\\nb\"",
        "[1,2,[3,{\"a\":[]}],\"\\u0001\"]", "{\"a\":{\"b\":[0.1,null]},\"c\":\"d\"}",
        "[\"\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\xc3\xa9\"]",
        "\"\xf0\x9f\x90\x88\xf0\x9f\x90\x88\xf0\x9f\x90\x88\xf0\x9f\x90\x88\"",
        "[\"0123456789012345678901234567890123456789\",1,2,3]" };
    struct error err = { 0 };
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        for (size_t size = 8; size < 64; size++) {
            char text[64], wanted[128];
            json_t *value = json_parse(texts[i], strlen(texts[i]), &err);
            char *dump = json_dumps(
                value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
            snprintf(wanted, size, "%s", dump);
            if (strlen(dump) >= size) {
                size_t end = size - 4;
                while (((unsigned char)dump[end] & 0xc0) == 0x80)
                    end--;
                strcpy(wanted + end, "...");
            }
            const char *expected = wanted;
            CHECK_STRING(json_describe(value, text, size), expected);
            free(dump);
            json_decref(value);
        }
    json_t *large = json_array(), *zero = json_integer(0);
    char text[128], *long_text = calloc(1, 1 << 20);
    for (int i = 0; i < 1 << 16; i++)
        json_array_append(large, zero);
    memset(long_text, 'a', (1 << 20) - 1);
    json_t *string = json_string(long_text);
    json_set_alloc_funcs(count_malloc, free);
    asked_bytes = 0;
    json_describe(large, text, sizeof(text));
    const size_t of_array = asked_bytes;
    json_describe(string, text, sizeof(text));
    const size_t of_both = asked_bytes;
    json_set_alloc_funcs(malloc, free);
    printf("described: an array of 65536 in %zu bytes, a text of a MiB in %zu\n", of_array,
        of_both - of_array);
    CHECK(of_array > 0 && of_array < 65536 && of_both - of_array < 4096, "%zu and %zu bytes",
        of_array, of_both);
    json_decref(large);
    json_decref(zero);
    json_decref(string);
    free(long_text);
}

static void integers_are_exact(void) {
    static const struct {
        const char *text;
        bool is_integer;
        int64_t value;
    } rows[] = {
        { "4", true, 4 },
        { "4.0", true, 4 },
        { "4e0", true, 4 },
        { "-7", true, -7 },
        { "9223372036854775807", true, INT64_MAX },
        { "9007199254740992.0", true, INT64_C(9007199254740992) },
        { "9007199254740994.0", false, 0 }, /* past 2^53 it may have been rounded */
        { "4.5", false, 0 },
        { "1e300", false, 0 },
        { "\"4\"", false, 0 },
        { "true", false, 0 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err = { 0 };
        int64_t integer = 0;
        json_t *value = json_parse(rows[i].text, strlen(rows[i].text), &err);
        bool is_integer = json_exact_integer(value, &integer);
        CHECK(is_integer == rows[i].is_integer && integer == rows[i].value, "%s: %d %lld",
            rows[i].text, is_integer, (long long)integer);
        json_decref(value);
    }
}

/* A scheduler configuration as diffusers 0.42 saves it for DPMSolverMultistepScheduler, with some
 * keys left out. */
static void infinities_of_python_are_null(void) {
    static const char written[] =
        "{\n  \"lambda_min_clipped\": -Infinity,\n  \"to\": [Infinity, 1],\n"
        "  \"said\": \"a \\\"-Infinity\\\" in a text\"\n}";
    char path[] = "/tmp/latentd_json_XXXXXX";
    struct error err = { 0 };
    int fd = mkstemp(path);
    CHECK(fd >= 0 && write(fd, written, sizeof(written) - 1) == sizeof(written) - 1, "%s", path);
    close(fd);
    CHECK(!json_parse_file(path, 4096, &err), "JSON has no infinities");
    json_t *value = json_parse_python_file(path, 4096, &err);
    CHECK(value, "%s", err.message);
    CHECK(json_is_null(json_object_get(value, "lambda_min_clipped")), "lambda_min_clipped");
    CHECK(json_is_null(json_array_get(json_object_get(value, "to"), 0)), "to[0]");
    CHECK_STRING(json_string_value(json_object_get(value, "said")), "a \"-Infinity\" in a text");
    json_decref(value);
    unlink(path);
}

int main(void) {
    infinities_of_python_are_null();
    stray_bytes_are_replaced();
    nesting_and_repetition_are_bounded();
    values_are_bounded();
    requests_are_bounded_before_memory_is_spent();
    descriptions_are_cut_and_cost_what_they_show();
    integers_are_exact();
    return check_done();
}
