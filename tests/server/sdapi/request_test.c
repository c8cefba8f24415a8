/* Parses bodies of txt2img and img2img. The reference is AUTOMATIC1111's API model (names,
 * defaults, errors) and its table of samplers. */
#include "server/sdapi/request.h"

#include "base/text/json.h"
#include "server/sdapi/sdapi.h"
#include "tests/check.h"
#include "tests/engine/sd15.h"

#include <stdlib.h>

static struct sdapi_settings settings;

static bool parse(
    enum sdapi_kind kind, const char *text, struct sdapi_request *out, struct error *err) {
    memset(err, 0, sizeof(*err));
    return sdapi_request_parse(kind, text, strlen(text), &settings, NULL, out, err);
}

static void an_empty_body_takes_the_defaults(void) {
    struct sdapi_request r;
    struct error err;
    if (!parse(SDAPI_TXT2IMG, "{}", &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    const struct generate_request *g = &r.generate;
    CHECK(g->prompt_count == 1 && g->prompts[0][0] == 0, "%d prompts", g->prompt_count);
    CHECK_STRING(g->negative_prompt, "");
    CHECK(g->num_inference_steps == 50 && g->guidance_scale == 7, "%d steps at %g",
        g->num_inference_steps, g->guidance_scale);
    CHECK(g->width == 512 && g->height == 512, "%dx%d", g->width, g->height);
    CHECK(!g->seed_given && g->num_images == 1 && g->clip_skip == 0, "%d images", g->num_images);
    CHECK(g->rng == RNG_CUDA, "the default noise is not that of a GPU, as AUTOMATIC1111's is");
    CHECK(g->format_given && g->format == PICTURE_PNG && g->quality == 0, "%d", g->format);
    CHECK_STRING(r.sampling.sampler->name, "Euler");
    CHECK_STRING(r.sampling.schedule->name, "uniform");
    CHECK(r.send_images && !r.checkpoint && !r.task_id[0],
        "an empty request has other defaults than AUTOMATIC1111's");
    static const char *const fields[] = { "prompt", "negative_prompt", "seed", "subseed",
        "subseed_strength", "sampler_name", "sampler_index", "scheduler", "batch_size", "n_iter",
        "steps", "cfg_scale", "width", "height", "override_settings",
        "override_settings_restore_afterwards", "force_task_id", "send_images", "save_images",
        "styles", "restore_faces", "tiling", "do_not_save_samples", "do_not_save_grid", "eta",
        "s_min_uncond", "s_churn", "s_tmax", "s_tmin", "s_noise", "seed_resize_from_h",
        "seed_resize_from_w", "refiner_checkpoint", "refiner_switch_at", "disable_extra_networks",
        "firstpass_image", "comments", "firstphase_width", "firstphase_height", "script_name",
        "script_args", "alwayson_scripts", "infotext", "enable_hr", "denoising_strength",
        "hr_scale", "hr_upscaler", "hr_second_pass_steps", "hr_resize_x", "hr_resize_y",
        "hr_checkpoint_name", "hr_sampler_name", "hr_scheduler", "hr_prompt",
        "hr_negative_prompt" };
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        CHECK(json_object_get(r.parameters, fields[i]), "%s is repeated", fields[i]);
    CHECK(json_object_size(r.parameters) == sizeof(fields) / sizeof(fields[0]), "%zu parameters",
        json_object_size(r.parameters));
    sdapi_request_finish(&r);
}

static void every_field_arrives(void) {
    static const char body[] =
        "{\"prompt\":\"a (cat:1.2) <lora:foo:0.8>\",\"negative_prompt\":\"dog\",\"seed\":7,"
        "\"steps\":\"20\",\"cfg_scale\":5.5,\"width\":640,\"height\":768.0,\"batch_size\":2,"
        "\"n_iter\":3,\"sampler_name\":\"DDIM\",\"sampler_index\":\"nothing\",\"eta\":0.5,"
        "\"override_settings\":{\"CLIP_stop_at_last_layers\":2,\"samples_format\":\"jpg\","
        "\"jpeg_quality\":70,\"randn_source\":\"CPU\",\"sd_model_checkpoint\":\"other\","
        "\"sd_vae\":\"None\"},"
        "\"force_task_id\":\"task(abc)\",\"send_images\":false,\"unheard_of\":[1],\"hr_scale\":2}";
    struct sdapi_request r;
    struct error err;
    if (!parse(SDAPI_TXT2IMG, body, &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    const struct generate_request *g = &r.generate;
    CHECK_STRING(g->prompts[0], "a (cat:1.2) <lora:foo:0.8>");
    CHECK_STRING(g->negative_prompt, "dog");
    CHECK(g->seed_given && g->seed == 7, "seed %llu", (unsigned long long)g->seed);
    CHECK(g->num_inference_steps == 20 && g->guidance_scale == 5.5, "%d, %g",
        g->num_inference_steps, g->guidance_scale);
    CHECK(g->width == 640 && g->height == 768, "%dx%d", g->width, g->height);
    CHECK(g->num_images == 6 && r.batch_size == 2 && r.n_iter == 3, "%d", g->num_images);
    CHECK(g->scheduler.has_kind && g->scheduler.kind == SCHEDULER_DDIM, "%d", g->scheduler.kind);
    CHECK(g->scheduler.values.eta == 0.5, "eta %g", g->scheduler.values.eta);
    CHECK(g->clip_skip == 1, "AUTOMATIC1111's CLIP_stop_at_last_layers 2 is clip_skip %d",
        g->clip_skip);
    CHECK(g->format == PICTURE_JPEG && g->quality == 70 && g->rng == RNG_CPU, "overrides");
    CHECK_STRING(r.checkpoint, "other");
    CHECK_STRING(r.task_id, "task(abc)");
    CHECK(!r.send_images, "send_images false is not read");
    CHECK(
        !json_object_get(r.parameters, "unheard_of"), "an unknown field is repeated in the answer");
    CHECK_STRING(json_string_value(json_object_get(r.parameters, "steps")), "20");
    sdapi_request_finish(&r);
}

/* Fields that clients always send although they change nothing. */
static void what_means_nothing_is_passed_over(void) {
    static const char *const bodies[] = {
        "{\"denoising_strength\":0.7,\"enable_hr\":false,\"hr_upscaler\":\"Latent\"}",
        "{\"restore_faces\":false,\"tiling\":false,\"s_churn\":0,\"s_noise\":1.0,\"eta\":1.0}",
        "{\"script_name\":null,\"script_args\":[1],\"alwayson_scripts\":{}}",
        "{\"script_name\":\"\",\"styles\":[],\"seed\":null,\"subseed\":-1}",
        "{\"alwayson_scripts\":{\"ADetailer\":{\"args\":[false]},\"ControlNet\":{\"args\":[]}}}",
        "{\"alwayson_scripts\":{\"ControlNet\":{\"args\":[{\"enabled\":false,\"model\":\"x\"}]}}}",
        "{\"alwayson_scripts\":{\"x\":{\"args\":{\"enabled\":false}}}}",
        "{\"subseed\":9,\"subseed_strength\":0.0,\"seed_resize_from_h\":0}",
        "{\"override_settings\":{\"samples_save\":false,\"outdir_samples\":\"x\",\"sd_vae\":"
        "\"None\"}}",
        "{\"override_settings\":{\"upcast_attn\":true,\"send_seed\":false,\"sd_vae\":null}}",
        "{\"width\":null,\"sampler_name\":null,\"scheduler\":null}",
    };
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct sdapi_request r;
        struct error err;
        const bool ok = parse(SDAPI_TXT2IMG, bodies[i], &r, &err);
        CHECK(ok, "%s: %s", bodies[i], err.message);
        if (!ok)
            continue;
        CHECK(json_array_size(r.comments) == 0, "%s: %s", bodies[i],
            json_string_value(json_array_get(r.comments, 0)));
        sdapi_request_finish(&r);
    }
}

/* Where AUTOMATIC1111 changes a value instead of refusing it, the daemon does the same and its
 * answer says so. */
static void what_it_goes_on_without_is_said(void) {
    static const struct {
        const char *body, *comment;
        int width;
    } rows[] = {
        { "{\"width\":500}", "width: 500 is rounded down to 496", 496 },
        { "{\"height\":1027}", "height: 1027 is rounded down to 1024", 512 },
        { "{\"styles\":[\"string\"]}", "there is no style \"string\"", 512 },
        { "{\"restore_faces\":true}", "restore_faces has no effect", 512 },
        { "{\"tiling\":true}", "tiling has no effect", 512 },
        { "{\"s_churn\":0.5}", "s_churn has no effect", 512 },
        { "{\"refiner_checkpoint\":\"xl\"}", "refiner_checkpoint has no effect", 512 },
        { "{\"seed_resize_from_w\":256}", "seed_resize_from_w has no effect without", 512 },
        { "{\"seed_resize_from_h\":256,\"seed_resize_from_w\":0}",
            "seed_resize_from_h has no effect without", 512 },
        { "{\"seed_resize_from_h\":256,\"seed_resize_from_w\":132}",
            "seed_resize_from_w: 132 is rounded down to 128", 512 },
        { "{\"width\":2055}", "width: 2055 is rounded down to 2048", 2048 },
        { "{\"override_settings\":{\"sd_vae\":\"x.pt\"}}", "there is no VAE \"x.pt\"", 512 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sdapi_request r;
        struct error err;
        if (!parse(SDAPI_TXT2IMG, rows[i].body, &r, &err)) {
            CHECK(false, "%s: %s", rows[i].body, err.message);
            continue;
        }
        const char *said = json_string_value(json_array_get(r.comments, 0));
        CHECK(json_array_size(r.comments) == 1, "%s: %zu comments", rows[i].body,
            json_array_size(r.comments));
        CHECK_CONTAINS(said ? said : "", rows[i].comment);
        CHECK(r.generate.width == rows[i].width, "%s: %d", rows[i].body, r.generate.width);
        sdapi_request_finish(&r);
    }
}

static void variations_arrive(void) {
    struct sdapi_request r;
    struct error err;
    if (!parse(SDAPI_TXT2IMG,
            "{\"seed\":7,\"subseed\":9,\"subseed_strength\":0.25,\"seed_resize_from_w\":256,"
            "\"seed_resize_from_h\":320}",
            &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    const struct generate_request *g = &r.generate;
    CHECK(g->seed == 7 && g->subseed == 9 && g->subseed_given, "%d", (int)g->subseed);
    CHECK_NEAR(g->subseed_strength, 0.25, 0);
    CHECK(g->seed_resize_from_w == 256 && g->seed_resize_from_h == 320, "%dx%d",
        g->seed_resize_from_w, g->seed_resize_from_h);
    CHECK(json_array_size(r.comments) == 0, "without a comment");
    sdapi_request_finish(&r);
    CHECK(parse(SDAPI_TXT2IMG, "{\"subseed_strength\":1}", &r, &err), "%s", err.message);
    CHECK(!r.generate.subseed_given && r.generate.seed_resize_from_w == 0, "a random subseed");
    sdapi_request_finish(&r);
}

/* What inpainting_fill and resize_mode mean, in AUTOMATIC1111's order. */
static void fills_and_sizes_arrive(void) {
    static const enum sdapi_fill fills[] = { SDAPI_FILL, SDAPI_ORIGINAL, SDAPI_LATENT_NOISE,
        SDAPI_LATENT_NOTHING };
    static const enum resize_mode modes[] = { RESIZE_MODE_DEFAULT, RESIZE_MODE_CROP,
        RESIZE_MODE_FILL, RESIZE_MODE_LATENT };
    for (int i = 0; i < 4; i++) {
        struct sdapi_request r;
        struct error err;
        char body[128];
        snprintf(body, sizeof(body),
            "{\"init_images\":[\"AAAA\"],\"mask\":\"AAAA\",\"inpainting_fill\":%d,"
            "\"resize_mode\":%d}",
            i, i);
        if (!parse(SDAPI_IMG2IMG, body, &r, &err)) {
            CHECK(false, "%s: %s", body, err.message);
            continue;
        }
        CHECK(r.inpainting.fill == fills[i] && r.generate.resize_mode == modes[i], "%s: %d, %d",
            body, r.inpainting.fill, r.generate.resize_mode);
        sdapi_request_finish(&r);
    }
}

/* The field of stable-diffusion.cpp's server. */
static void loras_of_sd_cpp_arrive(void) {
    struct sdapi_request r;
    struct error err;
    if (!parse(SDAPI_TXT2IMG,
            "{\"lora\":[{\"path\":\"sub/my lora.safetensors\",\"multiplier\":0.5,"
            "\"is_high_noise\":false},{\"path\":\"snow\"}]}",
            &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    const struct lora_choice *loras = r.generate.loras;
    CHECK(r.generate.loras_given && r.generate.lora_count == 2, "%d", r.generate.lora_count);
    CHECK_STRING(loras[0].name, "sub/my lora");
    CHECK_STRING(loras[1].name, "snow");
    CHECK(loras[0].weight == 0.5 && loras[0].text_encoder_weight == 0.5, "%g", loras[0].weight);
    CHECK(loras[1].weight == 1, "%g", loras[1].weight);
    sdapi_request_finish(&r);
}

static void checkpoints_have_several_names(void) {
    static const struct {
        const char *asked, *name;
        int fit;
    } rows[] = { { "sd/v1-5", "sd/v1-5", 3 }, { "sd/v1-5.safetensors", "sd/v1-5", 2 },
        { "sd/v1-5.ckpt [e1441589a6]", "sd/v1-5", 2 }, { "sd/v1-5 [e1441589a6]", "sd/v1-5", 2 },
        { "v1-5", "sd/v1-5", 1 }, { "v1-5.safetensors [e1441589a6]", "sd/v1-5", 1 },
        { "v1", "sd/v1-5", 0 }, { "", "v1-5", 0 }, { "[e1441589a6]", "v1-5", 0 },
        { ".safetensors", "v1-5", 0 }, { "v1-5", "", 0 } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK(sdapi_model_fit(rows[i].asked, rows[i].name) == rows[i].fit, "%s for %s: %d",
            rows[i].asked, rows[i].name, sdapi_model_fit(rows[i].asked, rows[i].name));
}

/* Options that change no picture are kept and given back. */
static void options_are_kept(void) {
    struct sdapi_settings kept;
    struct error err = { 0 };
    json_t *given = json_pack("{s:b, s:b, s:s, s:s, s:i, s:n}", "send_seed", 0, "upcast_attn", 1,
        "samples_filename_pattern", "[seed]-\xc3\xa9", "cross_attention_optimization", "xformers",
        "n_rows", 3, "show_progress_type");
    sdapi_settings_init(&kept);
    json_t *before = sdapi_settings_json(&kept, "m");
    CHECK(json_is_true(json_object_get(before, "send_seed")),
        "send_seed is not true, AUTOMATIC1111's default");
    CHECK(sdapi_settings_read(&kept, before, "", &err), "the options as read cannot be written: %s",
        err.message);
    CHECK(sdapi_settings_read(&kept, given, "", &err), "%s", err.message);
    json_t *after = sdapi_settings_json(&kept, "m");
    const char *name;
    json_t *value;
    json_object_foreach(given, name, value)
        CHECK(json_equal(json_object_get(after, name),
                  json_is_null(value) ? json_object_get(before, name) : value),
            "%s is not given back", name);
    CHECK(json_object_size(after) == json_object_size(before),
        "writing options changed their number");
    static const char *const wrong[] = { "{\"send_seed\":[1]}", "{\"eta_noise_seed_delta\":31337}",
        "{\"comma_padding_backtrack\":0}", "{\"nothing\":1}" };
    for (int i = 0; i < 4; i++) {
        json_t *body = json_loads(wrong[i], 0, NULL);
        CHECK(!sdapi_settings_read(&kept, body, "", &err), "%s is accepted", wrong[i]);
        json_decref(body);
    }
    json_decref(given);
    json_decref(before);
    json_decref(after);
}

static void wrong_ones_are_refused_by_name(void) {
    static const struct {
        const char *body, *param, *allowed; /* or, without a param, the message */
        enum sdapi_kind kind;
        enum error_code code;
    } rows[] = {
        { "", "body", "JSON" },
        { "[]", "body", "dictionary" },
        { "{\"steps\":20,\"steps\":20}", "body", "steps" },
        { "{\"steps\":\"many\"}", "steps", "integer" },
        { "{\"steps\":0}", "steps", "1 to" },
        { "{\"steps\":2.5}", "steps", "integer" },
        { "{\"cfg_scale\":[7]}", "cfg_scale", "number" },
        { "{\"cfg_scale\":\"nan\"}", "cfg_scale", "number" },
        { "{\"cfg_scale\":1000}", "cfg_scale", "100" },
        { "{\"width\":63}", "width", "multiple of 8" },
        { "{\"width\":2060}", "width", "multiple of 8" },
        { "{\"lora\":{}}", "lora", "path" },
        { "{\"lora\":[{\"name\":\"x\"}]}", "lora", "path" },
        { "{\"lora\":[{\"path\":\"x\",\"multiplier\":\"much\"}]}", "lora", "number" },
        { "{\"lora\":[{\"path\":\"x\",\"multiplier\":1000}]}", "lora", "100" },
        { "{\"height\":0}", "height", "multiple of 8" },
        { "{\"prompt\":[\"a\"]}", "prompt", "string" },
        { "{\"seed\":9223372036854775807}", "seed", "-1" },
        { "{\"batch_size\":0}", "batch_size", "1 to 16" },
        { "{\"batch_size\":5,\"n_iter\":4}", "n_iter", "16 images" },
        { "{\"subseed_strength\":1.1}", "subseed_strength", "0 to 1" },
        { "{\"subseed_strength\":-0.1}", "subseed_strength", "0 to 1" },
        { "{\"subseed\":1.5}", "subseed", "-1" },
        { "{\"seed_resize_from_w\":32,\"seed_resize_from_h\":64}", "seed_resize_from_w",
            "64 to 2048" },
        { "{\"seed_resize_from_w\":64,\"seed_resize_from_h\":\"x\"}", "seed_resize_from_h",
            "integer" },
        { "{\"width\":4097}", "width", "64 to 2048" },
        { "{\"width\":2056}", "width", "64 to 2048" },
        { "{\"styles\":[1]}", "styles", "string" },
        { "{\"styles\":\"x\"}", "styles", "list" },
        { "{\"enable_hr\":true}", "enable_hr", "hires" },
        { "{\"enable_hr\":\"x\"}", "enable_hr", "boolean" },
        { "{\"script_name\":\"x/y plot\"}", "script_name", "no scripts" },
        { "{\"alwayson_scripts\":{\"ControlNet\":{\"args\":[{\"model\":\"x\"}]}}}",
            "alwayson_scripts", "no scripts" },
        { "{\"alwayson_scripts\":{\"ADetailer\":{\"args\":[true,{}]}}}", "alwayson_scripts",
            "no scripts" },
        { "{\"alwayson_scripts\":[]}", "alwayson_scripts", "dictionary" },
        { "{\"sampler_name\":\"DPM adaptive\"}", "", "Sampler not found" },
        { "{\"sampler_name\":\"x\",\"sampler_index\":\"Euler\"}", "", "Sampler not found" },
        { "{\"sampler_index\":\"Euler  a\"}", "", "Sampler not found" },
        { "{\"scheduler\":\"quadratic\"}", "scheduler", "kl_optimal" },
        { "{\"sampler_name\":\"DPM++ 2M\",\"scheduler\":\"SGM Uniform\"}", "scheduler", "another" },
        { "{\"sampler_name\":\"DDIM\",\"eta\":2}", "eta", "0 to 1" },
        { "{\"override_settings\":[]}", "override_settings", "dictionary" },
        { "{\"override_settings\":{\"sd_vae\":[]}}", "override_settings.sd_vae", "a text" },
        { "{\"override_settings\":{\"eta_noise_seed_delta\":31337}}",
            "override_settings.eta_noise_seed_delta", "0" },
        { "{\"override_settings\":{\"CLIP_stop_at_last_layers\":0}}",
            "override_settings.CLIP_stop_at_last_layers", "last layer" },
        { "{\"override_settings\":{\"nothing\":1}}", "override_settings.nothing", "no such" },
        { "{\"override_settings\":{\"sd_model_checkpoint\":1}}",
            "override_settings.sd_model_checkpoint", "sd-models" },
        { "{}", "", "Init image not found", SDAPI_IMG2IMG, ERROR_NOT_FOUND },
        { "{\"init_images\":[]}", "", "Init image not found", SDAPI_IMG2IMG, ERROR_NOT_FOUND },
        { "{\"init_images\":\"AAAA\"}", "init_images", "list", SDAPI_IMG2IMG },
        { "{\"init_images\":[1]}", "init_images", "string", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\",\"AAAA\"]}", "init_images", "one", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"?\"]}", "", "Invalid encoded image", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"\"]}", "", "Invalid encoded image", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"data:image/png;base64\"]}", "", "Invalid encoded image",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"http://localhost/x.png\"]}", "", "Requests not allowed",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"HTTPS://localhost/x.png\"]}", "", "Requests not allowed",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"denoising_strength\":1.5}", "denoising_strength", "0 to 1",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"resize_mode\":4}", "resize_mode", "latent upscale",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"initial_noise_multiplier\":1.1}",
            "initial_noise_multiplier", "1", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"mask\":\"!\"}", "", "Invalid encoded image",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"mask\":[\"AAAA\"]}", "mask", "string", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"mask\":\"AAAA\",\"inpainting_fill\":4}", "inpainting_fill",
            "0 to 3", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"mask\":\"AAAA\",\"mask_blur\":65}", "mask_blur", "64",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"mask\":\"AAAA\",\"mask_round\":false}", "mask_round",
            "true", SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"latent_mask\":\"AAAA\"}", "latent_mask", "mask",
            SDAPI_IMG2IMG },
        { "{\"init_images\":[\"AAAA\"],\"steps\":-1}", "steps", "1 to", SDAPI_IMG2IMG },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sdapi_request r;
        struct error err;
        const bool ok = parse(rows[i].kind, rows[i].body, &r, &err);
        CHECK(!ok, "%s is accepted", rows[i].body);
        if (ok) {
            sdapi_request_finish(&r);
            continue;
        }
        CHECK(err.code == (rows[i].code ? rows[i].code : ERROR_INVALID), "%s: code %d",
            rows[i].body, (int)err.code);
        CHECK_STRING(err.param, rows[i].param);
        CHECK_CONTAINS(rows[i].param[0] ? err.allowed : err.message, rows[i].allowed);
    }
}

/* AUTOMATIC1111 draws the last int(min(d, 0.999) * steps) + 1 steps, latentd the last int(strength
 * * steps). */
static void denoising_strength_takes_as_many_steps(void) {
    int compared = 0;
    for (int steps = 1; steps <= 60; steps++)
        for (int hundredths = 0; hundredths <= 100; hundredths += 5) {
            char body[128];
            struct sdapi_request r;
            struct error err;
            snprintf(body, sizeof(body),
                "{\"init_images\":[\"AAAA\"],\"steps\":%d,\"denoising_strength\":%.2f}", steps,
                hundredths / 100.0);
            if (!parse(SDAPI_IMG2IMG, body, &r, &err)) {
                CHECK(false, "%s: %s", body, err.message);
                continue;
            }
            const double share = fmin(hundredths / 100.0, 0.999);
            const int theirs = (int)(share * steps) + 1, ours = (int)(r.generate.strength * steps);
            CHECK(ours == theirs, "%d steps at %g: %d, not %d", steps, share, ours, theirs);
            compared++;
            sdapi_request_finish(&r);
        }
    printf("%d strengths take as many steps as AUTOMATIC1111's\n", compared);
}

static void masks_arrive(void) {
    static const char body[] =
        "{\"init_images\":[\"data:image/png;base64,AAAA\"],\"mask\":\"AAAA\",\"mask_blur\":7,"
        "\"inpainting_fill\":1,\"inpainting_mask_invert\":1,\"inpaint_full_res\":false,"
        "\"inpaint_full_res_padding\":32,\"resize_mode\":1,\"include_init_images\":true}";
    struct sdapi_request r;
    struct error err;
    if (!parse(SDAPI_IMG2IMG, body, &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(r.generate.init_image.size == 3 && r.inpainting.mask.size == 3,
        "the request does not have the picture and the mask of three bytes");
    CHECK(r.inpainting.blur_x == 7 && r.inpainting.blur_y == 7, "%d", r.inpainting.blur_x);
    CHECK(r.inpainting.fill == SDAPI_ORIGINAL && r.inpainting.invert && !r.inpainting.full_res,
        "flags");
    CHECK(r.inpainting.padding == 32, "%d", r.inpainting.padding);
    CHECK(r.generate.resize_mode == RESIZE_MODE_CROP, "%d", r.generate.resize_mode);
    CHECK_NEAR(r.denoising_strength, 0.75, 0);
    CHECK(json_is_string(json_object_get(r.parameters, "mask")),
        "include_init_images does not put the mask into the answer");
    CHECK(!json_object_get(r.parameters, "include_init_images"),
        "include_init_images is repeated in the answer");
    sdapi_request_finish(&r);
    CHECK(parse(SDAPI_IMG2IMG, "{\"init_images\":[\"AAAA\"],\"mask\":\"AAAA\"}", &r, &err), "%s",
        err.message);
    CHECK(r.inpainting.blur_x == 4 && r.inpainting.fill == SDAPI_FILL && r.inpainting.full_res,
        "defaults");
    CHECK(json_is_null(json_object_get(r.parameters, "mask")), "not repeated");
    sdapi_request_finish(&r);
    CHECK(parse(SDAPI_IMG2IMG,
              "{\"init_images\":[\"AAAA\"],\"inpainting_fill\":2,\"resize_mode\":2}", &r, &err),
        "inpainting_fill without a mask is refused: %s", err.message);
    CHECK(r.generate.resize_mode == RESIZE_MODE_FILL && !r.inpainting.given, "%d",
        r.generate.resize_mode);
    sdapi_request_finish(&r);
}

/* --- samplers --- */

/* AUTOMATIC1111's table: names, aliases, and the schedule that "automatic" means for each. */
static void samplers_are_theirs(void) {
    static const struct {
        const char *asked, *schedule, *name, *means;
        enum scheduler_kind kind;
    } rows[] = {
        { "Euler a", NULL, "Euler a", "uniform", SCHEDULER_EULER_ANCESTRAL },
        { "k_euler_ancestral", "automatic", "Euler a", "uniform", SCHEDULER_EULER_ANCESTRAL },
        { "euler", "Automatic", "Euler", "uniform", SCHEDULER_EULER },
        { "Euler", "karras", "Euler", "karras", SCHEDULER_EULER },
        { "Euler a Karras", "simple", "Euler a", "karras", SCHEDULER_EULER_ANCESTRAL },
        { "DPM++ 2M", NULL, "DPM++ 2M", "karras", SCHEDULER_DPMPP_2M },
        { "DPM++ 2M", "uniform", "DPM++ 2M", "uniform", SCHEDULER_DPMPP_2M },
        { "DPM++ 2M Karras", NULL, "DPM++ 2M", "karras", SCHEDULER_DPMPP_2M },
        { "DPM++ 2M SDE", NULL, "DPM++ 2M SDE", "exponential", SCHEDULER_DPMPP_2M_SDE },
        { "DPM++ 2M SDE Karras", NULL, "DPM++ 2M SDE", "karras", SCHEDULER_DPMPP_2M_SDE },
        { "DPM++ 2M SDE Heun Exponential", NULL, "DPM++ 2M SDE Heun", "exponential",
            SCHEDULER_DPMPP_2M_SDE },
        { "DPM++ 3M SDE", NULL, "DPM++ 3M SDE", "exponential", SCHEDULER_DPMPP_3M_SDE },
        { "DPM++ SDE", NULL, "DPM++ SDE", "karras", SCHEDULER_DPMPP_SDE },
        { "DPM++ 2S a", NULL, "DPM++ 2S a", "karras", SCHEDULER_DPMPP_2S_ANCESTRAL },
        { "DPM2", NULL, "DPM2", "karras", SCHEDULER_DPM2 },
        { "DPM2 a", "Align Your Steps", "DPM2 a", "align_your_steps", SCHEDULER_DPM2_ANCESTRAL },
        { "LMS", "SGMUniform", "LMS", "sgm_uniform", SCHEDULER_LMS },
        { "Heun", "beta", "Heun", "beta", SCHEDULER_HEUN },
        { "Euler", "polyexponential", "Euler", "polyexponential", SCHEDULER_EULER },
        { "Euler SGM Uniform", NULL, "Euler", "sgm_uniform", SCHEDULER_EULER },
        { "Euler", "ddim", "Euler", "ddim", SCHEDULER_EULER },
        { "DDIM", "karras", "DDIM", "karras", SCHEDULER_DDIM },
        { "PLMS", NULL, "PLMS", "uniform", SCHEDULER_PNDM },
        { "UniPC", NULL, "UniPC", "uniform", SCHEDULER_UNIPC },
        { "LCM", NULL, "LCM", "uniform", SCHEDULER_LCM },
        { "Euler KL Optimal", NULL, "Euler", "kl_optimal", SCHEDULER_EULER },
        { "Heun", "Turbo", "Heun", "turbo", SCHEDULER_HEUN },
        { "Restart", NULL, "Restart", "karras", SCHEDULER_RESTART },
        { "k_dpm_fast", "karras", "DPM fast", "karras", SCHEDULER_DPM_FAST },
        { "DDIM CFG++", NULL, "DDIM CFG++", "uniform", SCHEDULER_DDIM_CFGPP },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sdapi_sampling s;
        struct scheduler_choice choice;
        struct error err = { 0 };
        const bool ok = sdapi_sampling_find(rows[i].asked, rows[i].schedule, &s, &err);
        CHECK(ok, "%s: %s", rows[i].asked, err.message);
        if (!ok)
            continue;
        CHECK_STRING(s.sampler->name, rows[i].name);
        CHECK_STRING(s.schedule->name, rows[i].means);
        sdapi_sampling_choose(&s, NULL, &choice);
        CHECK(choice.has_kind && choice.kind == rows[i].kind, "%s: %s", rows[i].asked,
            scheduler_kind_name(choice.kind));
    }
}

/* Every pair of sampler and schedule that is not refused makes a plan for a Stable Diffusion
 * checkpoint. */
static void every_pair_makes_a_plan(void) {
    json_t *file = sd15_scheduler_json();
    int planned = 0, refused = 0;
    for (size_t i = 0; sdapi_sampler_at(i); i++)
        for (size_t k = 0; sdapi_schedule_at(k); k++) {
            struct sdapi_sampling s;
            struct scheduler_choice choice;
            struct scheduler_config config;
            struct scheduler_plan *plan = NULL;
            struct error err = { 0 };
            const char *sampler = sdapi_sampler_at(i)->name, *schedule = sdapi_schedule_at(k)->name;
            if (!sdapi_sampling_find(sampler, schedule, &s, &err)) {
                CHECK_STRING(err.param, "scheduler");
                refused++;
                continue;
            }
            sdapi_sampling_choose(&s, NULL, &choice);
            const bool ok = scheduler_config_resolve(file, &choice, &config, &err) &&
                            scheduler_plan_create(&config, 20, &plan, &err);
            CHECK(ok, "%s, %s: %s", sampler, schedule, err.message);
            scheduler_plan_destroy(plan);
            planned++;
        }
    printf("%d pairs of sampler and schedule make plans, %d are refused\n", planned, refused);
    CHECK(planned > 150, "%d", planned);
    json_decref(file);
}

/* Euler's steps of that schedule begin at sigmas[0..9] and end at `last`. */
static void check_levels(const char *schedule, const double sigmas[10], double last) {
    json_t *file = json_pack("{s:s, s:f, s:f, s:s}", "_class_name", "PNDMScheduler", "beta_start",
        0.00085, "beta_end", 0.012, "beta_schedule", "scaled_linear");
    struct sdapi_sampling s;
    struct scheduler_choice choice;
    struct scheduler_config config;
    struct scheduler_plan *plan = NULL;
    struct error err = { 0 };
    CHECK(sdapi_sampling_find("Euler", schedule, &s, &err), "%s", err.message);
    sdapi_sampling_choose(&s, NULL, &choice);
    CHECK(scheduler_config_resolve(file, &choice, &config, &err) &&
              scheduler_plan_create(&config, 10, &plan, &err),
        "%s", err.message);
    for (int i = 0; plan && i < plan->count; i++)
        CHECK_NEAR(plan->evaluations[i].noise, sigmas[i], 1e-4);
    CHECK_NEAR(
        plan ? plan->evaluations[9].updates[0].weights[TERM_OUTPUT] : 0, last - sigmas[9], 1e-4);
    scheduler_plan_destroy(plan);
    json_decref(file);
}

/* The sigmas of Stable Diffusion and 10 steps: k-diffusion's of Karras, and AUTOMATIC1111's
 * kl_optimal, which ends at the eleventh. */
static void levels_are_theirs(void) {
    static const struct {
        const char *schedule;
        double sigmas[10], last;
    } lists[] = {
        { "karras",
            { 14.6146, 9.1029, 5.4784, 3.1686, 1.7494, 0.9141, 0.4469, 0.2014, 0.0819, 0.0292 },
            0 },
        { "kl_optimal",
            { 14.6146, 4.5650, 2.6329, 1.7864, 1.2948, 0.9616, 0.7116, 0.5094, 0.3356, 0.1783 },
            0.0292 },
    };
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++)
        check_levels(lists[i].schedule, lists[i].sigmas, lists[i].last);
}

int main(void) {
    sdapi_settings_init(&settings);
    an_empty_body_takes_the_defaults();
    every_field_arrives();
    what_means_nothing_is_passed_over();
    what_it_goes_on_without_is_said();
    variations_arrive();
    fills_and_sizes_arrive();
    loras_of_sd_cpp_arrive();
    checkpoints_have_several_names();
    options_are_kept();
    wrong_ones_are_refused_by_name();
    denoising_strength_takes_as_many_steps();
    masks_arrive();
    samplers_are_theirs();
    every_pair_makes_a_plan();
    levels_are_theirs();
    return check_done();
}
