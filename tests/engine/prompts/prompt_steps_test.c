/* Pictures whose texts change between evaluations, or are several at a time, are compared with what
 * AUTOMATIC1111's rules and diffusers draw (tests/reference/prompt_steps.py). Float32 on both
 * sides. Then the same request draws more pictures, and the first one keeps its bits.
 *
 * usage: prompt_steps_test MODEL_FOLDER LATENTS.safetensors */
#include "engine/loop/pipeline.h"
#include "tests/check.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>

#define BOUND 1e-3 /* of the norm */
#define LATENTS (4 * 16 * 16)

static struct safetensors *recording;
static struct pipeline *pipeline;

static const char *text_of(const json_t *item, const char *key) {
    return json_string_value(json_object_get(item, key));
}

static double number_of(const json_t *item, const char *key) {
    return json_number_value(json_object_get(item, key));
}

/* Draws `images` pictures of the case. *rows is the rows of one of them. The caller finishes the
 * result. */
static bool draw(const json_t *item, int images, struct generate_result *result, int *rows) {
    struct generate_request request;
    struct resolved_request resolved;
    struct error err = { 0 };
    char *prompt = strdup(text_of(item, "prompt"));
    generate_request_init(&request);
    request.prompts = &prompt;
    request.prompt_count = 1;
    request.negative_prompt = strdup(text_of(item, "negative"));
    request.prompt_syntax = PROMPT_SYNTAX_A1111;
    request.seed = (uint64_t)number_of(item, "seed");
    request.seed_given = true;
    request.num_images = images;
    request.num_inference_steps = (int)number_of(item, "steps");
    request.guidance_scale = number_of(item, "guidance_scale");
    request.guidance_rescale = number_of(item, "guidance_rescale");
    request.scheduler.has_kind = true;
    request.latent_output = true;
    bool ok = scheduler_kind_from_name(text_of(item, "scheduler"), &request.scheduler.kind) &&
              pipeline_resolve(pipeline, &request, &resolved, &err);
    if (ok) {
        *rows = resolved_request_rows(&resolved, 0);
        ok = pipeline_generate(pipeline, &resolved, NULL, result, &err);
        resolved_request_finish(&resolved);
    }
    CHECK(ok, "%s: %s", prompt, err.message);
    free(request.negative_prompt);
    free(prompt);
    return ok;
}

static void compare(const json_t *item, size_t index) {
    struct generate_result one = { 0 }, three = { 0 };
    char name[32];
    int rows = 0;
    snprintf(name, sizeof(name), "latents_%02zu", index);
    if (draw(item, 1, &one, &rows)) {
        const double error = relative_error(
            one.latents, reference_get(recording, name, LATENTS), LATENTS);
        CHECK(error <= BOUND, "%s: %g", name, error);
        printf("%2zu %.1e of the norm, %d rows, %s: %.70s\n", index, error, rows,
            text_of(item, "scheduler"), text_of(item, "prompt"));
        if (draw(item, 3, &three, &rows))
            CHECK(memcmp(one.latents, three.latents, LATENTS * sizeof(float)) == 0,
                "%s draws another picture together with two more", name);
    }
    generate_result_finish(&one);
    generate_result_finish(&three);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL_FOLDER LATENTS.safetensors\n", argv[0]);
        return 2;
    }
    const struct pipeline_options options = { .model_path = argv[1],
        .dtype = { .dtype = DTYPE_F32 } };
    struct error err = { 0 };
    recording = reference_open(argv[2]);
    if (!pipeline_create(&options, &pipeline, &err)) {
        CHECK(false, "%s", err.message);
        return check_done();
    }
    json_t *cases = json_loads(
        text_of(safetensors_get_header(recording)->metadata, "cases"), 0, NULL);
    CHECK(json_array_size(cases) > 0, "no cases");
    for (size_t i = 0; i < json_array_size(cases); i++)
        compare(json_array_get(cases, i), i);
    pipeline_destroy(pipeline);
    json_decref(cases);
    safetensors_close(recording);
    return check_done();
}
