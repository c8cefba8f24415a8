/* How --lora NAME_OR_FILE[:WEIGHT[:TEXT_WEIGHT]] is parsed. */
#include "command/options/lora_flags.h"

#include "tests/check.h"

static const struct option_spec table[] = {
    { "lora", 0, "WORD", "", .repeats = true },
    { 0 },
};

static bool fill(
    const char *const given[], struct generate_request *request, struct lora_flags *out) {
    char word[] = "generate", option[] = "--lora", *argv[16] = { word };
    int argc = 1;
    for (; *given && argc < 14; given++) {
        argv[argc++] = option;
        argv[argc++] = (char *)*given;
    }
    struct options options;
    struct error err = { 0 };
    generate_request_init(request);
    CHECK(options_parse(table, false, argc, argv, &options, &err), "%s", err.message);
    return lora_flags_fill(&options, request, out, &err);
}

static void names_and_files_have_weights(void) {
    static const struct {
        const char *given, *name, *path; /* name NULL: refused; path NULL: it is a name */
        double weight, text_encoder_weight;
    } rows[] = {
        { "snow", "snow", NULL, 1, 1 },
        { "snow:0.5", "snow", NULL, 0.5, 0.5 },
        { "snow.v2:-1e-1:2", "snow.v2", NULL, -0.1, 2 },
        { "some/my snow (2).safetensors:3", "my snow (2)", "some/my snow (2).safetensors", 3, 3 },
        { "x.safetensors:0:1", "x", "x.safetensors", 0, 1 },
        { "./-x.safetensors", "-x", "./-x.safetensors", 1, 1 },
        { "a:1/b.safetensors", "b", "a:1/b.safetensors", 1, 1 },
        { "/tmp", "tmp", "/tmp", 1, 1 }, /* a folder */
        { "../folder/", "folder", "../folder/", 1, 1 },
        { "a b", "a b", NULL, 1, 1 },
        { "-snow:2", "-snow", NULL, 2, 2 },
        { "style/snow:0.5", "style/snow", NULL, 0.5, 0.5 },
        { "style/snow.safetensors", "snow", "style/snow.safetensors", 1, 1 },
        { "comma:colon", "comma:colon", NULL, 1, 1 },
        { "snow:1:2:3", "snow:1", NULL, 2, 3 },
        { "", NULL, NULL, 0, 0 },
        { "a\nb", NULL, NULL, 0, 0 },
        { ".hidden", NULL, NULL, 0, 0 },
        { "folder/rescan@12.safetensors", NULL, NULL, 0, 0 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *const given[] = { rows[i].given, NULL };
        struct generate_request request;
        struct lora_flags flags;
        const bool ok = fill(given, &request, &flags);
        CHECK(ok == !!rows[i].name, "\"%s\"", rows[i].given);
        if (ok && rows[i].name) {
            const struct lora_choice *lora = &request.loras[0];
            CHECK(request.loras_given && request.lora_count == 1, "%s", rows[i].given);
            CHECK_STRING(lora->name, rows[i].name);
            CHECK_NEAR(lora->weight, rows[i].weight, 0);
            CHECK_NEAR(lora->text_encoder_weight, rows[i].text_encoder_weight, 0);
            CHECK(!flags.paths[0] == !rows[i].path,
                "\"%s\" is taken as a file instead of a name, or as a name instead of a file",
                rows[i].given);
            if (flags.paths[0] && rows[i].path)
                CHECK_STRING(flags.paths[0], rows[i].path);
        }
        lora_flags_finish(&flags);
        generate_request_finish(&request);
    }
    printf("compared: %zu\n", sizeof(rows) / sizeof(rows[0]));
}

static void each_is_given_once(void) {
    static const char *const none[] = { NULL }, *const two[] = { "a", "b:2", NULL },
                             *const twice[] = { "a", "folder/a.safetensors", NULL };
    struct generate_request request;
    struct lora_flags flags;
    CHECK(fill(none, &request, &flags) && !request.loras_given,
        "without flags the request's loras are set");
    CHECK(fill(two, &request, &flags) && request.lora_count == 2, "two");
    CHECK_STRING(request.loras[1].name, "b");
    lora_flags_finish(&flags);
    generate_request_finish(&request);
    CHECK(!fill(twice, &request, &flags), "two files with one name are accepted");
    lora_flags_finish(&flags);
    generate_request_finish(&request);
}

int main(void) {
    names_and_files_have_weights();
    each_is_given_once();
    return check_done();
}
