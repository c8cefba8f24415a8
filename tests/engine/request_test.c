/* The range checks of a request: each limit of base/limits.h, with the API's names in the error. */
#include "base/limits.h"
#include "engine/request/request.h"
#include "tests/check.h"
#include "tests/page.h"

#include <stdlib.h>

static struct generate_request request;

static void reset(void) {
    generate_request_finish(&request);
    generate_request_init(&request);
    request.prompts = calloc(1, sizeof(*request.prompts));
    request.prompts[0] = strdup("a red boat");
    request.prompt_count = 1;
}

/* Checks that this field, with the others valid, is refused. */
#define REFUSED(field, given, value, allowed)                                                      \
    do {                                                                                           \
        request.field = (given);                                                                   \
        refused(#field, value, allowed);                                                           \
    } while (0)

static void refused(const char *param, const char *value, const char *allowed) {
    struct error err = { 0 };
    CHECK(!generate_request_check(&request, &err), "%s %s is accepted", param, value);
    CHECK(err.code == ERROR_INVALID, "%s", error_code_name(err.code));
    CHECK_STRING(err.param, param);
    CHECK_STRING(err.value, value);
    CHECK_CONTAINS(err.allowed, allowed);
    reset();
}

static void taken(void) {
    struct error err = { 0 };
    CHECK(generate_request_check(&request, &err), "%s", err.message);
    reset();
}

/* Writes the names of the routes as text, such as "generations, edits" or "all"; "" for none. */
static void list_routes(unsigned routes, char *out, size_t size) {
    snprintf(out, size, "%s",
        routes == OPENAI_ALL                            ? "all"
        : routes == (OPENAI_EDITS | OPENAI_VARIATIONS)  ? "edits, variations"
        : routes == (OPENAI_GENERATIONS | OPENAI_EDITS) ? "generations, edits"
        : routes == OPENAI_EDITS                        ? "edits"
                                                        : "");
}

static void the_page_lists_every_field(const char *path, bool write) {
    char *table = NULL;
    size_t size;
    FILE *rows = open_memstream(&table, &size);
    fprintf(rows,
        "| field | default | allowed | OpenAI's routes | flag | |\n|---|---|---|---|---|---|\n");
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++) {
        const struct generate_field *f = &generate_fields[id];
        char allowed[ERROR_ALLOWED_BYTES], standard[64], routes[64], flag[80] = "";
        struct field plain = f->field;
        plain.note = NULL;
        field_allowed(&plain, FIELD_ALL_WORDS, "\"", allowed, sizeof(allowed));
        field_default(&f->field, standard, sizeof(standard));
        list_routes(f->openai, routes, sizeof(routes));
        CHECK(f->help && f->help[0], "%s has no help", f->name);
        if (f->kind != FIELD_OTHER && !f->no_flag)
            snprintf(flag, sizeof(flag), "`--%s`", f->flag ? f->flag : f->name);
        for (char *dash = strchr(flag, '_'); dash; dash = strchr(dash, '_'))
            *dash = '-';
        fprintf(rows, "| `%s` | %s | %s | %s | %s | %s |\n", f->name,
            f->standard ? f->standard : standard, allowed, routes, flag, f->help);
    }
    fclose(rows);
    printf("%d fields\n", GENERATE_FIELD_COUNT);
    page_table(path, "<!-- written by request_test --write -->\n", table, write);
    free(table);
}

/* usage: request_test docs/fields.md [--write] */
int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    the_page_lists_every_field(argv[1], argc == 3 && strcmp(argv[2], "--write") == 0);
    reset();
    CHECK(request.num_inference_steps == 25 && request.guidance_scale == 7.5 &&
              request.num_images == 1 && request.rng == RNG_CPU,
        "a request does not begin with the API's defaults");
    taken();
    request.width = 2048, request.height = 64, request.num_inference_steps = 1000;
    request.guidance_scale = 100, request.guidance_rescale = 1, request.num_images = 16;
    request.timeout_s = 86400, request.clip_skip = 31;
    taken();
    REFUSED(width, 511, "511", "a multiple of 8 from 64 to 2048");
    REFUSED(height, 2056, "2056", "2048");
    REFUSED(height, -8, "-8", "64");
    REFUSED(num_inference_steps, 0, "0", "1 to 1000");
    REFUSED(num_inference_steps, 1001, "1001", "1 to 1000");
    REFUSED(guidance_scale, NAN, "nan", "0 to 100");
    REFUSED(guidance_scale, INFINITY, "inf", "0 to 100");
    REFUSED(guidance_rescale, 1.5, "1.5", "0 to 1");
    REFUSED(num_images, 17, "17", "1 to 16");
    REFUSED(clip_skip, -1, "-1", "0 to 31");
    REFUSED(timeout_s, -1, "-1", "seconds above 0, at most 86400");
    REFUSED(timeout_s, 86400.1, "86400.1", "seconds above 0, at most 86400");
    REFUSED(timeout_s, NAN, "nan", "seconds above 0");
    memcpy(request.prompts[0], "a\xff", 3);
    refused("prompt", "0xff at byte 1", "text in UTF-8");
    request.negative_prompt = strdup("caf\xc3");
    refused("negative_prompt", "0xc3 at byte 3", "text in UTF-8");
    free(request.prompts[0]);
    request.prompts[0] = NULL;
    refused("prompt", "none", "a text");
    request.negative_prompt = malloc(PROMPT_MAX_BYTES + 2);
    memset(request.negative_prompt, 'x', PROMPT_MAX_BYTES + 1);
    request.negative_prompt[PROMPT_MAX_BYTES + 1] = 0;
    refused("negative_prompt", "16385 bytes", "16384");
    generate_request_finish(&request);
    generate_request_init(&request);
    request.prompts = calloc(5, sizeof(*request.prompts));
    for (int i = 0; i < 5; i++)
        request.prompts[i] = strdup("x");
    request.prompt_count = 5, request.num_images = 4;
    refused("num_images", "4", "16 images");
    generate_request_finish(&request);

    /* A zeroed result or request can be finished. */
    struct generate_result result = { 0 };
    generate_result_finish(&result);
    generate_request_finish(&request);
    return check_done();
}
