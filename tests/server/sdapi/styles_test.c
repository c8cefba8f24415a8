/* Prompt styles, read and merged. The reference is Python's csv module as AUTOMATIC1111 uses it
 * (csv.DictReader with skipinitialspace), and its merge_prompts. */
#include "engine/request/defaults.h"
#include "server/sdapi/request.h"
#include "tests/check.h"

#include <stdlib.h>

static struct sdapi_styles *parse(const char *text) {
    struct sdapi_styles *styles = NULL;
    struct error err = { 0 };
    CHECK(sdapi_styles_parse(text, strlen(text), &styles, &err), "%s", err.message);
    return styles;
}

static void check_style(
    const struct sdapi_styles *styles, const char *name, const char *prompt, const char *negative) {
    const struct sdapi_style *style = sdapi_styles_find(styles, name);
    CHECK(style, "there is no %s", name);
    CHECK_STRING(style ? style->prompt : "", prompt);
    CHECK_STRING(style ? style->negative_prompt : "", negative);
}

/* A file as AUTOMATIC1111 writes it, with its mark at the beginning. */
static void files_are_read(void) {
    struct sdapi_styles *styles = parse("\xef\xbb\xbf"
                                        "name,prompt,negative_prompt\r\n"
                                        "oil,\"{prompt}, oil, \"\"old\"\"\",\"photo\r\nblurry\"\r\n"
                                        "\r\n"
                                        "short,a\r\n"
                                        "# a comment,left out,too\r\n"
                                        "\"#oil\",left out,\r\n"
                                        "\"a, b\", spaces left out,x,more\r\n"
                                        "oil,again,\n"
                                        "caf\xc3\xa9,\"quoted\"behind,z");
    CHECK(styles->count == 4, "%zu styles", styles->count);
    check_style(styles, "oil", "again", ""); /* the last one of a name */
    check_style(styles, "short", "a", "");
    check_style(styles, "a, b", "spaces left out", "x");
    check_style(styles, "caf\xc3\xa9", "quotedbehind", "z");
    CHECK_STRING(styles->items[0].name, "oil");
    CHECK(!sdapi_styles_find(styles, "") && !sdapi_styles_find(NULL, "oil"), "no others");
    json_t *list = sdapi_styles_json(styles);
    CHECK(json_array_size(list) == 4, "%zu listed", json_array_size(list));
    CHECK_STRING(json_string_value(json_object_get(json_array_get(list, 0), "prompt")), "again");
    json_decref(list);
    sdapi_styles_destroy(styles);
    styles = parse("text,name\na \"b\" c,old\n"); /* AUTOMATIC1111's first files */
    check_style(styles, "old", "a \"b\" c", "");
    sdapi_styles_destroy(styles);
    styles = parse("name,prompt,negative_prompt\n\"x\",\"one\r\ntwo, \"\"three\"\"\",y\n");
    check_style(styles, "x", "one\r\ntwo, \"three\"", "y");
    sdapi_styles_destroy(styles);
}

static void wrong_files_are_refused(void) {
    static const struct {
        const char *text, *why;
    } rows[] = {
        { "", "no columns" },
        { "title,prompt\na,b\n", "no columns" },
        { "name,prompt\na,b\nc,\"d\n", "line 3: a quote" },
        { "name,prompt\na,\xff\n", "line 2: this is no text" },
        { "name,prompt,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17\n", "line 1: more than 16" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sdapi_styles *styles;
        struct error err = { 0 };
        const bool ok = sdapi_styles_parse(rows[i].text, strlen(rows[i].text), &styles, &err);
        CHECK(!ok, "row %zu is taken", i);
        CHECK_CONTAINS(err.message, rows[i].why);
        if (ok)
            sdapi_styles_destroy(styles);
    }
}

static void styles_are_merged(void) {
    static const struct {
        const char *style, *prompt, *merged;
    } rows[] = {
        { "oil", "a cat", "a cat, oil" },
        { "  oil ", " a cat ", "a cat, oil" },
        { "", " a cat ", "a cat" },
        { "oil", "", "oil" },
        { "painting of {prompt}, oil", "a cat", "painting of a cat, oil" },
        { "{prompt} and {prompt} ", " a ", " a  and  a  " },
        { "{prompt}", "a {prompt}", "a {prompt}" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char *prompt = strdup(rows[i].prompt);
        struct error err = { 0 };
        CHECK(sdapi_style_merge(rows[i].style, &prompt, &err), "%s", err.message);
        CHECK_STRING(prompt, rows[i].merged);
        free(prompt);
    }
}

/* A style may fill a prompt to PROMPT_MAX_BYTES, and no further. */
static void merged_prompts_have_a_limit(void) {
    static const char *const rows[] = { "{prompt}{prompt}", "  {prompt}", "abc", "abcd " };
    static const size_t fitting[] = { 8192, 16382, 16379, 16378 };
    for (size_t i = 0; i < 4; i++)
        for (size_t more = 0; more < 2; more++) {
            char *prompt = calloc(fitting[i] + more + 1, 1);
            struct error err = { 0 };
            memset(prompt, 'x', fitting[i] + more);
            const bool ok = sdapi_style_merge(rows[i], &prompt, &err);
            CHECK(
                ok == !more, "\"%s\" with %zu bytes: %s", rows[i], fitting[i] + more, err.message);
            CHECK(!ok || strlen(prompt) == 16384, "%zu bytes", strlen(prompt));
            free(prompt);
        }
}

/* A model's default negative prompt replaces AUTOMATIC1111's, which is empty, but not a style's. */
static void a_style_is_not_replaced_by_a_default(void) {
    static const struct {
        const char *body, *drawn;
    } rows[] = {
        { "{\"styles\":[\"oil\"]}", "photo" },
        { "{\"styles\":[\"frame\"]}", "grey" },
        { "{\"styles\":[\"oil\"],\"negative_prompt\":\"dog\"}", "dog, photo" },
        { "{\"negative_prompt\":\"\"}", "" },
        { "{}", "grey" },
    };
    struct sdapi_styles *styles = parse(
        "name,prompt,negative_prompt\noil,oil,photo\nframe,[{prompt}],\n");
    struct generate_request defaults;
    struct sdapi_settings settings;
    struct sdapi_request r;
    struct error err = { 0 };
    sdapi_settings_init(&settings);
    generate_request_init(&defaults);
    CHECK(generate_defaults_set("--default", "negative_prompt=grey", &defaults, &err), "%s",
        err.message);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (!sdapi_request_parse(
                SDAPI_TXT2IMG, rows[i].body, strlen(rows[i].body), &settings, styles, &r, &err)) {
            CHECK(false, "%s: %s", rows[i].body, err.message);
            continue;
        }
        CHECK(generate_defaults_apply(&defaults, &r.generate, &err), "%s", err.message);
        CHECK(strcmp(r.generate.negative_prompt, rows[i].drawn) == 0, "%s draws without \"%s\"",
            rows[i].body, r.generate.negative_prompt);
        sdapi_request_finish(&r);
    }
    generate_request_finish(&defaults);
    sdapi_styles_destroy(styles);
}

static void requests_name_a_few_styles(void) {
    struct sdapi_settings settings;
    struct sdapi_request r;
    sdapi_settings_init(&settings);
    for (int count = 64; count <= 65; count++) {
        struct error err = { 0 };
        char body[1024] = "{\"styles\":[\"a\"";
        for (int i = 1; i < count; i++)
            strcat(body, ",\"a\"");
        strcat(body, "]}");
        const bool ok = sdapi_request_parse(
            SDAPI_TXT2IMG, body, strlen(body), &settings, NULL, &r, &err);
        CHECK(ok == (count == 64), "%d: %s", count, err.message);
        CHECK_STRING(err.param, ok ? "" : "styles");
        CHECK_STRING(err.value, ok ? "" : "65 names");
        if (ok)
            sdapi_request_finish(&r);
    }
}

/* A request's styles apply in their order; those that are not there are told. */
static void requests_have_styles(void) {
    static const char body[] =
        "{\"prompt\":\"a "
        "cat\",\"negative_prompt\":\"dog\",\"styles\":[\"frame\",\"nope\",\"oil\"]}";
    struct sdapi_styles *styles = parse(
        "name,prompt,negative_prompt\noil,oil,photo\nframe,[{prompt}],\n"
        "twice,{prompt}{prompt}{prompt}{prompt},\n");
    struct sdapi_settings settings;
    struct sdapi_request r;
    struct error err = { 0 };
    sdapi_settings_init(&settings);
    if (sdapi_request_parse(SDAPI_TXT2IMG, body, strlen(body), &settings, styles, &r, &err)) {
        CHECK_STRING(r.generate.prompts[0], "[a cat], oil");
        CHECK_STRING(r.generate.negative_prompt, "dog, photo");
        CHECK(json_array_size(r.comments) == 1, "%zu comments", json_array_size(r.comments));
        CHECK_CONTAINS(
            json_string_value(json_array_get(r.comments, 0)), "there is no style \"nope\"");
        sdapi_request_finish(&r);
    } else {
        CHECK(false, "%s", err.message);
    }
    /* Each style makes the prompt four times as long. */
    static const char long_one[] =
        "{\"prompt\":\"a "
        "cat\",\"styles\":[\"twice\",\"twice\",\"twice\",\"twice\",\"twice\",\"twice\","
        "\"twice\",\"twice\",\"twice\",\"twice\",\"twice\",\"twice\",\"twice\",\"twice\",\"twice\"]"
        "}";
    CHECK(!sdapi_request_parse(
              SDAPI_TXT2IMG, long_one, strlen(long_one), &settings, styles, &r, &err),
        "a prompt without an end");
    CHECK_STRING(err.param, "styles");
    CHECK_CONTAINS(err.allowed, "16384 bytes");
    sdapi_styles_destroy(styles);
}

int main(void) {
    files_are_read();
    wrong_files_are_refused();
    styles_are_merged();
    merged_prompts_have_a_limit();
    requests_have_styles();
    a_style_is_not_replaced_by_a_default();
    requests_name_a_few_styles();
    return check_done();
}
