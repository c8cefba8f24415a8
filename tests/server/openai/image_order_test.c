/* Parses bodies of OpenAI's image routes. The reference is the openai package 3.54.0: names,
 * ranges, the meaning of a mask, the meaning of null. */
#include "server/openai/image_order.h"

#include "server/openai/openai.h"
#include "tests/check.h"

#include <stdlib.h>

static const char *const served[] = { "dall-e-2", "org/model", "gpt-image-1", NULL };
static const struct openai_models models = { .loaded = "tiny-sd", .served = served };

static bool parse(const char *text, struct image_order *order, struct error *err) {
    memset(err, 0, sizeof(*err));
    return image_order_from_json(text, strlen(text), IMAGE_GENERATION, &models, order, err);
}

static void a_prompt_alone_takes_the_defaults(void) {
    struct image_order o;
    struct error err;
    CHECK(parse("{\"prompt\": \"a cat\"}", &o, &err), "%s", err.message);
    const struct generate_request *r = &o.request;
    CHECK(r->prompt_count == 1 && r->num_images == 1, "%d prompts", r->prompt_count);
    CHECK_STRING(r->prompts[0], "a cat");
    CHECK(r->width == 0 && r->num_inference_steps == 25, "%d steps", r->num_inference_steps);
    CHECK(r->format == PICTURE_PNG && r->quality == 0, "quality %d", r->quality);
    CHECK(!o.stream && o.response_format == IMAGE_AS_BOTH && o.partial_images == 0 && !o.model[0],
        "%s", o.model);
    image_order_finish(&o);
}

static void every_field_arrives(void) {
    struct image_order o;
    struct error err;
    CHECK(
        parse(
            "{\"prompt\": \"a cat\", \"model\": \"tiny-sd:snow\", \"n\": 3, \"size\": \"512x768\","
            "\"response_format\": \"url\", \"output_format\": \"webp\", \"output_compression\": 40,"
            "\"quality\": \"high\", \"background\": \"opaque\", \"moderation\": \"low\","
            "\"style\": \"vivid\", \"user\": \"me\", \"safety_identifier\": \"x\","
            "\"stream\": false, \"partial_images\": 0, \"negative_prompt\": \"bad\","
            "\"guidance_scale\": 3, \"guidance_rescale\": 0.5, \"seed\": 7, \"rng\": \"cuda\","
            "\"clip_skip\": 1, \"long_prompt\": \"chunk\", \"timeout_s\": 9, \"priority\": 2,"
            "\"sampler\": \"ddim\", \"loras\": [{\"name\": \"ink\", \"weight\": 0.5}]}",
            &o, &err),
        "%s", err.message);
    const struct generate_request *r = &o.request;
    CHECK(r->num_images == 3 && r->width == 512 && r->height == 768, "%dx%d", r->width, r->height);
    CHECK(o.response_format == IMAGE_AS_URL && r->format == PICTURE_WEBP && r->quality == 40,
        "quality %d", r->quality);
    CHECK(r->num_inference_steps == 50, "%d steps of \"high\"", r->num_inference_steps);
    CHECK_STRING(image_order_quality(&o), "high");
    CHECK_STRING(r->negative_prompt, "bad");
    CHECK(r->seed_given && r->seed == 7 && r->rng == RNG_CUDA && r->clip_skip == 1, "seed");
    CHECK(r->long_prompt == LONG_PROMPT_CHUNK && r->priority == 2, "%d", r->priority);
    CHECK_NEAR(r->guidance_scale, 3, 0);
    CHECK(r->scheduler.has_kind && r->scheduler.kind == SCHEDULER_DDIM, "%d", r->scheduler.kind);
    CHECK(r->lora_count == 2, "%d adapters", r->lora_count);
    CHECK_STRING(r->loras[0].name, "ink");
    CHECK_STRING(r->loras[1].name, "snow");
    CHECK_NEAR(r->loras[1].weight, 1, 0);
    image_order_finish(&o);
}

/* Served names stand for the loaded model, as in vLLM; an adapter may follow. */
static void served_names_are_the_model(void) {
    static const struct {
        const char *model, *adapter;
    } rows[] = { { "dall-e-2", NULL }, { "org/model", NULL }, { "dall-e-2:snow", "snow" },
        { "org/model:ink@5", "ink@5" } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct image_order o;
        struct error err;
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\": \"a\", \"model\": \"%s\"}", rows[i].model);
        const bool ok = parse(body, &o, &err);
        CHECK(ok, "%s: %s", rows[i].model, err.message);
        if (!ok)
            continue;
        CHECK(o.request.lora_count == (rows[i].adapter ? 1 : 0), "%s: %d adapters", rows[i].model,
            o.request.lora_count);
        if (rows[i].adapter && o.request.lora_count == 1)
            CHECK_STRING(o.request.loras[0].name, rows[i].adapter);
        image_order_finish(&o);
    }
}

/* As the published spec has it, the gpt-image models answer with b64_json alone; others also with
 * the url that is the dall-e models' default. */
static void the_models_name_decides_what_is_answered(void) {
    static const struct {
        const char *fields;
        int as;
    } rows[] = {
        { "\"model\": \"dall-e-2\"", IMAGE_AS_BOTH },
        { "\"model\": \"tiny-sd\"", IMAGE_AS_BOTH },
        { "\"model\": null", IMAGE_AS_BOTH },
        { "\"model\": \"gpt-image-1\"", IMAGE_AS_BASE64 },
        { "\"model\": \"gpt-image-1:snow\", \"response_format\": null", IMAGE_AS_BASE64 },
        { "\"model\": \"gpt-image-1\", \"response_format\": \"url\"", IMAGE_AS_URL },
        { "\"model\": \"dall-e-2\", \"response_format\": \"b64_json\"", IMAGE_AS_BASE64 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct image_order o;
        struct error err;
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\": \"a\", %s}", rows[i].fields);
        CHECK(parse(body, &o, &err), "%s: %s", rows[i].fields, err.message);
        CHECK(o.response_format == rows[i].as, "%s: %d", rows[i].fields, o.response_format);
        image_order_finish(&o);
    }
}

/* Fields for which vLLM-Omni, SGLang and LocalAI have other names. */
static void other_servers_names_are_known(void) {
    struct image_order o;
    struct error err;
    CHECK(parse("{\"prompt\": \"a\", \"step\": 9, \"generator_device\": \"cuda\", \"seed\": -1,"
                "\"sampler\": {\"name\": \"ddim\", \"eta\": 0.5}}",
              &o, &err),
        "%s", err.message);
    CHECK(o.request.num_inference_steps == 9 && o.request.rng == RNG_CUDA, "%d steps",
        o.request.num_inference_steps);
    CHECK(!o.request.seed_given, "a seed of -1 is not taken as a random one");
    CHECK(o.request.scheduler.kind == SCHEDULER_DDIM, "%d", o.request.scheduler.kind);
    image_order_finish(&o);
}

/* vLLM-Omni's models have two guidances, and its clients may send both. */
static void true_cfg_scale_is_the_guidance_scale(void) {
    static const struct {
        const char *fields;
        double scale;
        bool is_left;
    } rows[] = {
        { "\"true_cfg_scale\": 5.5", 5.5, false },
        { "\"true_cfg_scale\": 3, \"guidance_scale\": 7", 7, true },
        { "\"guidance_scale\": 7, \"true_cfg_scale\": 3", 7, true },
        { "\"guidance_scale\": 7, \"true_cfg_scale\": 7", 7, false },
        { "\"guidance_scale\": null, \"true_cfg_scale\": 3", 3, false },
        { "\"guidance_scale\": 7, \"true_cfg_scale\": null", 7, false },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct image_order o;
        struct error err;
        char body[128];
        snprintf(body, sizeof(body), "{\"prompt\": \"a\", %s}", rows[i].fields);
        CHECK(parse(body, &o, &err), "%s: %s", rows[i].fields, err.message);
        CHECK(o.request.guidance_scale == rows[i].scale && o.request.guidance_scale_given,
            "%s: guidance_scale is %g", rows[i].fields, o.request.guidance_scale);
        CHECK(o.leaves_true_cfg_scale == rows[i].is_left, "%s: a warning: %d", rows[i].fields,
            o.leaves_true_cfg_scale);
        image_order_finish(&o);
    }
}

/* The openai package sends None as null; null must mean the same as a field left out. So do fields
 * that do not exist, or not on this route: other clients send whole models of theirs. */
static void null_is_the_default(void) {
    struct image_order o;
    struct error err;
    CHECK(
        parse("{\"prompt\": \"a\", \"true_cfg_scale\": null, \"svg\": null, \"frame_count\": null,"
              "\"image\": null, \"width\": null, \"strength\": null}",
            &o, &err),
        "%s", err.message);
    image_order_finish(&o);
    CHECK(!parse("{\"prompt\": null}", &o, &err), "null is accepted as a prompt");
    CHECK_STRING(err.param, "prompt");
    for (size_t i = 0; image_order_field(IMAGE_GENERATION, i); i++) {
        char body[128];
        const char *name = image_order_field(IMAGE_GENERATION, i);
        if (strcmp(name, "prompt") == 0)
            continue;
        snprintf(body, sizeof(body), "{\"prompt\": \"a cat\", \"%s\": null}", name);
        CHECK(parse(body, &o, &err), "%s: %s", name, err.message);
        CHECK(o.request.num_images == 1 && o.request.num_inference_steps == 25, "%s", name);
        image_order_finish(&o);
    }
}

static void qualities_are_steps_and_formats_have_a_compression(void) {
    static const struct {
        const char *fields;
        int steps, quality;
    } rows[] = {
        { "\"quality\": \"auto\"", 25, 0 },
        { "\"quality\": \"standard\"", 25, 0 },
        { "\"quality\": \"low\"", 15, 0 },
        { "\"quality\": \"medium\"", 25, 0 },
        { "\"quality\": \"hd\"", 50, 0 },
        { "\"quality\": \"max\"", 100, 0 },
        { "\"quality\": \"auto\", \"num_inference_steps\": 9", 9, 0 },
        { "\"output_format\": \"jpeg\"", 25, 100 },
        { "\"output_format\": \"jpeg\", \"output_compression\": 0", 25, 1 },
        { "\"output_compression\": 100", 25, 0 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct image_order o;
        struct error err;
        char body[256];
        snprintf(body, sizeof(body), "{\"prompt\": \"a\", %s}", rows[i].fields);
        CHECK(parse(body, &o, &err), "%s: %s", rows[i].fields, err.message);
        CHECK(o.request.num_inference_steps == rows[i].steps, "%s: %d", rows[i].fields,
            o.request.num_inference_steps);
        CHECK(o.request.quality == rows[i].quality, "%s: %d", rows[i].fields, o.request.quality);
        image_order_finish(&o);
    }
}

/* Wrong fields, with the error's param, code and words of its message. */
static const struct {
    const char *fields, *param, *code, *words;
} wrong[] = {
    { "\"n\": 0", "n", "invalid_value", "1 to 10" },
    { "\"n\": 11", "n", "invalid_value", "1 to 10" },
    { "\"n\": \"2\"", "n", "invalid_value", "1 to 10" },
    { "\"n\": 1.5", "n", "invalid_value", "1 to 10" },
    { "\"model\": 3", "model", "invalid_value", "the name of a model" },
    { "\"model\": \"dall-e-3\"", "model", "model_not_found", "GET /v1/models" },
    { "\"model\": \"dall-e\"", "model", "model_not_found", "GET /v1/models" },
    { "\"model\": \"tiny-sd2\"", "model", "model_not_found", "GET /v1/models" },
    { "\"model\": \"tiny-sd:../b\"", "model", "model_not_found", "GET /v1/models" },
    { "\"size\": \"511x512\"", "size", "invalid_value", "a multiple of 8" },
    { "\"size\": \"512x4096\"", "size", "invalid_value", "from 64 to 2048" },
    { "\"size\": \"512\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"512x\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"x512\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"512xx512\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"512x512x1\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"-8x512\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"0x0\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \" 64x64\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"512 x 512\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": \"51200000000x512\"", "size", "invalid_value", "\"auto\"" },
    { "\"size\": 512", "size", "invalid_value", "\"auto\"" },
    { "\"response_format\": \"b64\"", "response_format", "invalid_value", "\"url\"" },
    { "\"output_format\": \"gif\"", "output_format", "invalid_value", "\"webp\"" },
    { "\"output_format\": \"svg\"", "output_format", "invalid_value", "\"webp\"" },
    { "\"output_compression\": 50", "output_compression", "invalid_value", "\"jpeg\"" },
    { "\"output_compression\": 101, \"output_format\": \"jpeg\"", "output_compression",
        "invalid_value", "0 to 100" },
    { "\"quality\": \"best\"", "quality", "invalid_value", "\"xhigh\"" },
    { "\"quality\": \"high\", \"num_inference_steps\": 9", "quality", "invalid_value",
        "num_inference_steps" },
    { "\"background\": \"transparent\"", "background", "invalid_value", "\"opaque\"" },
    { "\"moderation\": \"high\"", "moderation", "invalid_value", "\"low\"" },
    { "\"style\": \"flat\"", "style", "invalid_value", "\"vivid\"" },
    { "\"user\": 7", "user", "invalid_value", "a string" },
    { "\"safety_identifier\": 7", "safety_identifier", "invalid_value", "a string" },
    { "\"stream\": 1", "stream", "invalid_value", "true or false" },
    { "\"partial_images\": 4, \"stream\": true", "partial_images", "invalid_value", "0 to 3" },
    { "\"partial_images\": 1", "partial_images", "invalid_value", "\"stream\"" },
    { "\"stream\": true, \"n\": 2", "n", "invalid_value", "\"stream\"" },
    { "\"stream\": true, \"response_format\": \"url\"", "response_format", "invalid_value",
        "b64_json" },
    { "\"sampler\": \"ddim\", \"scheduler\": \"pndm\"", "sampler", "invalid_value", "two names" },
    { "\"sampler\": \"x\"", "sampler", "invalid_value", "ddim" },
    { "\"step\": 0", "step", "invalid_value", "1 to 1000" },
    { "\"step\": 9, \"num_inference_steps\": 9", "step", "invalid_value", "two names" },
    { "\"step\": 9, \"quality\": \"high\"", "quality", "invalid_value", "num_inference_steps" },
    { "\"generator_device\": \"musa\"", "generator_device", "invalid_value", "\"cuda\"" },
    { "\"true_cfg_scale\": 101", "true_cfg_scale", "invalid_value", "0 to 100" },
    { "\"enable_teacache\": true", "enable_teacache", "unknown_parameter", "no such field" },
    { "\"scheduler\": {\"name\": \"ddim\", \"eta\": 2}", "scheduler.eta", "invalid_value",
        "0 to 1" },
    { "\"num_inference_steps\": 0", "num_inference_steps", "invalid_value", "1 to 1000" },
    { "\"guidance_scale\": \"7\"", "guidance_scale", "invalid_value", "a number" },
    { "\"seed\": -2", "seed", "invalid_value", "from 0" },
    { "\"seed\": -1.0", "seed", "invalid_value", "from 0" },
    { "\"seed\": \"-1\"", "seed", "invalid_value", "from 0" },
    { "\"loras\": \"snow\"", "loras", "invalid_value", "a list" },
    { "\"priority\": 9", "priority", "invalid_value", "-3 to 3" },
    { "\"strength\": 0.5", "strength", "unknown_parameter", "no such field" },
    { "\"width\": 512", "width", "unknown_parameter", "no such field" },
    { "\"init_image\": \"\"", "init_image", "unknown_parameter", "no such field" },
    { "\"colour\": 1", "colour", "unknown_parameter", "no such field" },
    { "\"image\": \"a\"", "image", "invalid_value", "leave it out" },
    { "\"mask\": \"a\"", "mask", "invalid_value", "leave it out" },
    { "\"frame_count\": 4", "frame_count", "invalid_value", "leave it out" },
    { "\"svg\": {}", "svg", "invalid_value", "leave it out" },
    { "\"images\": []", "images", "invalid_value", "leave it out" },
    { "\"prompt\": [\"a\", \"b\"]", "prompt", "invalid_value", "a string" },
};

/* Checks the error in the JSON form that clients get. */
static void check_error(const struct error *err, const char *fields, const char *param,
    const char *code, const char *words) {
    int status = error_http_status(err->code);
    json_t *body = dialect_openai.error_json(err, error_code_name(err->code), &status);
    json_t *inner = json_object_get(body, "error");
    const char *said = json_string_value(json_object_get(inner, "param"));
    CHECK(json_object_size(body) == 1 && json_object_size(inner) == 4, "%s", fields);
    CHECK(said && strcmp(said, param) == 0, "%s: %s, not %s", fields, said, param);
    CHECK_STRING(json_string_value(json_object_get(inner, "code")), code);
    CHECK_STRING(json_string_value(json_object_get(inner, "type")), "invalid_request_error");
    CHECK_CONTAINS(json_string_value(json_object_get(inner, "message")), words);
    json_decref(body);
}

static void wrong_fields_are_named(void) {
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct image_order o;
        struct error err;
        char body[256];
        const char *prompt = strstr(wrong[i].fields, "\"prompt\"") ? "" : "\"prompt\": \"a\",";
        snprintf(body, sizeof(body), "{%s %s}", prompt, wrong[i].fields);
        if (parse(body, &o, &err)) {
            CHECK(false, "%s was accepted", wrong[i].fields);
            image_order_finish(&o);
            continue;
        }
        check_error(&err, wrong[i].fields, wrong[i].param, wrong[i].code, wrong[i].words);
    }
}

/* Every field has a row of wrong values, except those that accept any text. */
static void every_field_has_a_wrong_value(void) {
    for (size_t i = 0; image_order_field(IMAGE_GENERATION, i); i++) {
        const char *name = image_order_field(IMAGE_GENERATION, i);
        char quoted[64];
        struct image_order o;
        struct error err;
        char body[128];
        bool found = false;
        snprintf(quoted, sizeof(quoted), "\"%s\":", name);
        for (size_t k = 0; k < sizeof(wrong) / sizeof(wrong[0]); k++)
            found = found || strstr(wrong[k].fields, quoted);
        /* for fields shared with POST /generate, which all refuse this object */
        snprintf(body, sizeof(body), "{\"prompt\": \"a\", \"%s\": {\"-\": []}}", name);
        found = found || strcmp(name, "prompt") == 0;
        if (!found) {
            CHECK(!parse(body, &o, &err), "%s accepts any value", name);
            CHECK(strncmp(err.param, name, strlen(name)) == 0, "%s: %s", name, err.message);
        }
    }
}

static void what_is_missing_is_named(void) {
    struct image_order o;
    struct error err;
    CHECK(!parse("{}", &o, &err), "a body without a prompt is accepted");
    check_error(&err, "{}", "prompt", "missing_required_parameter", "required");
    CHECK(!parse("", &o, &err), "an empty body is accepted");
    CHECK_CONTAINS(err.message, "the body is empty");
    CHECK(!parse("[]", &o, &err), "a list");
    CHECK_CONTAINS(err.message, "must be a JSON object");
    CHECK(!parse("{\"prompt\": \"a\", \"n\": 1, \"n\": 2}", &o, &err), "twice");
    CHECK(
        !parse("{\"prompt\": \"a\", \"model\": \"tiny-sd:ink\", \"loras\": [{\"name\": \"ink\"}]}",
            &o, &err),
        "one adapter in both model and loras is accepted");
    CHECK_CONTAINS(err.message, "at most once");
}

/* --- Forms --- */

struct part {
    const char *name, *bytes;
    bool is_file;
};

static bool parse_form(const struct part *parts, enum image_route route, struct image_order *order,
    struct error *err) {
    struct image_form form = { 0 };
    struct image_form_reader reader = { .route = route, .form = &form };
    bool ok = true;
    memset(err, 0, sizeof(*err));
    for (; ok && parts->name; parts++) {
        const size_t size = strlen(parts->bytes), half = size / 2;
        ok = image_form_begin(&reader, parts->name, parts->is_file ? "upload" : NULL, err) &&
             (half == 0 || image_form_write(&reader, parts->bytes, half, err)) &&
             image_form_write(&reader, parts->bytes + half, size - half, err);
    }
    ok = ok && image_form_end(&reader, err) &&
         image_order_from_form(&form, route, &models, order, err);
    image_form_reader_finish(&reader);
    image_form_finish(&form);
    return ok;
}

static void a_form_is_an_edit(void) {
    static const struct part parts[] = { { "prompt", "a cat", false }, { "n", "2", false },
        { "size", "64x128", false }, { "image[]", "PNG", true }, { "mask", "MASK", true },
        { "strength", "0.5", false }, { "loras", "[{\"name\": \"ink\"}]", false },
        { "scheduler", "{\"name\": \"ddim\", \"eta\": 0.5}", false }, { "stream", "false", false },
        { NULL, NULL, false } };
    struct image_order o;
    struct error err;
    CHECK(parse_form(parts, IMAGE_EDIT, &o, &err), "%s", err.message);
    const struct generate_request *r = &o.request;
    CHECK(r->num_images == 2 && r->width == 64 && r->height == 128, "%d", r->num_images);
    CHECK(r->init_image.size == 3 && memcmp(r->init_image.bytes, "PNG", 3) == 0,
        "the request does not have the sent picture");
    CHECK(r->mask_image.size == 4 && r->mask_is_transparent,
        "the request does not have the sent mask");
    CHECK(r->resize_mode == RESIZE_MODE_CROP, "%d", r->resize_mode);
    CHECK_NEAR(r->strength, 0.5, 0);
    CHECK(r->lora_count == 1 && r->scheduler.kind == SCHEDULER_DDIM, "%d", r->lora_count);
    image_order_finish(&o);
}

static void fidelity_is_strength_where_nothing_is_masked(void) {
    static const struct part high[] = { { "image", "A", true }, { "prompt", "a", false },
        { "input_fidelity", "high", false }, { NULL, NULL, false } };
    static const struct part masked[] = { { "image", "A", true }, { "mask", "B", true },
        { "prompt", "a", false }, { "input_fidelity", "high", false }, { NULL, NULL, false } };
    struct image_order o;
    struct error err;
    CHECK(parse_form(high, IMAGE_EDIT, &o, &err), "%s", err.message);
    CHECK(o.request.strength_given && o.request.strength == 0.5, "%g", o.request.strength);
    image_order_finish(&o);
    CHECK(parse_form(masked, IMAGE_EDIT, &o, &err), "%s", err.message);
    CHECK(!o.request.strength_given, "%g", o.request.strength);
    image_order_finish(&o);
}

#define PNG_URL "data:image/png;base64,UE5H" /* "PNG" */

static bool parse_edit(const char *text, struct image_order *order, struct error *err) {
    memset(err, 0, sizeof(*err));
    return image_order_from_json(text, strlen(text), IMAGE_EDIT, &models, order, err);
}

/* OpenAI's EditImageBodyJsonParam. */
static void an_edit_may_be_json(void) {
    struct image_order o;
    struct error err;
    CHECK(parse_edit(
              "{\"prompt\": \"a cat\", \"n\": 2, \"size\": \"64x128\", \"images\":"
              "[{\"image_url\": \"" PNG_URL "\", \"file_id\": null}],"
              "\"mask\": {\"image_url\": \"data:image/png;base64,TUFTSw==\"}, \"strength\": 0.5}",
              &o, &err),
        "%s", err.message);
    const struct generate_request *r = &o.request;
    CHECK(r->num_images == 2 && r->width == 64 && r->height == 128, "%d", r->num_images);
    CHECK(r->init_image.size == 3 && memcmp(r->init_image.bytes, "PNG", 3) == 0,
        "the request does not have the sent picture");
    CHECK(r->mask_image.size == 4 && memcmp(r->mask_image.bytes, "MASK", 4) == 0 &&
              r->mask_is_transparent,
        "the request does not have the sent mask");
    CHECK(r->resize_mode == RESIZE_MODE_CROP, "%d", r->resize_mode);
    CHECK_NEAR(r->strength, 0.5, 0);
    image_order_finish(&o);
    CHECK(parse_edit("{\"prompt\": \"a\", \"images\": [{\"image_url\": \"" PNG_URL "\"}],"
                     "\"mask\": null, \"input_fidelity\": \"high\"}",
              &o, &err),
        "%s", err.message);
    CHECK(!o.request.mask_image.bytes && !o.request.mask_is_transparent,
        "a null mask gives the request a mask");
    CHECK(o.request.strength_given && o.request.strength == 0.5, "%g", o.request.strength);
    image_order_finish(&o);
}

static void wrong_pictures_in_json_are_named(void) {
    static const struct {
        const char *fields, *param, *code, *words;
    } rows[] = {
        { "", "images", "missing_required_parameter", "required" },
        { ", \"images\": null", "images", "missing_required_parameter", "required" },
        { ", \"images\": []", "images", "invalid_value", "a list of one" },
        { ", \"images\": {\"image_url\": \"" PNG_URL "\"}", "images", "invalid_value",
            "a list of one" },
        { ", \"images\": [{\"image_url\": \"" PNG_URL "\"}, {\"image_url\": \"" PNG_URL "\"}]",
            "images", "invalid_value", "a list of one" },
        { ", \"images\": [3]", "images[0]", "invalid_value", "image_url" },
        { ", \"images\": [{}]", "images[0].image_url", "missing_required_parameter", "data URL" },
        { ", \"images\": [{\"file_id\": \"file-cat\"}]", "images[0].file_id", "invalid_value",
            "data sets" },
        { ", \"images\": [{\"colour\": 1}]", "images[0].colour", "unknown_parameter",
            "no such field" },
        { ", \"images\": [{\"image_url\": \"https://a.example/b.png\"}]", "images[0].image_url",
            "invalid_value", "fetches nothing" },
        { ", \"images\": [{\"image_url\": \"UE5H\"}]", "images[0].image_url", "invalid_value",
            "a data URL" },
        { ", \"images\": [{\"image_url\": \"data:image/png;base64,UE5\"}]", "images[0].image_url",
            "invalid_value", "base64" },
        { ", \"images\": [{\"image_url\": \"" PNG_URL "\"}], \"mask\": \"" PNG_URL "\"", "mask",
            "invalid_value", "image_url" },
        { ", \"images\": [{\"image_url\": \"" PNG_URL "\"}], \"mask\": {\"file_id\": \"file-a\"}",
            "mask.file_id", "invalid_value", "data sets" },
        { ", \"image\": \"" PNG_URL "\"", "image", "invalid_value", "images in JSON" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct image_order o;
        struct error err;
        char body[512];
        snprintf(body, sizeof(body), "{\"prompt\": \"a\"%s}", rows[i].fields);
        if (parse_edit(body, &o, &err)) {
            CHECK(false, "%s was accepted", rows[i].fields);
            image_order_finish(&o);
            continue;
        }
        check_error(&err, rows[i].fields, rows[i].param, rows[i].code, rows[i].words);
    }
}

static void a_variation_needs_no_prompt(void) {
    static const struct part alone[] = { { "image", "A", true }, { NULL, NULL, false } };
    static const struct part told[] = { { "prompt", "a", false }, { "image", "A", true },
        { NULL, NULL, false } };
    struct image_order o;
    struct error err;
    CHECK(parse_form(alone, IMAGE_VARIATION, &o, &err), "%s", err.message);
    CHECK_STRING(o.request.prompts[0], "");
    CHECK_NEAR(o.request.guidance_scale, 1, 0);
    image_order_finish(&o);
    CHECK(parse_form(told, IMAGE_VARIATION, &o, &err), "%s", err.message);
    CHECK_NEAR(o.request.guidance_scale, 7.5, 0);
    image_order_finish(&o);
}

#define FORM(...)                                                                                  \
    (const struct part[]) {                                                                        \
        __VA_ARGS__, {                                                                             \
            NULL, NULL, false                                                                      \
        }                                                                                          \
    }

static void wrong_forms_are_named(void) {
    static char long_text[(64 << 10) + 2];
    memset(long_text, 'a', sizeof(long_text) - 1);
    const struct {
        const struct part *parts;
        enum image_route route;
        const char *param, *code, *words;
    } rows[] = {
        { FORM({ "prompt", "a", false }), IMAGE_EDIT, "image", "missing_required_parameter",
            "required" },
        { FORM({ "image", "A", true }), IMAGE_EDIT, "prompt", "missing_required_parameter",
            "required" },
        { FORM({ "image", "A", true }, { "image[]", "B", true }), IMAGE_EDIT, "image",
            "invalid_value", "one picture" },
        { FORM({ "mask", "A", true }, { "mask", "B", true }), IMAGE_EDIT, "mask", "invalid_value",
            "one picture" },
        { FORM({ "image", "A", true }, { "prompt", "a", false }, { "n", "two", false }), IMAGE_EDIT,
            "n", "invalid_value", "1 to 10" },
        { FORM({ "image", "A", true }, { "prompt", "a", false }, { "prompt", "b", false }),
            IMAGE_EDIT, "prompt", "invalid_value", "at most one" },
        { FORM({ "image", "A", true }, { "prompt", "a\xff", false }), IMAGE_EDIT, "prompt",
            "invalid_value", "UTF-8" },
        { FORM({ "image", "A", true }, { "prompt", long_text, false }), IMAGE_EDIT, "prompt",
            "invalid_value", "at most 65536 bytes" },
        { FORM({ "image", "A", true }, { "prompt", "a", false }, { "colour", "b", false }),
            IMAGE_EDIT, "colour", "unknown_parameter", "no such field" },
        { FORM({ "image", "A", true }, { "prompt", "a", false },
              { "images", "[{\"image_url\": \"" PNG_URL "\"}]", false }),
            IMAGE_EDIT, "images", "invalid_value", "a form has image" },
        { FORM({ "image", "A", true }, { "markup", "b", true }), IMAGE_EDIT, "markup",
            "invalid_value", "leave it out" },
        { FORM({ "image", "A", true }, { "mask", "b", true }), IMAGE_VARIATION, "mask",
            "invalid_value", "leave it out" },
        { FORM({ "image", "A", true }, { "stream", "true", false }), IMAGE_VARIATION, "stream",
            "invalid_value", "leave it out" },
        { FORM({ "image", "A", true }, { "prompt", "a", false }, { "strength", "2", false }),
            IMAGE_EDIT, "strength", "invalid_value", "from 0 to 1" },
        { FORM({ "image", "A", true }, { "prompt", "a", false }, { "strength", "1", false },
              { "input_fidelity", "low", false }),
            IMAGE_EDIT, "input_fidelity", "invalid_value", "one of" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct image_order o;
        struct error err;
        if (parse_form(rows[i].parts, rows[i].route, &o, &err)) {
            CHECK(false, "row %zu was accepted", i);
            image_order_finish(&o);
            continue;
        }
        check_error(&err, rows[i].param, rows[i].param, rows[i].code, rows[i].words);
    }
}

int main(void) {
    a_prompt_alone_takes_the_defaults();
    every_field_arrives();
    served_names_are_the_model();
    the_models_name_decides_what_is_answered();
    other_servers_names_are_known();
    true_cfg_scale_is_the_guidance_scale();
    null_is_the_default();
    qualities_are_steps_and_formats_have_a_compression();
    wrong_fields_are_named();
    every_field_has_a_wrong_value();
    what_is_missing_is_named();
    a_form_is_an_edit();
    fidelity_is_strength_where_nothing_is_masked();
    an_edit_may_be_json();
    wrong_pictures_in_json_are_named();
    a_variation_needs_no_prompt();
    wrong_forms_are_named();
    return check_done();
}
