/* Compares drawings with adapters on the bundled checkpoint with those of diffusers and LyCORIS,
 * which tests/reference/lora_latents.py recorded. Also compares checkpoints into which adapters
 * were merged with the unmerged checkpoint and the same adapters. Float32 on both sides.
 *
 * usage: lora_latents_test MODEL_FOLDER LORA_FOLDER LATENTS.safetensors */
#include "engine/loop/pipeline.h"
#include "models/checkpoint/safetensors.h"
#include "tests/check.h"
#include "tests/kernels/cpu/level.h"
#include "tests/models/merged.h"
#include "tests/models/small/small_models.h"

#include <stdlib.h>
#include <unistd.h>

#define LATENTS_BOUND 1e-3 /* relative to the latents' norm */
/* The checkpoint's weights are f16, and merged weights are rounded to f16. */
#define MERGED_BOUND 1e-3
#define LATENTS (4 * 16 * 16)

static const char *model_folder, *lora_folder;
static struct safetensors *recording;
static json_t *cases;

static struct pipeline *load(const char *model, const char *loras) {
    struct pipeline_options options = { .model_path = model };
    struct pipeline *pipeline = NULL;
    struct error err = { 0 };
    options.dtype.dtype = DTYPE_F32;
    options.adapters.folder = loras;
    CHECK(pipeline_create(&options, &pipeline, &err), "%s", err.message);
    if (!pipeline)
        exit(check_done());
    return pipeline;
}

static double number(const json_t *item, const char *key) {
    return json_number_value(json_object_get(item, key));
}

/* Makes the request that was recorded; `loras` is the list of one case. */
static void make_request(const json_t *loras, struct generate_request *request) {
    generate_request_init(request);
    request->prompt_count = 1;
    request->prompts = calloc(1, sizeof(*request->prompts));
    request->prompts[0] = strdup("a red house on green hills at sunset");
    request->negative_prompt = strdup("night");
    request->seed = 7;
    request->seed_given = true;
    request->num_inference_steps = 10;
    request->guidance_scale = 3;
    request->latent_output = true;
    request->scheduler.kind = SCHEDULER_DDIM;
    request->scheduler.has_kind = true;
    request->lora_count = (int)json_array_size(loras);
    request->loras_given = true;
    request->loras = calloc(json_array_size(loras) + 1, sizeof(*request->loras));
    for (int i = 0; i < request->lora_count; i++) {
        const json_t *lora = json_array_get(loras, (size_t)i);
        snprintf(request->loras[i].name, sizeof(request->loras[i].name), "%s",
            json_string_value(json_object_get(lora, "name")));
        request->loras[i].weight = number(lora, "weight");
        request->loras[i].text_encoder_weight = number(lora, "text_encoder_weight");
    }
}

/* Draws the case into latents [LATENTS]. */
static bool draw(struct pipeline *pipeline, const json_t *loras, float *latents) {
    struct generate_request request;
    struct resolved_request resolved;
    struct generate_result result = { 0 };
    struct error err = { 0 };
    make_request(loras, &request);
    bool ok = pipeline_resolve(pipeline, &request, &resolved, &err);
    if (ok) {
        ok = pipeline_generate(pipeline, &resolved, NULL, &result, &err);
        resolved_request_finish(&resolved);
    }
    CHECK(ok, "%s", err.message);
    if (ok)
        memcpy(latents, result.latents, LATENTS * sizeof(*latents));
    generate_result_finish(&result);
    generate_request_finish(&request);
    return ok;
}

static void drawings_match(struct pipeline *pipeline) {
    float latents[LATENTS];
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i), *loras = json_object_get(item, "loras");
        char name[32], *shown = json_dumps(loras, JSON_COMPACT);
        snprintf(name, sizeof(name), "latents_%02zu", i);
        if (draw(pipeline, loras, latents)) {
            const double error = relative_error(
                latents, reference_get(recording, name, LATENTS), LATENTS);
            CHECK(error <= LATENTS_BOUND, "%s: %g", shown, error);
            printf("%.1e of the norm (the adapters move it by %.3f): %s\n", error,
                number(item, "distance"), shown);
        }
        free(shown);
    }
}

static void merged_draws_the_same(const char *folder, size_t index) {
    const json_t *loras = json_object_get(json_array_get(cases, index), "loras");
    float latents[LATENTS];
    char out[300], name[32];
    snprintf(out, sizeof(out), "%s/merged-%zu", folder, index);
    snprintf(name, sizeof(name), "latents_%02zu", index);
    make_merged(model_folder, lora_folder, loras, out);
    struct pipeline *merged = load(out, NULL);
    if (draw(merged, NULL, latents)) {
        const double error = relative_error(
            latents, reference_get(recording, name, LATENTS), LATENTS);
        CHECK(error <= MERGED_BOUND, "case %zu: %g", index, error);
        printf("%.1e of the norm: case %zu, merged into the checkpoint\n", error, index);
    }
    pipeline_destroy(merged);
}

int main(int argc, char **argv) {
    char folder[] = "/tmp/latentd-test-XXXXXX", command[300];
    if (level_is_missing())
        return 77; /* skipped */
    if (argc != 4 || !mkdtemp(folder)) {
        fprintf(stderr, "usage: %s MODEL_FOLDER LORA_FOLDER LATENTS.safetensors\n", argv[0]);
        return 2;
    }
    model_folder = argv[1];
    lora_folder = argv[2];
    recording = reference_open(argv[3]);
    const json_t *metadata = safetensors_get_header(recording)->metadata;
    const char *text = json_string_value(json_object_get(metadata, "cases"));
    cases = json_loads(text, 0, NULL);
    struct pipeline *pipeline = load(model_folder, lora_folder);
    drawings_match(pipeline);
    merged_draws_the_same(folder, 6);
    merged_draws_the_same(folder, 9);
    pipeline_destroy(pipeline);
    json_decref(cases);
    safetensors_close(recording);
    snprintf(command, sizeof(command), "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
    return check_done();
}
