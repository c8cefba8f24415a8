/* Whole drawings compared with diffusers: final latents of the bundled checkpoint for every
 * scheduler, spacing, prediction type and field of a request, and one decoded picture.
 * tests/reference/latents.py recorded them. Float32 on both sides.
 *
 * usage: latents_test MODEL_FOLDER LATENTS.safetensors FOLDER_OF_THE_LATER_SCHEDULERS */
#include "base/metrics.h"
#include "engine/loop/pipeline.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"
#include "tests/kernels/cpu/level.h"

#include <stdlib.h>

/* The error that is always allowed, as a fraction of the latents' root mean square. */
#define TOLERANCE 1e-4
/* Multiplies the recorded `moved`, which is the effect of a single rounding at the start, while a
 * drawing rounds at every operation. The worst error seen with AVX2 was 5.5 times `moved` (unipc,
 * v_prediction). */
#define MOVES 8
/* The largest error ever allowed, as a share of the root mean square; the picture still looks the
 * same. Only dpm2_ancestral with Beta sigmas comes near this limit: the last steps of such a
 * drawing turn one rounding of the start into 8 %. Errors seen there: 0.5 % (AVX-512) and 3.5 %
 * (AVX2). */
#define MOST 0.1

static double number(const json_t *item, const char *key) {
    return json_number_value(json_object_get(item, key));
}

/* Returns the sum of the weight files as little-endian 32-bit words. The recording contains this
 * sum, so that a test with other weights is noticed. */
static uint32_t weights_sum(const char *folder) {
    static const char *const names[] = { "text_encoder/model", "unet/diffusion_pytorch_model",
        "vae/diffusion_pytorch_model" };
    uint32_t sum = 0;
    for (int i = 0; i < 3; i++) {
        char path[512];
        unsigned char word[4];
        snprintf(path, sizeof(path), "%s/%s.safetensors", folder, names[i]);
        FILE *file = fopen(path, "rb");
        while (file && fread(word, 1, 4, file) == 4)
            sum += word[0] | (uint32_t)word[1] << 8 | (uint32_t)word[2] << 16 |
                   (uint32_t)word[3] << 24;
        if (file)
            fclose(file);
    }
    return sum;
}

static void parse_scheduler(const json_t *item, struct scheduler_choice *out) {
    struct error err = { 0 };
    json_t *choice = json_copy(json_object_get(item, "options"));
    json_object_set(choice, "name", json_object_get(item, "scheduler"));
    CHECK(scheduler_choice_from_json(choice, out, &err), "%s", err.message);
    json_decref(choice);
}

static void parse_request(const json_t *item, struct generate_request *request) {
    generate_request_init(request);
    const json_t *prompts = json_object_get(item, "prompts");
    request->prompt_count = (int)json_array_size(prompts);
    request->prompts = calloc(json_array_size(prompts), sizeof(*request->prompts));
    for (size_t i = 0; i < json_array_size(prompts); i++)
        request->prompts[i] = strdup(json_string_value(json_array_get(prompts, i)));
    request->negative_prompt = strdup(json_string_value(json_object_get(item, "negative_prompt")));
    request->seed = (uint64_t)number(item, "seed");
    request->seed_given = true;
    request->num_images = (int)number(item, "num_images");
    request->num_inference_steps = (int)number(item, "steps");
    request->guidance_scale = number(item, "guidance_scale");
    request->guidance_rescale = number(item, "guidance_rescale");
    request->clip_skip = (int)number(item, "clip_skip");
    request->width = (int)number(item, "width");
    request->height = (int)number(item, "height");
    request->guidance_scale_given = request->guidance_rescale_given = true;
    request->num_inference_steps_given = request->clip_skip_given = true;
    request->latent_output = true;
    const char *long_prompt = json_string_value(json_object_get(item, "long_prompt"));
    CHECK(!long_prompt || field_from_text(&generate_fields[GENERATE_long_prompt].field, "",
                              long_prompt, request, NULL),
        "long_prompt");
    parse_scheduler(item, &request->scheduler);
    if (json_is_true(json_object_get(item, "init"))) {
        struct noise_generator generator;
        request->init_latents = (struct init_latents){ calloc(4 * 16 * 16, sizeof(float)), 1, 4, 16,
            16 };
        noise_init(&generator, RNG_CPU, 99);
        noise_draw(&generator, request->init_latents.values, 4 * 16 * 16);
    }
}

/* Returns the largest difference, or infinity if the shapes differ or a value is not finite. */
static double difference(const struct generate_result *result, const struct tensor *expected) {
    if (expected->rank != 4 || expected->shape[0] != result->image_count ||
        expected->shape[1] != result->latent_channels ||
        expected->shape[2] != result->latent_height || expected->shape[3] != result->latent_width)
        return INFINITY;
    const float *values = expected->data;
    double largest = 0;
    for (int64_t i = 0; i < tensor_elements(expected); i++) {
        double d = fabs((double)result->latents[i] - values[i]);
        if (!(d <= largest))
            largest = isnan(d) ? INFINITY : d;
    }
    return largest;
}

/* Returns the allowed error of a latent: TOLERANCE of the root mean square, or MOVES times the
 * distance that diffusers' own latents move when their start moves by one rounding. It is never
 * more than MOST of the root mean square. */
static double allowed(const json_t *item, const struct tensor *expected) {
    const float *values = expected->data;
    double squares = 0;
    for (int64_t i = 0; i < tensor_elements(expected); i++)
        squares += (double)values[i] * values[i];
    const double mean = sqrt(squares / (double)tensor_elements(expected));
    return fmin(fmax(TOLERANCE * mean, MOVES * number(item, "moved")), MOST * mean);
}

static bool recorded(
    struct safetensors *file, const char *name, struct tensor *out, struct error *err) {
    ptrdiff_t index = safetensors_find(file, name);
    return index >= 0 ? safetensors_view(file, (size_t)index, out, err)
                      : error_set(err, ERROR_NOT_FOUND, "%s is not recorded", name);
}

/* Resolves the request and draws it. */
static bool generate(struct pipeline *pipeline, const struct generate_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    struct resolved_request resolved;
    *result = (struct generate_result){ 0 };
    if (!pipeline_resolve(pipeline, request, &resolved, err))
        return false;
    bool ok = pipeline_generate(pipeline, &resolved, hooks, result, err);
    resolved_request_finish(&resolved);
    return ok;
}

static void case_matches_diffusers(
    struct pipeline *pipeline, struct safetensors *file, size_t index, const json_t *item) {
    struct generate_request request;
    struct resolved_request resolved = { 0 };
    struct generate_result result = { 0 };
    struct tensor expected;
    struct error err = { 0 };
    char name[32];
    snprintf(name, sizeof(name), "latents_%02zu", index);
    parse_request(item, &request);
    bool ok = recorded(file, name, &expected, &err) &&
              pipeline_resolve(pipeline, &request, &resolved, &err) &&
              pipeline_generate(pipeline, &resolved, NULL, &result, &err);
    CHECK(ok, "%s: %s", name, err.message);
    if (ok) {
        double largest = difference(&result, &expected), bound = allowed(item, &expected);
        char *options = json_dumps(json_object_get(item, "options"), JSON_COMPACT);
        printf("%s %s %s %d steps: largest difference %.2g of %.2g; diffusers moves by %.2g\n",
            name, scheduler_kind_name(request.scheduler.kind), options, request.num_inference_steps,
            largest, bound, number(item, "moved"));
        CHECK(largest <= bound, "%s: %g, at most %g", name, largest, bound);
        CHECK(request.prompt_count == 1 || resolved.warning_count == 1,
            "a prompt that is cut has no warning");
        free(options);
    }
    generate_result_finish(&result);
    resolved_request_finish(&resolved);
    generate_request_finish(&request);
}

/* Where a pixel is nearly halfway between two levels, diffusers may round it the other way. This is
 * rare, and the difference is one level. */
static void picture_matches_diffusers(
    struct pipeline *pipeline, struct safetensors *file, const json_t *item) {
    struct generate_request request;
    struct generate_result result = { 0 };
    struct error err = { 0 };
    ptrdiff_t index = safetensors_find(file, "picture");
    const struct safetensors_entry *entry = &safetensors_get_header(file)->entries[index];
    parse_request(item, &request);
    request.latent_output = false;
    bool ok = generate(pipeline, &request, NULL, &result, &err);
    CHECK(ok && result.images, "%s", err.message);
    if (!ok)
        return;
    CHECK(entry->shape[0] == result.height && entry->shape[1] == result.width, "%dx%d",
        result.width, result.height);
    struct tensor expected;
    ok = recorded(file, "picture", &expected, &err);
    CHECK(ok, "%s", err.message);
    int off = 0, worst = 0, count = result.width * result.height * 3;
    for (int i = 0; ok && i < count; i++) {
        int d = abs((int)((const float *)expected.data)[i] - result.images[0][i]);
        off += d != 0;
        worst = d > worst ? d : worst;
    }
    printf("picture: %d of %d values differ, by at most %d of 255\n", off, count, worst);
    CHECK(worst <= 1 && off * 200 < count, "%d values, worst %d", off, worst);
    CHECK(result.seeds[0] == request.seed && result.timings.steps > 0, "seed %llu, %d steps",
        (unsigned long long)result.seeds[0], result.timings.steps);
    generate_result_finish(&result);
    generate_request_finish(&request);
}

/* The same request gives the same bits alone and with others. */
static void batch_mates_do_not_change_latents(struct pipeline *pipeline, const json_t *item) {
    struct generate_request request;
    struct generate_result alone = { 0 }, together = { 0 };
    struct error err = { 0 };
    parse_request(item, &request);
    request.num_inference_steps = 3;
    request.num_images = 6; /* more than fit in one UNet call */
    CHECK(generate(pipeline, &request, NULL, &together, &err), "%s", err.message);
    size_t bytes = sizeof(float) * (size_t)(together.latent_channels * together.latent_height *
                                            together.latent_width);
    request.num_images = 1;
    for (int i = 0; i < together.image_count; i++) {
        request.seed = together.seeds[i];
        CHECK(generate(pipeline, &request, NULL, &alone, &err), "%s", err.message);
        CHECK(memcmp(alone.latents, (const char *)together.latents + (size_t)i * bytes, bytes) == 0,
            "image %d of %d", i, together.image_count);
        generate_result_finish(&alone);
    }
    printf("%d images alone and in a batch: the same bits\n", together.image_count);
    generate_result_finish(&together);
    generate_request_finish(&request);
}

static double counted(const char *series) {
    size_t size;
    char *all = metrics_render(NULL, &size), *at = all ? strstr(all, series) : NULL;
    while (at && at != all && at[-1] != '\n')
        at = strstr(at + 1, series);
    const double value = at ? strtod(at + strlen(series), NULL) : NAN;
    free(all);
    return value;
}

/* Draws with texts that are not in the cache yet, then with the same texts from the cache. */
static void kept_texts_change_no_latents(struct pipeline *pipeline, const json_t *item) {
    struct generate_request request;
    struct generate_result results[2];
    struct error err = { 0 };
    parse_request(item, &request);
    request.num_inference_steps = 3;
    free(request.prompts[0]);
    request.prompts[0] = strdup("a prompt that nobody has had before");
    free(request.negative_prompt);
    request.negative_prompt = strdup("nor this one");
    for (int i = 0; i < 2; i++) {
        const double hits = counted("latentd_text_cache_hits_total ");
        const double misses = counted("latentd_text_cache_misses_total ");
        CHECK(generate(pipeline, &request, NULL, &results[i], &err), "%s", err.message);
        CHECK_NEAR(counted("latentd_text_cache_hits_total ") - hits, 2.0 * i, 0);
        CHECK_NEAR(counted("latentd_text_cache_misses_total ") - misses, 2.0 - 2.0 * i, 0);
    }
    const struct generate_result *r = &results[0];
    const size_t bytes = sizeof(float) *
                         (size_t)(r->latent_channels * r->latent_height * r->latent_width);
    CHECK(memcmp(r->latents, results[1].latents, bytes) == 0,
        "texts from the cache draw other latents");
    printf("two texts encoded and from the cache: the same bits\n");
    generate_result_finish(&results[0]);
    generate_result_finish(&results[1]);
    generate_request_finish(&request);
}

static bool stop_at_two(int step, int steps, void *user) {
    (void)steps;
    *(int *)user = step;
    return step < 2;
}

static void refusals_and_cancels(struct pipeline *pipeline, const json_t *item) {
    struct generate_request request;
    struct generate_result result = { 0 };
    struct error err = { 0 };
    int reached = 0;
    parse_request(item, &request);
    const struct generate_hooks hooks = { stop_at_two, &reached };
    CHECK(!generate(pipeline, &request, &hooks, &result, &err), "drawn although cancelled");
    CHECK(err.code == ERROR_CANCELLED && reached == 2, "%s", err.message);
    CHECK(!result.latents, "a failed request has latents");
    request.timeout_s = 1e-9;
    CHECK(!generate(pipeline, &request, NULL, &result, &err),
        "a request with a time limit of a nanosecond is drawn");
    CHECK(err.code == ERROR_TIMEOUT, "%s", err.message);
    request.timeout_s = 0;
    request.clip_skip = 31;
    CHECK(!generate(pipeline, &request, NULL, &result, &err),
        "a clip_skip over the number of layers is accepted");
    CHECK_STRING(err.param, "clip_skip");
    request.clip_skip = 0;
    request.init_latents = (struct init_latents){ calloc(4 * 16 * 16, sizeof(float)), 1, 4, 16,
        16 };
    request.init_latents.values[5] = NAN;
    CHECK(
        !generate(pipeline, &request, NULL, &result, &err), "init_latents with a NaN are accepted");
    CHECK_STRING(err.param, "init_latents");
    request.init_latents.values[5] = INFINITY;
    CHECK(!generate(pipeline, &request, NULL, &result, &err),
        "init_latents with an infinity are accepted");
    generate_request_finish(&request);
}

/* Opens a recording and returns its cases, a new reference. Returns NULL if the file is missing. */
static json_t *open_cases(const char *path, const char *model, struct safetensors **file) {
    struct error err = { 0 };
    if (!safetensors_open(path, file, &err)) {
        CHECK(false, "%s", err.message);
        return NULL;
    }
    const json_t *metadata = safetensors_get_header(*file)->metadata;
    const char *sum = json_string_value(json_object_get(metadata, "weights_sum"));
    CHECK(strtoul(sum, NULL, 10) == weights_sum(model),
        "the model's weights are not those of the recordings: run tests/reference/latents.py "
        "again");
    return json_loads(json_string_value(json_object_get(metadata, "cases")), 0, NULL);
}

/* Compares at most `most` cases of each later scheduler. Each of these has a file of its own, while
 * the first three schedulers share one recording. */
static void later_schedulers_match_diffusers(
    struct pipeline *pipeline, const char *folder, const char *model, size_t most) {
    for (int kind = SCHEDULER_PNDM + 1; kind < SCHEDULER_COUNT; kind++) {
        char path[512];
        struct safetensors *file = NULL;
        size_t index;
        json_t *item;
        snprintf(path, sizeof(path), "%s/%s.safetensors", folder,
            scheduler_kind_name((enum scheduler_kind)kind));
        json_t *cases = open_cases(path, model, &file);
        CHECK(json_array_size(cases) >= 4, "%s: %zu cases", path, json_array_size(cases));
        json_array_foreach(cases, index, item) if (index < most)
            case_matches_diffusers(pipeline, file, index, item);
        json_decref(cases);
        safetensors_close(file);
    }
}

/* usage: latents_test MODEL RECORDED LATER [MOST_CASES_OF_A_LATER_SCHEDULER] */
int main(int argc, char **argv) {
    struct error err = { 0 };
    struct safetensors *file = NULL;
    struct pipeline *pipeline = NULL;
    if (argc != 4 && argc != 5)
        return 2;
    if (level_is_missing())
        return 77; /* skipped */
    const struct pipeline_options options = { .model_path = argv[1],
        .dtype = { .dtype = DTYPE_F32 } };
    json_t *cases = open_cases(argv[2], argv[1], &file), *item;
    if (!cases || !pipeline_create(&options, &pipeline, &err)) {
        printf("%s\n", err.message);
        return 1;
    }
    size_t index;
    json_array_foreach(cases, index, item) case_matches_diffusers(pipeline, file, index, item);
    CHECK(index >= 30, "%zu cases", index);
    later_schedulers_match_diffusers(
        pipeline, argv[3], argv[1], argc == 5 ? strtoul(argv[4], NULL, 10) : SIZE_MAX);
    item = json_array_get(cases, 4); /* pndm, leading, epsilon: the checkpoint's defaults */
    picture_matches_diffusers(pipeline, file, item);
    batch_mates_do_not_change_latents(pipeline, item);
    kept_texts_change_no_latents(pipeline, item);
    refusals_and_cancels(pipeline, item);
    json_decref(cases);
    pipeline_destroy(pipeline);
    safetensors_close(file);
    return check_done();
}
