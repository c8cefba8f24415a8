/* AUTOMATIC1111's prompt syntax: the pieces and weights that its own source comments give as
 * examples, and refused texts with the field's name in the error. */
#include "base/limits.h"
#include "engine/prompts/attention.h"
#include "engine/prompts/syntax.h"
#include "tests/check.h"

#include <stdlib.h>

#define PIECES_MAX 12

static const struct {
    const char *text;
    struct {
        const char *text;
        double weight;
    } pieces[PIECES_MAX];
} examples[] = {
    { "normal text", { { "normal text", 1 } } },
    { "an (important) word", { { "an ", 1 }, { "important", 1.1 }, { " word", 1 } } },
    { "(unbalanced", { { "unbalanced", 1.1 } } },
    { "\\(literal\\]", { { "(literal]", 1 } } },
    { "(unnecessary)(parens)", { { "unnecessaryparens", 1.1 } } },
    { "a (((house:1.3)) [on] a (hill:0.5), sun, (((sky))).",
        { { "a ", 1 }, { "house", 1.5730000000000004 }, { " ", 1.1 }, { "on", 1 }, { " a ", 1.1 },
            { "hill", 0.55 }, { ", sun, ", 1.1 }, { "sky", 1.4641000000000006 }, { ".", 1.1 } } },
    /* Further cases that follow from the same rules. */
    { "((a))", { { "a", 1.1 * 1.1 } } },
    { "[a]", { { "a", 1 / 1.1 } } },
    { "", { { "", 1 } } },
    { "a:1.2)", { { "a:1.2)", 1 } } },
    { "(a: -0.5 )", { { "a", -0.5 } } },
    { "(a:b)", { { "a:b", 1.1 } } },
    { "\\", { { "", 1 } } },
    { "a\\\\b\\c", { { "a\\bc", 1 } } },
    { "(a]:2)", { { "a]", 2 } } },
    { "a BREAK b", { { "a ", 1 }, { "BREAK", -1 }, { " b", 1 } } },
    { "xBREAK BREAKx \xc3\xa9"
      "BREAK",
        { { "xBREAK BREAKx \xc3\xa9"
            "BREAK",
            1 } } },
    { "(BREAK:2)", { { "", 2 }, { "BREAK", -2 }, { "", 2 } } },
};

static void examples_parse(void) {
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        struct attention a;
        struct error err = { 0 };
        size_t count = 0;
        if (!attention_parse("prompt", examples[i].text, &a, &err)) {
            CHECK(false, "%s: %s", examples[i].text, err.message);
            continue;
        }
        while (count < PIECES_MAX && examples[i].pieces[count].text)
            count++;
        CHECK(a.count == count, "%s: %zu pieces of %zu", examples[i].text, a.count, count);
        for (size_t k = 0; k < a.count && k < count; k++) {
            char *text = strndup(a.text + a.pieces[k].begin, a.pieces[k].end - a.pieces[k].begin);
            CHECK_STRING(text, examples[i].pieces[k].text);
            CHECK(a.pieces[k].weight == examples[i].pieces[k].weight, "%s: %.17g is not %.17g",
                examples[i].text, a.pieces[k].weight, examples[i].pieces[k].weight);
            free(text);
        }
        attention_finish(&a);
    }
    printf("%zu texts\n", sizeof(examples) / sizeof(examples[0]));
}

static void refused(const char *text, const char *value, const char *allowed) {
    struct attention a;
    struct error err = { 0 };
    CHECK(!attention_parse("prompt", text, &a, &err), "%s is accepted", text);
    CHECK(err.code == ERROR_INVALID, "%s", error_code_name(err.code));
    CHECK_STRING(err.param, "prompt");
    CHECK_STRING(err.value, value);
    CHECK_CONTAINS(err.allowed, allowed);
}

static void what_has_no_meaning_is_refused(void) {
    char deep[PROMPT_NESTING_MAX + 2];
    struct attention a;
    struct error err = { 0 };
    memset(deep, '[', sizeof(deep));
    deep[PROMPT_NESTING_MAX] = 0;
    CHECK(attention_parse("prompt", deep, &a, &err), "%s", err.message);
    attention_finish(&a);
    deep[PROMPT_NESTING_MAX] = '[';
    deep[PROMPT_NESTING_MAX + 1] = 0;
    refused(deep, "65 brackets", "at most 64");
    refused("(a:1.2.3)", ":1.2.3", "a number");
    refused("(a:.)", ":.", "a number");
    refused("(a:1001)", "a weight of 1001", "from -1000 to 1000");
    refused("(a:99999999999999999999999999999999999)", "a weight of 1e+35", "1000");
}

static void part(const char *text, const char *rest, double guidance) {
    struct prompt_parts parts;
    struct error err = { 0 };
    if (!prompt_parts_parse("prompt", text, false, &parts, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(parts.count == 1, "%s: %d parts", text, parts.count);
    CHECK_STRING(parts.parts[0].text, rest);
    CHECK(parts.parts[0].weight == guidance, "%s: %g", text, parts.parts[0].weight);
    prompt_parts_finish(&parts);
}

static void the_whole_has_a_weight(void) {
    part("a cat", "a cat", 1);
    part("a cat :1.2", "a cat", 1.2);
    part("a cat: -.5 \n", "a cat", -0.5);
    part("16:9", "16", 9);
    part("a cat:", "a cat:", 1);
    part("a cat:1.2.3", "a cat:1.2.3", 1);
    part("a (cat:1.2)", "a (cat:1.2)", 1);
    part("a cat 12", "a cat 12", 1);
    part("", "", 1);
}

static void tag(const char *text, const char *name, double text_encoder, double unet) {
    struct prompt_parts parts;
    struct error err = { 0 };
    if (!prompt_parts_parse("prompt", text, false, &parts, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(parts.tag_count == 1, "%s: %d tags", text, parts.tag_count);
    if (parts.tag_count == 1) {
        CHECK_STRING(parts.tags[0].name, name);
        CHECK(parts.tags[0].text_encoder_weight == text_encoder && parts.tags[0].weight == unet,
            "%s: %g and %g", text, parts.tags[0].text_encoder_weight, parts.tags[0].weight);
    }
    CHECK_STRING(parts.parts[0].text, "a  b");
    prompt_parts_finish(&parts);
}

static void tags_are_read(void) {
    tag("a <lora:snow> b", "snow", 1, 1);
    tag("a <lora:snow:0.5> b", "snow", 0.5, 0.5);
    tag("a <lora:snow:0.5:-2> b", "snow", 0.5, -2);
    tag("a <lora:snow:te=0.25> b", "snow", 0.25, 0.25);
    tag("a <lora:snow:0.5:unet=0.75> b", "snow", 0.5, 0.75);
    tag("a <lora:snow: 1 :te=0> b", "snow", 0, 0);
    tag("a <lyco:snow v2:.5> b", "snow v2", 0.5, 0.5);
    tag("a <lora:[style] (v1.0) a,b+c&d:2> b", "[style] (v1.0) a,b+c&d", 2, 2);
    tag("a <lora:-dash/\xc3\xa9t\xc3\xa9:te=2> b", "-dash/\xc3\xa9t\xc3\xa9", 2, 2);
    /* AUTOMATIC1111 reads a name up to the first colon; what it cannot read may be a longer name.
     */
    tag("a <lora:comma:1:2> b", "comma", 1, 2);
    tag("a <lora:comma:colon> b", "comma:colon", 1, 1);
    tag("a <lora:comma:colon:0.5> b", "comma:colon", 0.5, 0.5);
    tag("a <lora:x:1:1:8> b", "x:1", 1, 8);
    tag("a <lora:x:y=z:te=2> b", "x:y=z", 2, 2);
    struct prompt_parts parts;
    struct error err = { 0 };
    CHECK(prompt_parts_parse("prompt", "<a <lora:x><lora:y:2>><b:> <lora", false, &parts, &err) &&
              parts.tag_count == 2,
        "%s", err.message);
    CHECK_STRING(parts.parts[0].text, "<a ><b:> <lora");
    prompt_parts_finish(&parts);
    CHECK(prompt_parts_parse("negative_prompt", "<lora:x> AND :2", true, &parts, &err) &&
              parts.tag_count == 0 && parts.count == 1 && parts.parts[0].weight == 1,
        "a negative prompt's <lora:...> tag or AND is not kept as text: %s", err.message);
    CHECK_STRING(parts.parts[0].text, "<lora:x> AND :2");
    prompt_parts_finish(&parts);
}

static void parts_refused(const char *text, const char *value, const char *allowed) {
    struct prompt_parts parts;
    struct error err = { 0 };
    CHECK(!prompt_parts_parse("prompt", text, false, &parts, &err), "%s is accepted", text);
    CHECK_STRING(err.param, "prompt");
    CHECK_STRING(err.value, value);
    CHECK_CONTAINS(err.allowed, allowed);
}

static void what_is_not_supported_is_refused_by_name(void) {
    parts_refused("a <hypernet:x:1>", "<hypernet:x:1>", "<lora:NAME:WEIGHT>");
    parts_refused("<lora::1>", "<lora::1>", "te=WEIGHT");
    parts_refused("<lora:x> <lora:x:2>", "<lora:x:2>", "at most once");
    parts_refused("a :1001", ":1001", "from -1000 to 1000");
}

int main(void) {
    examples_parse();
    what_has_no_meaning_is_refused();
    the_whole_has_a_weight();
    tags_are_read();
    what_is_not_supported_is_refused_by_name();
    return check_done();
}
