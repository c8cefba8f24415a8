/* Request bodies and their results. The expected values are the API's contract: field names and
 * defaults, RFC 8259 for JSON, and the words of each error. */
#include "server/generation/generate_json.h"

#include "base/limits.h"
#include "base/text/json.h"
#include "server/http/accept.h"
#include "tests/check.h"

#include <stdlib.h>

static bool parse(const char *text, struct generate_request *request, struct error *err) {
    struct generate_delivery delivery;
    memset(err, 0, sizeof(*err));
    return generate_json_parse(text, strlen(text), request, &delivery, err);
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
    CHECK(!r.scheduler.has_kind && !r.scheduler.given[OPTION_ETA],
        "an empty request overrides the scheduler");
    CHECK(!r.loras_given && r.lora_count == 0 && r.priority == 0,
        "an empty request has adapters or a priority");
    generate_request_finish(&r);
}

/* null stands for a field's default, because JSON has no other word for a missing value. The prompt
 * has no default, so null is refused there. */
static void null_is_the_default(void) {
    struct generate_request r, plain;
    struct error err;
    int count = 0;
    CHECK(parse("{\"prompt\": \"a\"}", &plain, &err), "%s", err.message);
    for (const char *name; (name = generate_json_field((size_t)count)); count++) {
        char body[128];
        if (strcmp(name, "prompt") == 0)
            continue;
        snprintf(body, sizeof(body), "{\"prompt\": \"a\", \"%s\": null}", name);
        const bool ok = parse(body, &r, &err);
        CHECK(ok, "%s: %s", name, err.message);
        if (!ok)
            continue;
        for (int id = 0; id < GENERATE_FIELD_COUNT; id++) {
            const struct generate_field *f = &generate_fields[id];
            if (f->kind != FIELD_OTHER && f->kind != FIELD_TEXT)
                CHECK_NEAR(field_get(&f->field, &r), field_get(&f->field, &plain), 0);
        }
        CHECK(!r.negative_prompt && !r.seed_given && !r.loras_given && !r.init_image.bytes, "%s",
            name);
        generate_request_finish(&r);
    }
    printf("null in %d fields\n", count);
    generate_request_finish(&plain);
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
            "\"long_prompt\": \"chunk\", \"prompt_syntax\": \"a1111\","
            "\"timeout_s\": 1.5, \"priority\": -2, \"loras\": [{\"name\": \"snow\"},"
            "{\"weight\": -0.3, \"name\": \"ink.v2\"}, {\"text_encoder_weight\": 0,"
            "\"name\": \"x\", \"weight\": 2}], \"scheduler\": {\"name\": \"ddim\","
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
    CHECK(r.long_prompt == LONG_PROMPT_CHUNK, "%d", r.long_prompt);
    CHECK(r.prompt_syntax == PROMPT_SYNTAX_A1111, "%d", r.prompt_syntax);
    CHECK(r.priority == -2, "%d", r.priority);
    static const struct lora_choice loras[] = { { "snow", 1, 1 }, { "ink.v2", -0.3, -0.3 },
        { "x", 2, 0 } };
    CHECK(r.loras_given && r.lora_count == 3, "%d", r.lora_count);
    for (int i = 0; i < r.lora_count; i++) {
        CHECK_STRING(r.loras[i].name, loras[i].name);
        CHECK_NEAR(r.loras[i].weight, loras[i].weight, 0);
        CHECK_NEAR(r.loras[i].text_encoder_weight, loras[i].text_encoder_weight, 0);
    }
    const struct scheduler_choice *s = &r.scheduler;
    CHECK(s->has_kind && s->kind == SCHEDULER_DDIM, "%d", s->kind);
    static const enum scheduler_option_id given[] = { OPTION_TIMESTEP_SPACING, OPTION_ETA,
        OPTION_PREDICTION_TYPE, OPTION_BETA_SCHEDULE, OPTION_STEPS_OFFSET, OPTION_SET_ALPHA_TO_ONE,
        OPTION_RESCALE_BETAS_ZERO_SNR };
    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
        CHECK(s->given[given[i]], "%s", scheduler_options[given[i]].name);
    CHECK(s->values.timestep_spacing == SPACING_TRAILING, "%d", s->values.timestep_spacing);
    CHECK(s->values.eta == 0.25, "%g", s->values.eta);
    CHECK(s->values.prediction_type == PREDICTION_V, "%d", s->values.prediction_type);
    CHECK(s->values.beta_schedule == BETA_LINEAR, "%d", s->values.beta_schedule);
    CHECK(s->values.steps_offset == 1, "%d", s->values.steps_offset);
    CHECK(!s->values.set_alpha_to_one, "%d", s->values.set_alpha_to_one);
    CHECK(s->values.rescale_betas_zero_snr, "%d", s->values.rescale_betas_zero_snr);
    generate_request_finish(&r);
}

/* Wrong fields, with the parameter that the error names, and words of its value and of what is
 * allowed. */
static const struct {
    const char *fields, *param, *value, *allowed;
} wrong[] = {
    { "\"width\": 511", "width", "511", "a multiple of 8 from 64 to 2048" },
    { "\"width\": 0", "width", "0", "leave it out" },
    { "\"width\": 99999999999", "width", "99999999999", "a multiple of 8" },
    { "\"width\": -8", "width", "-8", "a multiple of 8" },
    { "\"width\": 512.5", "width", "512.5", "an integer" },
    { "\"width\": \"512\"", "width", "\"512\"", "an integer" },
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
    { "\"colour\": null", "colour", "null", "no such field" },
    { "\"rng\": \"gpu\"", "rng", "\"gpu\"", "\"cpu\" or \"cuda\"" },
    { "\"rng\": 1", "rng", "1", "\"cpu\" or \"cuda\"" },
    { "\"num_images\": 17", "num_images", "17", "from 1 to 16" },
    { "\"num_images\": 0", "num_images", "0", "from 1 to 16" },
    { "\"clip_skip\": -1", "clip_skip", "-1", "from 0" },
    { "\"long_prompt\": \"cut\"", "long_prompt", "\"cut\"", "\"truncate\" or \"chunk\"" },
    { "\"prompt_syntax\": \"comfy\"", "prompt_syntax", "\"comfy\"", "\"plain\" or \"a1111\"" },
    { "\"prompt_syntax\": 1", "prompt_syntax", "1", "\"plain\" or \"a1111\"" },
    { "\"prompt_embeds\": \"AAAA\"", "prompt_embeds", "\"AAAA\"", "\"shape\": [TEXTS, TOKENS" },
    { "\"prompt_embeds\": {\"b64\": \"AAAA\", \"shape\": [1, 1, 1]}", "prompt_embeds.b64",
        "3 bytes", "4 bytes for each" },
    { "\"negative_prompt_embeds\": {\"b64\": \"AAAA\", \"shape\": [0, 1]}",
        "negative_prompt_embeds", "{\"b64\":\"AAAA\",\"shape\":[0,1]}",
        "\"shape\": [TEXTS, TOKENS" },
    { "\"long_prompt\": true", "long_prompt", "true", "\"truncate\" or \"chunk\"" },
    { "\"output\": \"jpg\"", "output", "\"jpg\"", "\"png\", \"jpeg\", \"webp\" or \"latent\"" },
    { "\"quality\": 101", "quality", "101", "from 1 to 100" },
    { "\"quality\": 0", "quality", "0", "from 1 to 100" },
    { "\"timeout_s\": 0", "timeout_s", "0", "seconds above 0, at most 86400; leave it out" },
    { "\"timeout_s\": -5", "timeout_s", "-5", "seconds above 0, at most 86400; leave it out" },
    { "\"timeout_s\": 86400.1", "timeout_s", "86400.1", "seconds above 0, at most 86400" },
    { "\"guidance_scale\": 100.1", "guidance_scale", "100.1", "from 0 to 100" },
    { "\"priority\": 4", "priority", "4", "an integer from -3 to 3" },
    { "\"priority\": \"high\"", "priority", "\"high\"", "an integer" },
    { "\"model\": 3", "model", "3", "a string" },
    { "\"vae_tiling\": true", "vae_tiling", "true", "\"auto\", \"on\" or \"off\"" },
    { "\"loras\": \"snow\"", "loras", "\"snow\"", "a list of at most 64 objects" },
    { "\"loras\": {\"name\": \"a\"}", "loras", "{", "a list" },
    { "\"loras\": [\"snow\"]", "loras[0]", "\"snow\"", "{\"name\": TEXT" },
    { "\"loras\": [{}]", "loras[0]", "{}", "with the name of an adapter" },
    { "\"loras\": [{\"name\": 3}]", "loras[0].name", "3", "the name of an adapter" },
    { "\"loras\": [{\"name\": \"\"}]", "loras[0].name", "\"\"", "the name of an adapter" },
    { "\"loras\": [{\"name\": \"a\", \"scale\": 1}]", "loras[0].scale", "1",
        "known are name, weight and text_encoder_weight" },
    { "\"loras\": [{\"name\": \"a\"}, {\"name\": \"a\", \"weight\": 2}]", "loras[1].name", "a",
        "at most once" },
    { "\"loras\": [{\"name\": \"a\", \"weight\": \"1\"}]", "loras[0].weight", "\"1\"", "a number" },
    { "\"loras\": [{\"name\": \"a\"}, {\"name\": \"b\", \"weight\": -100.5}]", "loras[1].weight",
        "-100.5", "a number from -100 to 100" },
    { "\"loras\": [{\"name\": \"a\", \"text_encoder_weight\": 101}]",
        "loras[0].text_encoder_weight", "101", "a number from -100 to 100" },
    { "\"init_image\": 5", "init_image", "5", "the base64 of a PNG, JPEG or WebP file" },
    { "\"init_image\": \"\"", "init_image", "\"\"", "the base64 of a PNG, JPEG or WebP file" },
    { "\"init_image\": \"AAA\"", "init_image", "3 characters", "base64 with its padding" },
    { "\"init_image\": \"AA-A\"", "init_image", "0x2d at character 2 of 4", "base64" },
    { "\"init_image\": \"AA=A\"", "init_image", "0x3d at character 2 of 4", "base64" },
    { "\"init_image\": \"AAA=AAAA\"", "init_image", "0x3d at character 3 of 8", "base64" },
    { "\"init_image\": \"AB==\"", "init_image", "0x42 at character 1 of 4", "base64" },
    { "\"init_image\": \"AA\\nAA\"", "init_image", "0x0a at character 2 of 5", "base64" },
    { "\"init_image\": \"data:image/png,AAAA\"", "init_image", "data:image/png",
        "data:image/png;base64,..." },
    { "\"init_image\": \"http://localhost/a.png\"", "init_image", "0x3a at character 4", "base64" },
    { "\"init_image\": {\"bytes\": 7}", "init_image", "{",
        "the base64 of a PNG, JPEG or WebP file" },
    { "\"mask_image\": [\"AAAA\"]", "mask_image", "[", "the base64 of a PNG, JPEG or WebP file" },
    { "\"mask_image\": \"AAAA\"", "mask_image", "a picture", "only with init_image" },
    { "\"strength\": 0.5", "strength", "0.5", "only with init_image" },
    { "\"strength\": \"high\"", "strength", "\"high\"", "a number" },
    { "\"init_image\": \"AAAA\", \"strength\": 1.5", "strength", "1.5", "from 0 to 1" },
    { "\"resize_mode\": \"crop\"", "resize_mode", "crop", "only with init_image" },
    { "\"masked_content\": \"fill\"", "masked_content", "\"fill\"",
        "\"original\", \"noise\" or \"nothing\"" },
    { "\"masked_content\": \"noise\"", "masked_content", "noise", "without mask_image" },
    { "\"subseed\": -1", "subseed", "-1", "leave it out for a random one" },
    { "\"subseed_strength\": 1.5", "subseed_strength", "1.5", "a number from 0 to 1" },
    { "\"seed_resize_from_w\": 100", "seed_resize_from_w", "100", "a multiple of 8 from 64" },
    { "\"seed_resize_from_w\": 64", "seed_resize_from_h", "none", "beside seed_resize_from_w" },
    { "\"resize_mode\": \"stretch\"", "resize_mode", "\"stretch\"", "\"none\", \"default\"" },
    { "\"negative_prompt\": [\"a\"]", "negative_prompt", "[", "a string" },
    { "\"scheduler\": \"dpm\"", "scheduler", "\"dpm\"", "\"ddpm\", \"ddim\"" },
    { "\"scheduler\": 3", "scheduler", "3", "\"ddim\"" },
    { "\"scheduler\": {\"name\": \"x\"}", "scheduler.name", "\"x\"", "\"ddim\"" },
    { "\"scheduler\": {\"eta\": \"1\"}", "scheduler.eta", "\"1\"", "a number from 0 to 1" },
    { "\"scheduler\": {\"name\": \"ddim\", \"eta\": 1.0625}", "scheduler.eta", "1.0625",
        "a number from 0 to 1" },
    { "\"scheduler\": {\"steps_offset\": 0.5}", "scheduler.steps_offset", "0.5", "an integer" },
    { "\"scheduler\": {\"set_alpha_to_one\": 1}", "scheduler.set_alpha_to_one", "1",
        "true or false" },
    { "\"scheduler\": {\"timestep_spacing\": \"log\"}", "scheduler.timestep_spacing", "\"log\"",
        "\"leading\", \"trailing\", \"linspace\" or \"sgm_uniform\"" },
    { "\"scheduler\": {\"prediction_type\": 1}", "scheduler.prediction_type", "1", "\"epsilon\"" },
    { "\"scheduler\": {\"use_no_sigmas\": true}", "scheduler.use_no_sigmas", "true",
        "known options are" },
    { "\"steps\": 20", "steps", "20", "there is no such field" },
    { "\"\": 1", "", "1", "there is no such field" },
    { "\"stream\": 1", "stream", "1", "true or false" },
    { "\"preview_every\": -1", "preview_every", "-1", "an integer from 0 to 1000" },
    { "\"preview_every\": 2.5", "preview_every", "2.5", "an integer from 0 to 1000" },
    { "\"preview\": \"taesd\"", "preview", "\"taesd\"", "\"rgb\"" },
    { "\"preview\": \"vae\"", "preview", "\"vae\"", "only with a preview_every above 0" },
    { "\"preview\": \"rgb\", \"preview_every\": 0", "preview", "\"rgb\"", "only with" },
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

/* Every row of the parser's table has a wrong value in the table above, or in the bodies below. */
static void every_field_can_be_wrong(void) {
    const char *name;
    size_t count = 0;
    for (; (name = generate_json_field(count)); count++) {
        bool found = strcmp(name, "prompt") == 0;
        for (size_t i = 0; !found && i < sizeof(wrong) / sizeof(wrong[0]); i++)
            found = strcmp(wrong[i].param, name) == 0;
        CHECK(found, "the test has no wrong value of %s", name);
    }
    CHECK(count >= 14, "%zu fields", count);
}

/* The options that diffusers' constructors (and step(), for eta) take and that our API lets a
 * request set. Additions of ours: use_ays_sigmas and use_kl_optimal_sigmas wherever there are lists
 * of sigmas, and all lists of euler_ancestral. */
static const struct {
    const char *name, *options[12];
} constructors[] = {
    { "ddpm", { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
                  "rescale_betas_zero_snr" } },
    { "ddim", { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
                  "rescale_betas_zero_snr", "set_alpha_to_one", "eta" } },
    { "pndm", { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
                  "set_alpha_to_one" } },
    { "euler", { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
                   "rescale_betas_zero_snr", "use_karras_sigmas", "use_exponential_sigmas",
                   "use_beta_sigmas", "use_ays_sigmas", "final_sigmas_type" } },
    { "euler_ancestral", { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
                             "rescale_betas_zero_snr", "use_karras_sigmas",
                             "use_exponential_sigmas", "use_beta_sigmas", "use_ays_sigmas" } },
    { "heun",
        { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
            "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_ays_sigmas" } },
    { "lms",
        { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
            "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_ays_sigmas" } },
    { "dpm2",
        { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
            "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_ays_sigmas" } },
    { "dpm2_ancestral",
        { "timestep_spacing", "prediction_type", "beta_schedule", "steps_offset",
            "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_ays_sigmas" } },
    { "lcm", { "prediction_type", "beta_schedule", "rescale_betas_zero_snr",
                 "original_inference_steps" } },
    { "tcd", { "prediction_type", "beta_schedule", "rescale_betas_zero_snr",
                 "original_inference_steps", "eta" } },
};

static void schedulers_have_their_constructors_options(void) {
    for (size_t i = 0; i < sizeof(constructors) / sizeof(constructors[0]); i++) {
        enum scheduler_kind kind = SCHEDULER_COUNT;
        int wanted = 0, has = 0;
        CHECK(scheduler_kind_from_name(constructors[i].name, &kind), "%s", constructors[i].name);
        for (const char *const *name = constructors[i].options; *name; name++) {
            enum scheduler_option_id id = SCHEDULER_OPTION_COUNT;
            CHECK(scheduler_option_find(*name, &id) && scheduler_has_option(kind, id), "%s %s",
                constructors[i].name, *name);
            wanted++;
        }
        for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++)
            has += scheduler_options[id].from != FILE_ONLY && scheduler_has_option(kind, id);
        printf("%s: %d options, %d of diffusers\n", constructors[i].name, has, wanted);
        CHECK(has >= wanted, "%d", has);
    }
}

/* The scheduler configuration of Stable Diffusion 1.5. */
static const char sd15[] = "{\"_class_name\": \"PNDMScheduler\", \"beta_end\": 0.012,"
                           "\"beta_schedule\": \"scaled_linear\", \"beta_start\": 0.00085,"
                           "\"num_train_timesteps\": 1000, \"set_alpha_to_one\": false,"
                           "\"skip_prk_steps\": true, \"steps_offset\": 1}";

/* Parses, resolves and echoes one option of a body. Returns the echoed value (a new reference), or
 * NULL and *err. */
static json_t *echoed(
    enum scheduler_kind kind, const char *option, const json_t *value, struct error *err) {
    struct error ignored;
    json_t *file = json_parse(sd15, strlen(sd15), &ignored), *echo = NULL;
    json_t *body = json_pack("{s:s, s:{s:s, s:O}}", "prompt", "a", "scheduler", "name",
        scheduler_kind_name(kind), option, value);
    char *text = json_dumps(body, 0);
    struct generate_request request;
    struct scheduler_config config;
    if (parse(text, &request, err)) {
        if (scheduler_config_resolve(file, &request.scheduler, &config, err)) {
            json_t *all = scheduler_config_to_json(&config);
            echo = json_incref(json_object_get(all, option));
            json_decref(all);
        }
        generate_request_finish(&request);
    }
    free(text);
    json_decref(body);
    json_decref(file);
    return echo;
}

/* Takes over the reference to `value`. */
static void is_refused(
    enum scheduler_kind kind, const char *option, json_t *value, const char *const *allowed) {
    struct error err = { 0 };
    char param[64], described[128];
    const char *wanted = param, *text = json_describe(value, described, sizeof(described));
    snprintf(param, sizeof(param), "scheduler.%s", option);
    json_t *echo = echoed(kind, option, value, &err);
    CHECK(!echo && err.code == ERROR_INVALID, "%s %s %s", scheduler_kind_name(kind), option, text);
    CHECK_STRING(err.param, wanted);
    CHECK_STRING(err.value, text);
    CHECK(strlen(err.allowed) < sizeof(err.allowed) - 1,
        "the error's list of what is allowed is cut: %s", err.allowed);
    for (; *allowed; allowed++)
        CHECK_CONTAINS(err.allowed, *allowed);
    CHECK_CONTAINS(err.message, err.allowed);
    json_decref(echo);
    json_decref(value);
}

static void is_echoed(enum scheduler_kind kind, const char *option, json_t *value) {
    struct error err = { 0 };
    json_t *echo = echoed(kind, option, value, &err);
    CHECK(json_equal(echo, value), "%s %s: %s", scheduler_kind_name(kind), option, err.message);
    json_decref(echo);
    json_decref(value);
}

static json_t *number_json(const struct scheduler_option *option, double value) {
    return option->kind == FIELD_INTEGER || value == (int)value ? json_integer((json_int_t)value)
                                                                : json_real(value);
}

/* Returns how many values of the option were tried. */
static int try_option(enum scheduler_kind kind, enum scheduler_option_id id) {
    const struct scheduler_option *o = &scheduler_options[id];
    const char *name = o->name;
    char range[64], quoted[8][40];
    snprintf(range, sizeof(range), "%s from %Lg to %Lg",
        o->kind == FIELD_INTEGER ? "an integer" : "a number", o->min, o->max);
    const char *const in_range[] = { range, NULL }, *const flag[] = { "true or false", NULL };
    const char *words[9] = { 0 };
    for (int i = 0; o->words && o->words[i] && i < 8; i++) {
        snprintf(quoted[i], sizeof(quoted[i]), "\"%s\"", o->words[i]);
        words[i] = quoted[i];
    }
    switch (o->kind) {
    case FIELD_FLAG:
        is_refused(kind, name, json_integer(1), flag);
        is_refused(kind, name, json_string("true"), flag);
        return 2;
    case FIELD_WORD:
        is_refused(kind, name, json_string("no such word"), words);
        is_refused(kind, name, json_integer(0), words);
        return 2;
    default:
        is_refused(kind, name, number_json(o, o->min - 1), in_range);
        is_refused(kind, name, number_json(o, o->max + 1), in_range);
        is_refused(kind, name, json_string("1"), in_range);
        is_refused(kind, name, json_null(), in_range);
        if (o->kind == FIELD_INTEGER)
            is_refused(kind, name, json_real(o->min + 0.5), in_range);
        return o->kind == FIELD_INTEGER ? 5 : 4;
    }
}

static int try_good_values(enum scheduler_kind kind, enum scheduler_option_id id) {
    const struct scheduler_option *o = &scheduler_options[id];
    char refusal[64];
    int tried = 0;
    snprintf(refusal, sizeof(refusal), "%s %s", scheduler_kind_name(kind),
        scheduler_has_option(kind, id) ? "knows \"" : "has no such option; it has ");
    const char *const allowed[] = { refusal, NULL };
    double last = o->kind == FIELD_FLAG
                      ? 1
                      : o->min + 1; /* the lowest value of a range and the next one */
    for (int i = 0; o->kind == FIELD_WORD ? o->words[i] != NULL : i < 2; i++, tried++) {
        json_t *value = o->kind == FIELD_WORD   ? json_string(o->words[i])
                        : o->kind == FIELD_FLAG ? json_boolean(i)
                                                : number_json(o, i ? last : o->min);
        bool known = o->kind != FIELD_WORD || scheduler_known_words(kind, id) & 1u << i;
        if (scheduler_has_option(kind, id) && known)
            is_echoed(kind, o->name, value);
        else
            is_refused(kind, o->name, value, allowed);
    }
    return tried;
}

static void every_option_of_every_scheduler_is_read_refused_and_echoed(void) {
    static const char *const unknown[] = { "known options are name, timestep_spacing", NULL };
    int tried = 0;
    for (int kind = 0; kind < SCHEDULER_COUNT; kind++)
        for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
            if (scheduler_options[id].from == FILE_ONLY) {
                is_refused((enum scheduler_kind)kind, scheduler_options[id].name, json_integer(1),
                    unknown);
                tried++;
                continue;
            }
            tried += try_option((enum scheduler_kind)kind, (enum scheduler_option_id)id) +
                     try_good_values((enum scheduler_kind)kind, (enum scheduler_option_id)id);
        }
    static const char *const of_1000[] = { "an integer from 0 to 999", NULL };
    is_refused(SCHEDULER_PNDM, "steps_offset", json_integer(1000), of_1000);
    printf("%d values of %d options of %d schedulers\n", tried, SCHEDULER_OPTION_COUNT,
        SCHEDULER_COUNT);
}

/* Bodies that are wrong as a whole, and words that the message must contain. */
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
    { "{\"prompt\": 1}", "prompt: 1 is not allowed; a string or a list of 1 to 16 strings" },
    { "{\"prompt\": null}", "prompt: (empty) is not allowed" },
    { "{\"prompt\": null, \"prompt_embeds\": null}", "it is required" },
    { "{\"prompt\": {\"a\": 1}}", "prompt: {\"a\":1} is not allowed" },
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
    /* 99 bytes, then a character of three bytes: the quoted value must end before that
     * character. */
    char text[300];
    struct generate_request r;
    struct error err;
    snprintf(
        text, sizeof(text), "{\"prompt\": \"a\", \"rng\": \"%099d\xe7\x8c\xab\xe7\x8c\xab\"}", 0);
    CHECK(!parse(text, &r, &err), "accepted");
    json_t *string = json_string(err.value);
    CHECK(string != NULL, "the error's value is not UTF-8: %s", err.value);
    json_decref(string);
}

/* RFC 9110, section 12.5.1, including its own examples. */
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
    null_is_the_default();
    every_field_arrives();
    wrong_fields_are_named();
    every_field_can_be_wrong();
    schedulers_have_their_constructors_options();
    every_option_of_every_scheduler_is_read_refused_and_echoed();
    wrong_bodies_say_why();
    brackets_in_strings_are_not_depth();
    a_prompt_has_a_ceiling();
    a_cut_character_does_not_spoil_an_error();
    accept_headers_are_weighed();
    return check_done();
}
