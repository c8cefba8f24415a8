/* Tests how a request is resolved for a checkpoint, and how it is refused if it does not fit that
 * checkpoint. Errors name the API's fields. */
#include "engine/resolve/resolve.h"
#include "tests/check.h"
#include "tests/engine/sd15.h"

#include <stdlib.h>

static struct tokenizer *tokenizer;
static json_t *scheduler;
static struct generate_request request;

/* Returns the figures of SD-1.5, with the bundled tokenizer. */
static struct resolve_figures sd15(void) {
    return sd15_figures(tokenizer, scheduler);
}

static void reset(void) {
    generate_request_finish(&request);
    generate_request_init(&request);
    request.prompts = calloc(2, sizeof(*request.prompts));
    request.prompts[0] = strdup("a red boat");
    request.prompt_count = 1;
}

static void give_latents(int images, int channels, int height, int width) {
    size_t count = (size_t)(images * channels * height * width);
    free(request.init_latents.values);
    request.init_latents = (struct init_latents){ calloc(count, sizeof(float)), images, channels,
        height, width };
}

static void refused(const struct resolve_figures *figures, const char *param, const char *value,
    const char *allowed) {
    struct resolved_request out;
    struct error err = { 0 };
    CHECK(!resolve_request(figures, &request, &out, &err), "%s %s is accepted", param, value);
    CHECK(err.code == ERROR_INVALID, "%s", error_code_name(err.code));
    CHECK_STRING(err.param, param);
    CHECK_STRING(err.value, value);
    CHECK_CONTAINS(err.allowed, allowed);
    reset();
}

static void what_is_open_is_the_models(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    request.prompts[1] = strdup("a dog");
    request.prompt_count = 2;
    request.num_images = 3;
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.asked.width == 512 && r.asked.height == 512, "%dx%d", r.asked.width, r.asked.height);
    CHECK(r.latent_channels == 4 && r.latent_height == 64 && r.latent_width == 64, "latents");
    CHECK(r.guided && r.images == 6 && r.text_count == 3 && r.tokens == 77, "%d images, %d texts",
        r.images, r.text_count);
    CHECK(r.scheduler.kind == SCHEDULER_PNDM && r.plan->count == 26,
        "25 steps of PNDM are not 26 evaluations");
    CHECK(
        r.asked.seed_given && r.asked.seed <= UINT32_MAX, "the random seed has more than 32 bits");
    CHECK(resolved_request_seed(&r, 5) == r.asked.seed + 5, "image k does not use seed + k");
    CHECK_STRING(resolved_request_prompt(&r, 2), "a red boat");
    CHECK_STRING(resolved_request_prompt(&r, 3), "a dog");
    const int32_t *ids = r.texts[0].ids, *prompt = r.texts[1].ids;
    CHECK(ids[0] == prompt[0] && ids[76] == ids[1] && prompt[1] != ids[1],
        "the empty negative prompt is not a begin mark and end marks");
    CHECK(r.chunks == 1 && r.texts[2].chunks == 1, "%d chunks", r.chunks);
    CHECK(memcmp(prompt, r.texts[2].ids, 77 * sizeof(*prompt)) != 0,
        "the two prompts have the same ids");
    CHECK(!request.seed_given && request.width == 0, "resolving changed the request");
    resolved_request_finish(&r);
    resolved_request_finish(&r); /* zeroed */

    reset();
    request.guidance_scale = 1;
    char *text = malloc(400);
    for (int i = 0; i < 100; i++)
        memcpy(text + 4 * i, "a b ", 4);
    text[399] = 0;
    free(request.prompts[0]);
    request.prompts[0] = text;
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(!r.guided && r.text_count == 1,
        "without guidance there are %d texts instead of the prompt alone", r.text_count);
    CHECK(r.warning_count == 1, "%d warnings", r.warning_count);
    CHECK_CONTAINS(r.warnings[0], "prompt: only the first 75 tokens were used");
    resolved_request_finish(&r);
    reset();
}

/* With guidance_scale <= 1, negative_prompt and guidance_rescale change nothing, as in diffusers.
 * The request gets a warning for each. DDIM CFG++ guides at any guidance_scale. */
static void fields_without_effect_are_said(void) {
    static const struct {
        double guidance_scale;
        int warnings;
        enum scheduler_kind kind;
    } rows[] = { { 1, 2, SCHEDULER_DDIM }, { 0.5, 2, SCHEDULER_DDIM }, { 1.5, 0, SCHEDULER_DDIM },
        { 1, 0, SCHEDULER_DDIM_CFGPP }, { 0, 0, SCHEDULER_DDIM_CFGPP } };
    const struct resolve_figures figures = sd15();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct resolved_request r;
        struct error err = { 0 };
        request.scheduler = (struct scheduler_choice){ .has_kind = true, .kind = rows[i].kind };
        request.guidance_scale = rows[i].guidance_scale;
        request.negative_prompt = strdup("blurry");
        request.guidance_rescale = 0.7;
        CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
        CHECK(r.warning_count == rows[i].warnings, "guidance_scale %g: %d warnings",
            rows[i].guidance_scale, r.warning_count);
        for (int n = 0; n < r.warning_count; n++)
            printf("guidance_scale %g: %s\n", rows[i].guidance_scale, r.warnings[n]);
        if (r.warning_count == 2) {
            CHECK_CONTAINS(r.warnings[0], "negative_prompt has no effect");
            CHECK_CONTAINS(r.warnings[1], "guidance_rescale has no effect");
        }
        resolved_request_finish(&r);
        reset();
    }
    struct resolved_request r;
    struct error err = { 0 };
    request.guidance_scale = 1;
    request.negative_prompt = strdup("");
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.warning_count == 0, "a request of defaults has %d warnings", r.warning_count);
    resolved_request_finish(&r);
    reset();
}

/* A subseed alone varies nothing. A seed_resize_from of the picture's own size moves nothing, and
 * so does not send the noise through another generator. */
static void variations_without_effect_are_none(void) {
    static const struct {
        bool subseed;
        double strength;
        int from_w, from_h, warnings;
        int64_t height, width;
    } rows[] = { { true, 0, 0, 0, 1, 0, 0 }, { true, 0.5, 0, 0, 0, 0, 0 },
        { false, 0, 0, 0, 0, 0, 0 }, { false, 0, 512, 256, 0, 0, 0 },
        { false, 0, 256, 512, 0, 64, 32 }, { false, 0.5, 512, 256, 0, 0, 0 },
        { true, 0, 512, 512, 1, 64, 64 } };
    const struct resolve_figures figures = sd15();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct resolved_request r;
        struct error err = { 0 };
        request.width = 512;
        request.height = 256;
        request.subseed_given = rows[i].subseed;
        request.subseed_strength = rows[i].strength;
        request.seed_resize_from_w = rows[i].from_w;
        request.seed_resize_from_h = rows[i].from_h;
        CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
        const struct noise_variation v = resolved_request_variation(&r, 0);
        CHECK(r.warning_count == rows[i].warnings, "row %zu: %d warnings", i, r.warning_count);
        if (r.warning_count == 1)
            CHECK_STRING(r.warnings[0], "subseed has no effect: subseed_strength is 0");
        CHECK(v.height == rows[i].height && v.width == rows[i].width,
            "row %zu: noise for %lldx%lld latents", i, (long long)v.width, (long long)v.height);
        resolved_request_finish(&r);
        reset();
    }
}

/* As with diffusers' list of generators, each image has its own seed. */
static void images_have_seeds_of_their_own(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    request.seed_given = true;
    request.seed = 7;
    request.num_images = IMAGES_PER_REQUEST_MAX;
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    for (int i = 0; i < IMAGES_PER_REQUEST_MAX; i++)
        CHECK(resolved_request_seed(&r, i) == 7 + (uint64_t)i, "image %d has the seed %llu", i,
            (unsigned long long)resolved_request_seed(&r, i));
    resolved_request_finish(&r);
    reset();
}

/* In 64 random seeds each of the 32 bits is set at least once and clear at least once. A correct
 * generator fails this once in 2^58 runs. */
static void an_open_seed_has_32_random_bits(void) {
    const struct resolve_figures figures = sd15();
    uint64_t set = 0, clear = 0;
    for (int i = 0; i < 64; i++) {
        struct resolved_request r;
        struct error err = { 0 };
        CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
        set |= r.asked.seed;
        clear |= ~r.asked.seed & UINT32_MAX;
        resolved_request_finish(&r);
    }
    CHECK(set == UINT32_MAX && clear == UINT32_MAX, "set %llx, clear %llx", (unsigned long long)set,
        (unsigned long long)clear);
    reset();
}

/* As in AUTOMATIC1111, variations have the seed in common, and their subseeds count up. */
static void variations_share_the_seed(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    reset();
    request.num_images = 3;
    request.seed = 7, request.seed_given = true;
    request.subseed_strength = 0.25;
    request.seed_resize_from_w = 256, request.seed_resize_from_h = 320;
    if (!resolve_request(&figures, &request, &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(r.asked.subseed_given && r.asked.subseed <= UINT32_MAX, "a subseed of 32 bits");
    for (int i = 0; i < 3; i++) {
        const struct noise_variation v = resolved_request_variation(&r, i);
        CHECK(resolved_request_seed(&r, i) == 7 && v.seed == 7, "image %d", i);
        CHECK(v.subseed == r.asked.subseed + (uint64_t)i && v.strength == 0.25, "image %d", i);
        CHECK(v.width == 32 && v.height == 40, "%dx%d", (int)v.width, (int)v.height);
    }
    resolved_request_finish(&r);
    reset();
    request.subseed_strength = 1.5;
    refused(&figures, "subseed_strength", "1.5", "0 to 1");
    request.subseed_strength = NAN;
    refused(&figures, "subseed_strength", "nan", "0 to 1");
    request.seed_resize_from_w = 512;
    refused(&figures, "seed_resize_from_h", "none", "beside seed_resize_from_w");
    request.seed_resize_from_h = 512;
    refused(&figures, "seed_resize_from_w", "none", "beside seed_resize_from_h");
    request.seed_resize_from_w = request.seed_resize_from_h = 516;
    refused(&figures, "seed_resize_from_w", "516", "a multiple of 8 from 64 to 2048");
    give_latents(1, 4, 64, 64);
    request.subseed_strength = 0.5;
    refused(&figures, "subseed_strength", "0.5", "init_latents");
    give_latents(1, 4, 64, 64);
    request.seed_resize_from_w = request.seed_resize_from_h = 256;
    refused(&figures, "seed_resize_from_w", "256", "init_latents");
    struct resolve_figures sixteen = sd15(); /* a VAE of 16 px per latent */
    sixteen.vae_scale = 16;
    request.width = request.height = 512;
    request.seed_resize_from_w = 512, request.seed_resize_from_h = 520;
    refused(&sixteen, "seed_resize_from_h", "520", "this model's 16");
}

static void encoded_texts_are_finite(void) {
    static const float wrong[] = { INFINITY, -INFINITY, NAN };
    const struct resolve_figures figures = sd15();
    const int64_t count = 77 * 768;
    for (int i = 0; i < 4; i++) {
        struct resolved_request r;
        struct error err = { 0 };
        free(request.prompts[0]);
        request.prompt_count = 0;
        request.prompts[0] = NULL;
        request.guidance_scale = 1;
        request.prompt_embeds = (struct encoded_texts){ calloc(count, sizeof(float)), 1, 77, 768 };
        if (i < 3) {
            request.prompt_embeds.values[count - 1] = wrong[i];
            refused(&figures, "prompt_embeds", "not finite", "finite numbers");
            continue;
        }
        CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
        resolved_request_finish(&r);
        reset();
    }
}

static void give_long_prompt(int pairs) {
    free(request.prompts[0]);
    request.prompts[0] = malloc((size_t)pairs * 4 + 1);
    for (int i = 0; i < pairs; i++)
        memcpy(request.prompts[0] + 4 * i, "a b ", 4);
    request.prompts[0][4 * pairs] = 0;
    request.long_prompt = LONG_PROMPT_CHUNK;
}

/* As in AUTOMATIC1111: chunks of 75 tokens, each between its own begin and end tokens; the last
 * chunk is padded. */
static void long_texts_become_chunks(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    give_long_prompt(80);
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.chunks == 3 && r.texts[1].chunks == 3 && r.texts[0].chunks == 1, "%d chunks", r.chunks);
    CHECK(r.warning_count == 0, "a long prompt in chunks has a warning that it is cut");
    const int32_t *empty = r.texts[0].ids, *ids = r.texts[1].ids;
    for (int i = 0; i < 160; i++)
        CHECK(ids[i / 75 * 77 + 1 + i % 75] == ids[1 + i % 2], "token %d", i);
    for (int i = 0; i < 3; i++)
        CHECK(ids[77 * i] == empty[0] && ids[77 * i + 76] == empty[76],
            "chunk %d does not begin and end with the marks", i);
    CHECK(memcmp(ids + 2 * 77 + 11, empty + 1, 66 * sizeof(*ids)) == 0,
        "the last chunk is not filled up with end marks");
    resolved_request_finish(&r);
    reset();
    give_long_prompt(300);
    CHECK(resolve_request(&figures, &request, &r, &err) && r.chunks == 8, "%s", err.message);
    resolved_request_finish(&r);
    reset();
    give_long_prompt(301);
    refused(&figures, "prompt", "602 tokens", "at most 600 tokens: 8 chunks of 75");
}

static void give_prompt(int index, const char *text) {
    free(request.prompts[index]);
    request.prompts[index] = strdup(text);
    request.prompt_count = index + 1;
    request.prompt_syntax = PROMPT_SYNTAX_A1111;
}

/* The ids are those of the words without brackets; the weights are stored beside them. */
static void brackets_become_weights(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request plain, r;
    struct error err = { 0 };
    CHECK(resolve_request(&figures, &request, &plain, &err), "%s", err.message);
    give_prompt(0, "a (red:1.5) boat");
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    const struct text *text = &r.texts[1];
    CHECK(memcmp(text->ids, plain.texts[1].ids, 77 * sizeof(*text->ids)) == 0,
        "weights change the ids of the prompt");
    CHECK(text->weights && !r.texts[0].weights && !plain.texts[1].weights, "weights");
    for (int i = 0; text->weights && i < 77; i++)
        CHECK(text->weights[i] ==
                  (i < 2 || text->ids[i] == plain.texts[1].ids[76] || text->weights[i] == 1 ? 1
                                                                                            : 1.5f),
            "token %d: %g", i, (double)text->weights[i]);
    CHECK(r.asked.long_prompt == LONG_PROMPT_CHUNK,
        "a weighted prompt is cut instead of read in chunks");
    CHECK_STRING(resolved_request_prompt(&r, 0), "a (red:1.5) boat");
    resolved_request_finish(&r);
    resolved_request_finish(&plain);
    give_prompt(0, "a boat :1.5");
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.texts[1].guidance == 1.5 && r.warning_count == 1, "%g", r.texts[1].guidance);
    CHECK_CONTAINS(r.warnings[0], "prompt: \":1.5\" at its end is the weight of the whole prompt");
    resolved_request_finish(&r);
    give_prompt(0, "(a BREAK boat)");
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.warning_count == 1 && r.chunks == 1, "%d chunks", r.chunks);
    CHECK_CONTAINS(r.warnings[0], "a BREAK in brackets is a word");
    resolved_request_finish(&r);
    reset();
}

static void what_prompts_cannot_say_is_refused(void) {
    const struct resolve_figures figures = sd15();
    give_prompt(0, "a <lora:snow:0.5> boat");
    refused(&figures, "prompt", "<lora:snow>", "there are no adapters here");
    give_prompt(0, "a boat <lora:snow:101>");
    refused(&figures, "prompt", "<lora:snow>", "from -100 to 100");
    give_prompt(0, "a boat <lora:snow>");
    request.loras = calloc(1, sizeof(*request.loras));
    request.lora_count = 1;
    snprintf(request.loras[0].name, sizeof(request.loras[0].name), "snow");
    refused(&figures, "prompt", "<lora:snow>", "at most once");
    give_prompt(0, "a boat");
    give_prompt(1, "a house <lora:snow>");
    refused(&figures, "prompt", "other <lora:...> tags than the first prompt's", "the same ones");
    give_prompt(0, "BREAK BREAK BREAK BREAK BREAK BREAK BREAK BREAK a");
    refused(&figures, "prompt", "more than 8 chunks", "at most 8 of 75 tokens");
    give_prompt(0, "a boat");
    request.long_prompt_given = true;
    refused(&figures, "long_prompt", "truncate", "\"chunk\" with prompt_syntax");
    give_prompt(0, "a boat: 2");
    request.guidance_scale = 1;
    refused(
        &figures, "prompt", "a weight of the whole prompt, at its end", "guidance_scale above 1");
    give_prompt(0, "a boat AND a house");
    request.guidance_scale = 1;
    refused(&figures, "prompt", "AND", "guidance_scale above 1");
    give_prompt(0, "a AND b AND c AND d AND e AND f AND g AND h AND i");
    refused(&figures, "prompt", "more than 8 parts", "at most 8 parts");
    free(request.negative_prompt);
    request.negative_prompt = calloc(1, 3 * (PROMPT_VARIANTS_MAX + 1) + 2);
    for (int i = 0; i <= PROMPT_VARIANTS_MAX; i++)
        sprintf(request.negative_prompt + strlen(request.negative_prompt), "%c%c%c", i ? '|' : '[',
            'a' + i / 26, 'a' + i % 26);
    strcat(request.negative_prompt, "]");
    request.prompt_syntax = PROMPT_SYNTAX_A1111;
    request.num_inference_steps = 200;
    refused(&figures, "negative_prompt", "more than 128 texts", "at most 128 different texts");
    char text[400] = "";
    for (int i = 0; i < PROMPT_PARTS_MAX; i++)
        sprintf(text + strlen(text), "%s[a|b|c|d|e|f|g|h|i|j|k|l|m|n|o|p|q]", i ? " AND " : "");
    give_prompt(0, text);
    request.num_inference_steps = 200;
    refused(&figures, "prompt", "more than 128 texts", "at most 128 different texts of a prompt");
}

/* AND makes several texts of a prompt, and an edit several variants of a text. A method of second
 * order counts twice as many evaluations. */
static void texts_change_from_step_to_step(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    give_prompt(0, "a [red|blue] boat AND [snow:BREAK hills:0.5] :0.5");
    give_prompt(1, "a house");
    free(request.negative_prompt);
    request.negative_prompt = strdup("[night::4] AND");
    request.num_inference_steps = 10;
    request.scheduler = (struct scheduler_choice){ .has_kind = true, .kind = SCHEDULER_HEUN };
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.text_count == 4 && r.prompts[0].first == 1 && r.prompts[0].count == 2 &&
              r.prompts[1].first == 3 && r.prompts[1].count == 1,
        "%d texts", r.text_count);
    CHECK(resolved_request_rows(&r, 0) == 3 && resolved_request_rows(&r, 1) == 2, "rows");
    CHECK(r.chunks == 2 && r.prompts[0].tokens == 154 && r.texts[1].tokens == 77 &&
              r.prompts[1].tokens == 77,
        "%d tokens", r.prompts[0].tokens);
    CHECK(r.texts[1].variants == 2 && r.texts[2].variants == 2 && r.texts[0].variants == 2 &&
              r.texts[3].variants == 1,
        "variants");
    CHECK(
        r.texts[1].guidance == 1 && r.texts[2].guidance == 0.5 && r.warning_count == 0, "weights");
    static const int expected[3][2] = { { 0, 4 }, { 1, 20 }, { 2, 10 } };
    for (int i = 0; i < 3; i++) {
        const struct text *text = &r.texts[expected[i][0]];
        const int last = expected[i][1];
        CHECK(text->spans[text->span_count - 1].last == 20, "20 evaluations");
        for (int k = 0; k <= 20; k++) {
            const int variant = i == 1 ? (k > 0 ? k - 1 : 0) % 2 : k > last;
            CHECK(text_variant_at(text, k) == variant,
                "text %d uses another variant in evaluation %d: %d", i, k,
                text_variant_at(text, k));
        }
    }
    const struct text boat = text_variant(&r.texts[1], 1), edited = text_variant(&r.texts[2], 0);
    CHECK(boat.ids == r.texts[1].ids + 77 && boat.ids[2] != r.texts[1].ids[2] &&
              boat.ids[3] == r.texts[1].ids[3] && !boat.spans && boat.variants == 1,
        "the second variant does not have the expected ids");
    CHECK(edited.ids[77] == edited.ids[0] && edited.ids[78] == edited.ids[76],
        "the shorter variant is not filled up by an empty chunk");
    CHECK_STRING(
        resolved_request_prompt(&r, 0), "a [red|blue] boat AND [snow:BREAK hills:0.5] :0.5");
    resolved_request_finish(&r);
    reset();
}

static void a_models_own_limits(void) {
    struct resolve_figures figures = sd15();
    request.clip_skip = 12;
    refused(&figures, "clip_skip", "12", "from 0 to 11: this text encoder has 12 layers");
    request.clip_skip = 3;
    figures.text_layers = 3;
    refused(&figures, "clip_skip", "3", "from 0 to 2");
    figures.vae_scale = 16;
    request.width = 520;
    refused(&figures, "width", "520", "a multiple of this model's 16");
    request.height = 520;
    refused(&figures, "height", "520", "a multiple of this model's 16");
    figures = sd15();
    request.num_inference_steps = 1000; /* with steps_offset 1 */
    refused(&figures, "num_inference_steps", "1000", "fewer steps");
    request.width = 511;
    refused(&figures, "width", "511", "a multiple of 8");
}

static void starting_noise_has_the_models_shape(void) {
    struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    request.num_images = 2;
    give_latents(2, 4, 16, 24);
    CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
    CHECK(r.asked.width == 192 && r.asked.height == 128,
        "the picture does not have the size of the latents: %dx%d", r.asked.width, r.asked.height);
    CHECK(r.asked.init_latents.values != request.init_latents.values, "a copy");
    resolved_request_finish(&r);
    request.num_images = 1;
    refused(&figures, "init_latents", "[2][4][16][24]", "[1][4][16][24]");
    give_latents(1, 16, 16, 16);
    refused(&figures, "init_latents", "[1][16][16][16]", "[1][4][16][16]");
    give_latents(1, 4, 16, 16);
    request.width = 256;
    refused(&figures, "init_latents", "[1][4][16][16]", "[1][4][16][32]");
    give_latents(1, 4, 4, 16);
    refused(&figures, "init_latents", "[1][4][4][16]", "[1][4][height/8][width/8]");
    give_latents(1, 4, 512, 8);
    refused(&figures, "init_latents", "[1][4][512][8]", "64 to 2048 pixels");
    give_latents(1, 4, 16, 16);
    request.init_latents.values[7] = INFINITY;
    refused(&figures, "init_latents", "not finite", "finite numbers");
}

static void give_pictures(int width, int height, bool masked) {
    struct error err = { 0 };
    CHECK(source_fill_blank(&request, width, height, &err), "%s", err.message);
    if (masked)
        return;
    free(request.mask_image.bytes);
    request.mask_image.bytes = NULL;
}

/* As diffusers' get_timesteps: int(n * strength), computed with doubles as in Python. */
static void strength_leaves_steps(void) {
    static const struct {
        int steps;
        double strength;
        int left;
    } cases[] = { { 25, 0.8, 20 }, { 10, 0.3, 3 }, { 50, 0.58, 28 }, { 100, 0.29, 28 }, { 3, 1, 3 },
        { 3, 0.34, 1 }, { 1000, 0.999, 999 } };
    const struct resolve_figures figures = sd15();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct resolved_request r;
        struct error err = { 0 };
        reset();
        give_pictures(72, 64, false);
        request.num_inference_steps = cases[i].steps;
        request.strength = cases[i].strength;
        request.strength_given = true;
        request.scheduler = (struct scheduler_choice){ .has_kind = true, .kind = SCHEDULER_EULER };
        if (!resolve_request(&figures, &request, &r, &err)) {
            CHECK(false, "%s", err.message);
            continue;
        }
        CHECK(r.plan->count == cases[i].left, "%d steps at %g: %d", cases[i].steps,
            cases[i].strength, r.plan->count);
        CHECK(r.asked.width == 72 && r.asked.height == 64,
            "the result does not have the size of init_image");
        CHECK(
            r.source && !r.asked.init_image.bytes, "the decoded picture's file is still in memory");
        resolved_request_finish(&r);
    }
    /* Defaults of diffusers: StableDiffusionImg2ImgPipeline 0.8, StableDiffusionInpaintPipeline
     * 1.0. */
    for (int masked = 0; masked < 2; masked++) {
        struct resolved_request r;
        struct error err = { 0 };
        reset();
        give_pictures(64, 64, masked);
        CHECK(resolve_request(&figures, &request, &r, &err), "%s", err.message);
        CHECK_NEAR(r.asked.strength, masked ? 1.0 : 0.8, 0);
        resolved_request_finish(&r);
    }
    reset();
    give_pictures(64, 64, false);
    request.strength = 0.039;
    request.strength_given = true;
    refused(&figures, "strength", "0.039", "1/25 or more");
    give_pictures(64, 64, false);
    request.strength_given = true;
    request.strength = NAN;
    refused(&figures, "strength", "nan", "from 0 to 1");
}

static void pictures_that_do_not_fit_are_refused(void) {
    struct resolve_figures figures = sd15();
    give_pictures(100, 64, false);
    refused(&figures, "init_image", "100x64 px", "multiples of 8 from 64 to 2048");
    give_pictures(64, 56, false);
    refused(&figures, "init_image", "64x56 px", "from 64 to 2048");
    give_pictures(128, 64, false);
    request.width = 64;
    refused(&figures, "init_image", "128x64 px", "64x64 px, which width and height ask for");
    give_pictures(128, 64, true);
    ((uint8_t *)request.mask_image.bytes)[40] ^= 0xff; /* damages its pixel data */
    char value[48];
    snprintf(value, sizeof(value), "a file of %zu bytes", request.mask_image.size);
    refused(&figures, "mask_image", value, "the PNG is damaged");
    figures.inpaints = true;
    refused(&figures, "init_image", "none", "this checkpoint inpaints");
    give_pictures(64, 64, false);
    refused(&figures, "mask_image", "none", "this checkpoint inpaints");
    give_pictures(64, 64, false);
    give_latents(1, 4, 8, 8);
    refused(&figures, "init_image", "a picture", "either init_image or init_latents");
    request.masked_content = MASKED_NOISE;
    refused(&figures, "masked_content", "noise", "without mask_image");
    give_pictures(64, 64, true);
    request.resize_mode = RESIZE_MODE_LATENT;
    refused(&figures, "resize_mode", "latent", "beside mask_image");
    figures.inpaints = false;
    give_pictures(2056, 64, false);
    request.resize_mode = RESIZE_MODE_LATENT;
    refused(&figures, "init_image", "2056x64 px", "at most 2048 px");
    give_pictures(128, 56, false);
    request.resize_mode = RESIZE_MODE_LATENT;
    refused(&figures, "init_image", "128x56 px", "64 to 2048 px");
}

/* A picture whose latents are resized keeps its size, cut to whole latents. */
static void latents_have_a_size_of_their_own(void) {
    const struct resolve_figures figures = sd15();
    struct resolved_request r;
    struct error err = { 0 };
    reset();
    give_pictures(133, 100, false);
    request.resize_mode = RESIZE_MODE_LATENT;
    request.width = 64, request.height = 128;
    if (!resolve_request(&figures, &request, &r, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    CHECK(r.latent_width == 8 && r.latent_height == 16, "%dx%d", r.latent_width, r.latent_height);
    CHECK(r.source->init.width == 128 && r.source->init.height == 96, "%dx%d", r.source->init.width,
        r.source->init.height);
    CHECK(r.source->latent_width == 16 && r.source->latent_height == 12, "its latents");
    CHECK(source_moments(r.source, 4) == 2 * 4 * 16 * 12, "%zu", source_moments(r.source, 4));
    resolved_request_finish(&r);
}

int main(void) {
    struct error err = { 0 };
    if (!tokenizer_create(BUNDLED_TOKENIZER, &tokenizer, &err)) {
        printf("%s\n", err.message);
        return 1;
    }
    scheduler = sd15_scheduler_json();
    reset();
    what_is_open_is_the_models();
    fields_without_effect_are_said();
    variations_without_effect_are_none();
    images_have_seeds_of_their_own();
    an_open_seed_has_32_random_bits();
    variations_share_the_seed();
    encoded_texts_are_finite();
    long_texts_become_chunks();
    brackets_become_weights();
    what_prompts_cannot_say_is_refused();
    texts_change_from_step_to_step();
    a_models_own_limits();
    starting_noise_has_the_models_shape();
    strength_leaves_steps();
    pictures_that_do_not_fit_are_refused();
    latents_have_a_size_of_their_own();
    generate_request_finish(&request);
    tokenizer_destroy(tokenizer);
    json_decref(scheduler);
    return check_done();
}
