/* Prompt editing, alternation and AND become what AUTOMATIC1111's own parser makes of them
 * (tests/reference/prompt_steps.py recorded its answers). Malformed, deep, long and huge prompts
 * are taken as text or refused by name.
 *
 * usage: schedule_test SCHEDULES.json */
#include "base/limits.h"
#include "engine/prompts/schedule.h"
#include "engine/prompts/syntax.h"
#include "tests/check.h"

#include <jansson.h>
#include <stdlib.h>

static int compared, spans, several;

static bool equals(const struct prompt_schedule *found, const json_t *expected) {
    bool same = (size_t)found->span_count == json_array_size(expected);
    for (int i = 0; same && i < found->span_count; i++) {
        const json_t *entry = json_array_get(expected, (size_t)i);
        const char *text = found->variants[found->spans[i].variant];
        same = found->spans[i].last == json_integer_value(json_array_get(entry, 0)) &&
               strcmp(text, json_string_value(json_array_get(entry, 1))) == 0;
    }
    return same;
}

static void print_found(const struct prompt_schedule *found) {
    for (int i = 0; i < found->span_count; i++)
        printf("    up to %d: \"%s\"\n", found->spans[i].last,
            found->variants[found->spans[i].variant]);
}

/* Different numbers stand for different texts only. */
static void check_variants(const struct prompt_schedule *found, const char *prompt) {
    for (int i = 0; i < found->variant_count; i++)
        for (int k = 0; k < i; k++)
            CHECK(strcmp(found->variants[i], found->variants[k]) != 0,
                "%s: variants %d and %d are equal", prompt, k, i);
}

static void compare_part(
    const char *prompt, const struct prompt_part *part, const json_t *expected, int evaluations) {
    const json_t *readings = json_object_get(expected, "schedules");
    struct prompt_schedule found;
    struct error err = { 0 };
    CHECK(part->weight == json_number_value(json_object_get(expected, "weight")), "%s: weight %g",
        prompt, part->weight);
    if (!prompt_schedule_parse(
            "prompt", part->text, evaluations, PROMPT_VARIANTS_MAX, &found, &err)) {
        CHECK(false, "%s: %s", prompt, err.message);
        return;
    }
    bool any = false;
    for (size_t i = 0; !any && i < json_array_size(readings); i++)
        any = equals(&found, json_array_get(readings, i));
    CHECK(any, "%s in %d evaluations is none of the %zu recorded readings:", prompt, evaluations,
        json_array_size(readings));
    if (!any)
        print_found(&found);
    check_variants(&found, prompt);
    compared++;
    spans += found.span_count;
    several += json_array_size(readings) > 1;
    prompt_schedule_finish(&found);
}

static void compare(const json_t *item) {
    const char *prompt = json_string_value(json_object_get(item, "prompt"));
    const bool negative = json_is_true(json_object_get(item, "negative"));
    const json_t *expected = json_object_get(item, "parts");
    const int evaluations = (int)json_integer_value(json_object_get(item, "evaluations"));
    struct prompt_parts parts;
    struct error err = { 0 };
    if (!prompt_parts_parse(
            negative ? "negative_prompt" : "prompt", prompt, negative, &parts, &err)) {
        CHECK(false, "%s: %s", prompt, err.message);
        return;
    }
    CHECK((size_t)parts.count == json_array_size(expected), "%s: %d parts instead of %zu", prompt,
        parts.count, json_array_size(expected));
    for (int i = 0; i < parts.count && (size_t)i < json_array_size(expected); i++)
        compare_part(prompt, &parts.parts[i], json_array_get(expected, (size_t)i), evaluations);
    prompt_parts_finish(&parts);
}

/* Evaluation n uses the first span that ends at n or later; after the last span's end it is used
 * on. */
static void spans_hold_up_to_their_end(void) {
    const struct prompt_span list[] = { { 1, 0 }, { 3, 1 }, { 4, 0 } };
    static const int expected[] = { 0, 0, 1, 1, 0, 0, 0 };
    for (int i = 0; i < 7; i++)
        CHECK(prompt_spans_at(list, 3, i) == expected[i], "evaluation %d: %d", i,
            prompt_spans_at(list, 3, i));
}

static void refuses(const char *text, int evaluations, const char *value) {
    struct prompt_schedule schedule;
    struct error err = { 0 };
    CHECK(!prompt_schedule_parse(
              "negative_prompt", text, evaluations, PROMPT_VARIANTS_MAX, &schedule, &err) &&
              strcmp(err.param, "negative_prompt") == 0 && strstr(err.value, value),
        "%.40s: %s", text, err.message);
    prompt_schedule_finish(&schedule);
}

/* Fills `text` with `piece` up to PROMPT_MAX_BYTES. */
static void repeat(char *text, const char *piece) {
    size_t size = 0;
    for (; size + strlen(piece) <= PROMPT_MAX_BYTES; size += strlen(piece))
        memcpy(text + size, piece, strlen(piece));
    text[size] = 0;
}

static void long_prompts_end(void) {
    static const char *const pieces[] = { "[a:b:3]", "[a|b]", "a:", "]", "\\]", "[a:b:3", "[a]",
        "|", "[(a)::9]" };
    static char text[PROMPT_MAX_BYTES + 1];
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct prompt_schedule schedule;
        struct error err = { 0 };
        repeat(text, pieces[i]);
        const bool ok = prompt_schedule_parse(
            "prompt", text, 2 * STEPS_MAX, PROMPT_VARIANTS_MAX, &schedule, &err);
        CHECK(ok || err.code == ERROR_INVALID, "%s: %s", pieces[i], err.message);
        CHECK(
            !ok || schedule.variant_count <= 2, "%s: %d texts", pieces[i], schedule.variant_count);
        prompt_schedule_finish(&schedule);
    }
    repeat(text, "[");
    refuses(text, 10, "65 brackets");
    repeat(text, "[(");
    refuses(text, 10, "65 brackets");
}

static void huge_schedules_are_refused(void) {
    char text[2000] = "";
    struct prompt_schedule schedule;
    struct error err = { 0 };
    for (int i = 0; i < PROMPT_VARIANTS_MAX; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d", i ? "|" : "[", i);
    char *end = text + strlen(text);
    memcpy(end, "]", 2);
    CHECK(prompt_schedule_parse(
              "prompt", text, 2 * STEPS_MAX, PROMPT_VARIANTS_MAX, &schedule, &err) &&
              schedule.variant_count == PROMPT_VARIANTS_MAX && schedule.span_count == 2 * STEPS_MAX,
        "%s", err.message);
    prompt_schedule_finish(&schedule);
    memcpy(end, "|]", 3);
    refuses(text, 2 * STEPS_MAX, "more than 128 texts");
    CHECK(prompt_schedule_parse(
              "prompt", text, PROMPT_VARIANTS_MAX, PROMPT_VARIANTS_MAX, &schedule, &err),
        "%s", err.message);
    prompt_schedule_finish(&schedule);
    /* A long text of which much stays the same. */
    static char longest[PROMPT_MAX_BYTES + 1];
    memset(longest, 'a', sizeof(longest) - 1);
    memcpy(longest, "[1|2|3|4|5|6|7|8|9]", 19);
    refuses(longest, 9, "more than 131072 bytes");
    CHECK(prompt_schedule_parse("prompt", "[a|b]", 10, 2, &schedule, &err), "%s", err.message);
    prompt_schedule_finish(&schedule);
    CHECK(!prompt_schedule_parse("prompt", "[a|b]", 10, 1, &schedule, &err),
        "a prompt of two variants is accepted where one is allowed");
}

static void parts_are_bounded(void) {
    struct prompt_parts parts;
    struct error err = { 0 };
    CHECK(!prompt_parts_parse(
              "prompt", "a AND b AND c AND d AND e AND f AND g AND h AND i", false, &parts, &err) &&
              strcmp(err.param, "prompt") == 0 && strstr(err.value, "more than 8 parts"),
        "%s", err.message);
    CHECK(!prompt_parts_parse("prompt", "a AND b :1001", false, &parts, &err) &&
              strcmp(err.value, ":1001") == 0,
        "%s", err.message);
}

int main(int argc, char **argv) {
    json_error_t error;
    json_t *cases = argc == 2 ? json_load_file(argv[1], 0, &error) : NULL;
    CHECK(json_array_size(cases) >= 200, "%zu cases", json_array_size(cases));
    for (size_t i = 0; i < json_array_size(cases); i++)
        compare(json_array_get(cases, i));
    printf("%zu prompts: %d parts with %d spans, of which %d have several readings\n",
        json_array_size(cases), compared, spans, several);
    json_decref(cases);
    spans_hold_up_to_their_end();
    long_prompts_end();
    huge_schedules_are_refused();
    parts_are_bounded();
    return check_done();
}
