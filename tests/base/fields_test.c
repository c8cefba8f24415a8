/* Tests a table with a field of every kind: what JSON and the command line may contain, which error
 * each wrong value gets, the defaults, the schemas, and how values are written back. */
#include "base/choice.h"
#include "base/fields.h"
#include "base/limits.h"
#include "tests/check.h"

#include <math.h>
#include <stdlib.h>

struct target {
    bool loud;
    int side, steps;
    uint64_t seed;
    double scale, share, minutes;
    enum choice tiling;
    char *text, *name;
};

#define MEMBER(kind_, member)                                                                      \
    .name = #member, .kind = FIELD_##kind_, FIELD_OF(struct target, member)
static const struct field fields[] = {
    { MEMBER(FLAG, loud), .value = 1, .help = "a flag" },
    { MEMBER(INTEGER, side), .min = 64, .max = 2048, .multiple = 8, .zero_is_unset = true,
        .note = "leave it out for the model's" },
    { MEMBER(INTEGER, steps), .min = -3, .max = 3, .value = 2 },
    { MEMBER(INTEGER, seed), .max = INT64_MAX - 16 },
    { MEMBER(NUMBER, scale), .max = 100, .value = 7.5 },
    { MEMBER(NUMBER, share), .max = 1, .below_max = true },
    { MEMBER(NUMBER, minutes), .max = 60, .zero_is_unset = true, .unit = "minutes" },
    { MEMBER(WORD, tiling), CHOICE_WORDS, .value = CHOICE_ON },
    { MEMBER(TEXT, text) },
    { MEMBER(TEXT, name), .min = 1 },
};
#define COUNT (sizeof(fields) / sizeof(fields[0]))

static const struct field *named(const char *name) {
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(fields[i].name, name) == 0)
            return &fields[i];
    return NULL;
}

static void finish(struct target *t) {
    free(t->text);
    free(t->name);
}

/* Each value as JSON, with the expected result: the allowed values that the error names, or the
 * JSON that is written back. */
static void json_is_taken_or_refused(void) {
    static const struct {
        const char *name, *json, *back, *allowed;
    } rows[] = {
        { "loud", "false", "false", NULL },
        { "loud", "0", NULL, "true or false" },
        { "side", "512", "512", NULL },
        { "side", "512.0", "512", NULL },
        { "side", "0", NULL,
            "an integer that is a multiple of 8 from 64 to 2048; leave it out for the model's" },
        { "side", "68", NULL,
            "an integer that is a multiple of 8 from 64 to 2048; leave it out for the model's" },
        { "side", "4294967808", NULL, /* 2^32 + 512 */
            "an integer that is a multiple of 8 from 64 to 2048; leave it out for the model's" },
        { "steps", "-3", "-3", NULL },
        { "steps", "-4", NULL, "an integer from -3 to 3" },
        { "steps", "1.5", NULL, "an integer from -3 to 3" },
        { "steps", "null", NULL, "an integer from -3 to 3" },
        { "seed", "9223372036854775791", "9223372036854775791", NULL },
        { "seed", "9223372036854775792", NULL, "an integer from 0 to 9223372036854775791" },
        { "scale", "0", "0", NULL },
        { "scale", "2.5", "2.5", NULL },
        { "scale", "100.5", NULL, "a number from 0 to 100" },
        { "scale", "\"7\"", NULL, "a number from 0 to 100" },
        { "share", "0.5", "0.5", NULL },
        { "share", "1", NULL, "a number from 0 and below 1" },
        { "minutes", "60", "60", NULL },
        { "minutes", "0", NULL, "minutes above 0, at most 60" },
        { "tiling", "\"off\"", "\"off\"", NULL },
        { "tiling", "\"no\"", NULL, "\"auto\", \"on\" or \"off\"" },
        { "tiling", "1", NULL, "\"auto\", \"on\" or \"off\"" },
        { "text", "\"\"", "\"\"", NULL },
        { "text", "7", NULL, "a string of at most 16384 bytes" },
        { "name", "\"\"", NULL, "a string of 1 to 16384 bytes" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct field *f = named(rows[i].name);
        json_t *json = json_loads(rows[i].json, JSON_DECODE_ANY, NULL);
        struct target t = { 0 };
        struct error err = { 0 };
        const bool ok = field_from_json(f, json, &t, &err);
        CHECK(ok == !rows[i].allowed, "%s %s: %s", rows[i].name, rows[i].json, err.message);
        if (ok) {
            json_t *back = field_to_json(f, &t);
            char *text = json_dumps(back, JSON_ENCODE_ANY);
            CHECK_STRING(text, rows[i].back);
            free(text);
            json_decref(back);
            CHECK(field_check(f, &t, &err), "%s: %s", rows[i].name, err.message);
        } else {
            CHECK_STRING(err.param, rows[i].name);
            CHECK_STRING(err.allowed, rows[i].allowed);
        }
        finish(&t);
        json_decref(json);
    }
    printf("%zu values as JSON\n", sizeof(rows) / sizeof(rows[0]));
}

static void text_is_taken_or_refused(void) {
    static const struct {
        const char *name, *text, *allowed;
        double value;
    } rows[] = {
        { "loud", "true", NULL, 1 },
        { "loud", "yes", "true or false", 0 },
        { "steps", "+2", NULL, 2 },
        { "steps", "2 ", "an integer from -3 to 3", 0 },
        { "steps", "2.0", "an integer from -3 to 3", 0 },
        { "steps", "", "an integer from -3 to 3", 0 },
        { "scale", "1e1", NULL, 10 },
        { "scale", "nan", "a number from 0 to 100", 0 },
        { "tiling", "off", NULL, CHOICE_OFF },
        { "tiling", "OFF", "auto, on or off", 0 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct field *f = named(rows[i].name);
        struct target t = { 0 };
        struct error err = { 0 };
        const bool ok = field_from_text(f, "--flag", rows[i].text, &t, &err);
        CHECK(ok == !rows[i].allowed, "%s %s: %s", rows[i].name, rows[i].text, err.message);
        CHECK(field_get(f, &t) == rows[i].value, "%s: %g", rows[i].text, field_get(f, &t));
        if (!ok) {
            CHECK_STRING(err.param, "--flag");
            CHECK_STRING(err.allowed, rows[i].allowed);
        }
    }
}

static void a_struct_is_checked(void) {
    struct target t;
    struct error err = { 0 };
    for (size_t i = 0; i < COUNT; i++)
        field_reset(&fields[i], &t);
    CHECK(
        t.loud && t.side == 0 && t.steps == 2 && t.scale == 7.5 && t.tiling == CHOICE_ON && !t.text,
        "a field that was not given does not have its default");
    for (size_t i = 0; i < COUNT; i++)
        CHECK(field_check(&fields[i], &t, &err), "%s", err.message);
    t.side = 63, t.scale = NAN, t.tiling = (enum choice)3;
    CHECK(!field_check(named("side"), &t, &err) && strcmp(err.value, "63") == 0, "%s", err.message);
    CHECK(
        !field_check(named("scale"), &t, &err) && strcmp(err.value, "nan") == 0, "%s", err.message);
    CHECK(!field_check(named("tiling"), &t, &err), "a value that stands for no word is accepted");
}

static void a_schema_says_what_is_allowed(void) {
    static const char *const schemas[][2] = {
        { "loud", "{\"type\":\"boolean\",\"default\":true,\"description\":\"a flag\"}" },
        { "side", "{\"type\":\"integer\",\"minimum\":64,\"maximum\":2048,\"multipleOf\":8}" },
        { "share", "{\"type\":\"number\",\"minimum\":0,\"exclusiveMaximum\":1,\"default\":0}" },
        { "minutes", "{\"type\":\"number\",\"exclusiveMinimum\":0,\"maximum\":60}" },
        { "tiling", "{\"type\":\"string\",\"enum\":[\"auto\",\"on\",\"off\"],\"default\":\"on\"}" },
        { "text", "{\"type\":\"string\"}" },
    };
    for (size_t i = 0; i < sizeof(schemas) / sizeof(schemas[0]); i++) {
        json_t *schema = field_schema(named(schemas[i][0]));
        char *text = json_dumps(schema, JSON_COMPACT);
        CHECK_STRING(text, schemas[i][1]);
        free(text);
        json_decref(schema);
    }
}

int main(void) {
    json_is_taken_or_refused();
    text_is_taken_or_refused();
    a_struct_is_checked();
    a_schema_says_what_is_allowed();
    return check_done();
}
