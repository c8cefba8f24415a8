/* Request bodies and what becomes of them. The truth is the API's contract: field names and
 * defaults, RFC 8259 for what is JSON, and the words of each error. */
#include "server/dialect/generate_json.h"

#include "base/limits.h"
#include "server/http/accept.h"
#include "tests/check.h"

#include <stdlib.h>

static bool parse(const char *text, struct generate_request *request, struct error *err) {
    memset(err, 0, sizeof(*err));
    return generate_json_parse(text, strlen(text), request, err);
}

static void a_prompt_alone_takes_the_defaults(void) {
    struct generate_request r;
    struct error err;
    CHECK(parse("{\"prompt\": \"a cat\"}", &r, &err), "%s", err.message);
    CHECK(r.prompt_count == 1, "%d", r.prompt_count);
    CHECK_STRING(r.prompts[0], "a cat");
    CHECK(r.width == 0 && r.height == 0, "%dx%d", r.width, r.height);
    CHECK(r.num_inference_steps == 25, "%d", r.num_inference_steps);
    CHECK_NEAR(r.guidance_scale, 7.5, 0);
    CHECK(r.num_images == 1 && !r.seed_given && !r.latent_output, "%d", r.num_images);
    CHECK(!r.scheduler.has_kind && !r.scheduler.has_eta, "nothing overridden");
    generate_request_finish(&r);
}

static void every_field_arrives(void) {
    struct generate_request r;
    struct error err;
    CHECK(
        parse(
            "{\"prompt\": [\"one\", \"zw\\u00f6lf \\ud83d\\udc08\"], \"negative_prompt\": \"bad\","
            "\"width\": 512, \"height\": 768.0, \"num_inference_steps\": 30,"
            "\"guidance_scale\": 3, \"guidance_rescale\": 0.7, \"seed\": 9007199254740993,"
            "\"rng\": \"cuda\", \"num_images\": 2, \"clip_skip\": 1, \"output\": \"latent\","
            "\"timeout_s\": 1.5, \"scheduler\": {\"name\": \"ddim\","
            "\"timestep_spacing\": \"trailing\", \"eta\": 0.25, \"prediction_type\":"
            "\"v_prediction\", \"beta_schedule\": \"linear\", \"steps_offset\": 1,"
            "\"set_alpha_to_one\": false, \"rescale_betas_zero_snr\": true}}",
            &r, &err),
        "%s", err.message);
    CHECK(r.prompt_count == 2, "%d", r.prompt_count);
    CHECK_STRING(r.prompts[1], "zw\xc3\xb6lf \xf0\x9f\x90\x88");
    CHECK_STRING(r.negative_prompt, "bad");
    CHECK(r.width == 512 && r.height == 768, "%dx%d", r.width, r.height);
    CHECK(r.num_inference_steps == 30 && r.num_images == 2 && r.clip_skip == 1, "counts");
    CHECK_NEAR(r.guidance_scale, 3, 0);
    CHECK_NEAR(r.guidance_rescale, 0.7, 0);
    CHECK(r.seed == 9007199254740993u && r.seed_given, "2^53 + 1 is exact: %llu",
        (unsigned long long)r.seed);
    CHECK(r.rng == RNG_CUDA && r.latent_output, "%d", r.rng);
    CHECK_NEAR(r.timeout_s, 1.5, 0);
    const struct scheduler_options *s = &r.scheduler;
    CHECK(s->has_kind && s->kind == SCHEDULER_DDIM, "%d", s->kind);
    CHECK(s->has_spacing && s->spacing == SPACING_TRAILING, "%d", s->spacing);
    CHECK(s->has_eta && s->eta == 0.25, "%g", s->eta);
    CHECK(s->has_prediction && s->prediction == PREDICTION_V, "%d", s->prediction);
    CHECK(s->has_beta_schedule && s->beta_schedule == BETA_LINEAR, "%d", s->beta_schedule);
    CHECK(s->has_steps_offset && s->steps_offset == 1, "%d", s->steps_offset);
    CHECK(s->has_set_alpha_to_one && !s->set_alpha_to_one, "%d", s->set_alpha_to_one);
    CHECK(s->has_rescale_zero_snr && s->rescale_zero_snr, "%d", s->rescale_zero_snr);
    generate_request_finish(&r);
}

/* A wrong field, its parameter as the error names it, and words of value and of what is allowed. */
static const struct {
    const char *fields, *param, *value, *allowed;
} wrong[] = {
    { "\"width\": 511", "width", "511", "a multiple of 8 from 64 to 2048" },
    { "\"width\": 0", "width", "0", "leave it out" },
    { "\"width\": 99999999999", "width", "99999999999", "a multiple of 8" },
    { "\"width\": -8", "width", "-8", "a multiple of 8" },
    { "\"width\": 512.5", "width", "512.5", "an integer" },
    { "\"width\": \"512\"", "width", "\"512\"", "an integer" },
    { "\"height\": null", "height", "null", "an integer" },
    { "\"height\": [512]", "height", "[", "an integer" },
    { "\"num_inference_steps\": 0", "num_inference_steps", "0", "from 1 to 1000" },
    { "\"num_inference_steps\": 1e9", "num_inference_steps", "1000000000.0", "from 1 to 1000" },
    { "\"guidance_scale\": \"7\"", "guidance_scale", "\"7\"", "a number" },
    { "\"guidance_scale\": -1", "guidance_scale", "-1", "from 0 to 100" },
    { "\"guidance_scale\": true", "guidance_scale", "true", "a number" },
    { "\"guidance_rescale\": 1.5", "guidance_rescale", "1.5", "from 0 to 1" },
    { "\"seed\": -1", "seed", "-1", "leave it out for a random one" },
    { "\"seed\": 1.5", "seed", "1.5", "an integer from 0" },
    { "\"seed\": 9223372036854775807", "seed", "9223372036854775807", "9223372036854775791" },
    { "\"seed\": 1e17", "seed", "1e17", "an integer from 0" },
    { "\"seed\": null", "seed", "null", "an integer from 0" },
    { "\"rng\": \"gpu\"", "rng", "\"gpu\"", "\"cpu\" or \"cuda\"" },
    { "\"rng\": 1", "rng", "1", "\"cpu\" or \"cuda\"" },
    { "\"num_images\": 17", "num_images", "17", "from 1 to 16" },
    { "\"num_images\": 0", "num_images", "0", "from 1 to 16" },
    { "\"clip_skip\": -1", "clip_skip", "-1", "from 0" },
    { "\"output\": \"jpeg\"", "output", "\"jpeg\"", "\"png\" or \"latent\"" },
    { "\"timeout_s\": 0", "timeout_s", "0", "seconds above 0" },
    { "\"timeout_s\": -5", "timeout_s", "-5", "seconds above 0" },
    { "\"negative_prompt\": [\"a\"]", "negative_prompt", "[", "a string" },
    { "\"scheduler\": \"dpm\"", "scheduler", "\"dpm\"", "\"ddpm\", \"ddim\", \"pndm\"" },
    { "\"scheduler\": 3", "scheduler", "3", "\"ddim\"" },
    { "\"scheduler\": {\"name\": \"x\"}", "scheduler.name", "\"x\"", "\"ddim\"" },
    { "\"scheduler\": {\"eta\": \"1\"}", "scheduler.eta", "\"1\"", "a number" },
    { "\"scheduler\": {\"steps_offset\": 0.5}", "scheduler.steps_offset", "0.5", "an integer" },
    { "\"scheduler\": {\"set_alpha_to_one\": 1}", "scheduler.set_alpha_to_one", "1",
        "true or false" },
    { "\"scheduler\": {\"timestep_spacing\": \"log\"}", "scheduler.timestep_spacing", "\"log\"",
        "\"leading\", \"trailing\" or \"linspace\"" },
    { "\"scheduler\": {\"prediction_type\": 1}", "scheduler.prediction_type", "1", "\"epsilon\"" },
    { "\"scheduler\": {\"use_karras_sigmas\": true}", "scheduler.use_karras_sigmas", "true",
        "known options are" },
    { "\"steps\": 20", "steps", "20", "there is no such field" },
    { "\"\": 1", "", "1", "there is no such field" },
    /* fields of later versions are refused, not passed over */
    { "\"loras\": []", "loras", "[]", "this version does not support" },
    { "\"init_image\": \"x\"", "init_image", "\"x\"", "this version does not support" },
    { "\"stream\": false", "stream", "false", "this version does not support" },
    { "\"model\": \"sd15\"", "model", "\"sd15\"", "this version does not support" },
    { "\"long_prompt\": \"chunk\"", "long_prompt", "\"chunk\"", "this version does not support" },
};

static void wrong_fields_are_named(void) {
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char text[400];
        struct generate_request r;
        struct error err;
        snprintf(text, sizeof(text), "{\"prompt\": \"a\", %s}", wrong[i].fields);
        bool ok = parse(text, &r, &err);
        CHECK(!ok, "%s was accepted", text);
        if (ok) {
            generate_request_finish(&r);
            continue;
        }
        CHECK(err.code == ERROR_INVALID, "%s: code %d", text, err.code);
        CHECK_STRING(err.param, wrong[i].param);
        CHECK_CONTAINS(err.value, wrong[i].value);
        CHECK_CONTAINS(err.allowed, wrong[i].allowed);
        CHECK_CONTAINS(err.message, wrong[i].allowed);
    }
    printf("%zu wrong fields\n", sizeof(wrong) / sizeof(wrong[0]));
}

/* Bodies that are wrong as a whole, and words of the message. */
static const char *const wrong_bodies[][2] = {
    { "", "the body is empty" },
    { "   ", "not valid JSON" },
    { "[]", "must be a JSON object" },
    { "\"prompt\"", "must be a JSON object" },
    { "{}", "prompt" },
    { "{\"prompt\": \"a\"", "not valid JSON" },
    { "{\"prompt\": \"a\"} x", "not valid JSON" },
    { "{\"prompt\": \"a\"}{}", "not valid JSON" },
    { "{\"prompt\": 'a'}", "not valid JSON" },
    { "{\"prompt\": \"a\", }", "not valid JSON" },
    { "{\"prompt\": \"a\", \"prompt\": \"b\"}", "duplicate" },
    { "{\"prompt\": \"a\", \"width\": NaN}", "not valid JSON" },
    { "{\"prompt\": \"a\", \"seed\": 99999999999999999999}", "not valid JSON" },
    { "{\"prompt\": \"a\", \"guidance_scale\": 1e400}", "not valid JSON" },
    { "{\"prompt\": \"a\", \"width\": 0512}", "not valid JSON" },
    { "{\"prompt\": \"\\u0000\"}", "not valid JSON" },
    { "{\"prompt\": \"\\ud800\"}", "not valid JSON" },
    { "{\"prompt\": \"\xff\"}", "not valid JSON" },
    { "{\"prompt\": \"\xc0\xaf\"}", "not valid JSON" },
    { "{\"prompt\": \"a\nb\"}", "not valid JSON" },
    { "\xef\xbb\xbf{\"prompt\": \"a\"}", "not valid JSON" },
    { "{\"prompt\": 1}", "prompt" },
    { "{\"prompt\": null}", "prompt" },
    { "{\"prompt\": []}", "1 to 16" },
    { "{\"prompt\": [\"a\", 1]}", "a string" },
    { "{\"prompt\": [[\"a\"]]}", "a string" },
    { "{\"prompt\": {\"a\": 1}}", "prompt" },
    { "[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]", "deeper than 16" },
    { "{\"prompt\": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}", "deeper than 16" },
};

static void wrong_bodies_say_why(void) {
    for (size_t i = 0; i < sizeof(wrong_bodies) / sizeof(wrong_bodies[0]); i++) {
        struct generate_request r;
        struct error err;
        bool ok = parse(wrong_bodies[i][0], &r, &err);
        CHECK(!ok, "%s was accepted", wrong_bodies[i][0]);
        CHECK_CONTAINS(err.message, wrong_bodies[i][1]);
        if (ok)
            generate_request_finish(&r);
    }
}

static void brackets_in_strings_are_not_depth(void) {
    struct generate_request r;
    struct error err;
    CHECK(parse("{\"prompt\": \"[[[[[[[[[[[[[[[[[[[[[[ \\\" {{{{{{{{{{{\"}", &r, &err), "%s",
        err.message);
    generate_request_finish(&r);
}

static void a_prompt_has_a_ceiling(void) {
    static char text[PROMPT_MAX_BYTES + 64];
    struct generate_request r;
    struct error err;
    for (int over = 0; over <= 1; over++) {
        size_t used = (size_t)sprintf(text, "{\"prompt\": \"");
        memset(text + used, 'x', PROMPT_MAX_BYTES + (size_t)over);
        strcpy(text + used + PROMPT_MAX_BYTES + over, "\"}");
        bool ok = parse(text, &r, &err);
        CHECK(ok == !over, "%d bytes: %s", PROMPT_MAX_BYTES + over, err.message);
        if (ok)
            generate_request_finish(&r);
    }
    CHECK_STRING(err.param, "prompt");
    CHECK_CONTAINS(err.allowed, "16384 bytes");
}

static void a_cut_character_does_not_spoil_an_error(void) {
    /* 99 bytes and then a character of three: the quoted value ends before it */
    char text[300];
    struct generate_request r;
    struct error err;
    snprintf(
        text, sizeof(text), "{\"prompt\": \"a\", \"rng\": \"%099d\xe7\x8c\xab\xe7\x8c\xab\"}", 0);
    CHECK(!parse(text, &r, &err), "accepted");
    json_t *string = json_string(err.value);
    CHECK(string != NULL, "the value is UTF-8: %s", err.value);
    json_decref(string);
}

/* RFC 9110, section 12.5.1, its own examples among them. */
static void accept_headers_are_weighed(void) {
    static const struct {
        const char *header;
        int json, png;
    } rows[] = {
        { NULL, 1000, 1000 },
        { "", 1000, 1000 },
        { "*/*", 1000, 1000 },
        { "image/png", 0, 1000 },
        { "IMAGE/PNG", 0, 1000 },
        { "application/json", 1000, 0 },
        { "image/*", 0, 1000 },
        { "image/*, image/png;q=0", 0, 0 },
        { "image/avif,image/webp,image/png,*/*;q=0.8", 800, 1000 },
        { "application/json, image/png;q=0.5", 1000, 500 },
        { "text/html", 0, 0 },
        { "image/png ; q=0.333 , application/json;q=0.2", 200, 333 },
        { "image/png;q=2", 0, 0 },
        { "image/png;q=", 0, 0 },
        { "image/pngx", 0, 0 },
        { ",,;;,", 0, 0 },
        { "audio/*; q=0.2, audio/basic", 0, 0 },
        { "*/*;q=0.5, image/png;level=1;q=0.7", 500, 700 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        int json = accept_quality(rows[i].header, "application/json");
        int png = accept_quality(rows[i].header, "image/png");
        CHECK(json == rows[i].json && png == rows[i].png, "%s: json %d, png %d", rows[i].header,
            json, png);
    }
}

int main(void) {
    a_prompt_alone_takes_the_defaults();
    every_field_arrives();
    wrong_fields_are_named();
    wrong_bodies_say_why();
    brackets_in_strings_are_not_depth();
    a_prompt_has_a_ceiling();
    a_cut_character_does_not_spoil_an_error();
    accept_headers_are_weighed();
    return check_done();
}
