/* Starting noise from files, for models with another VAE than SD-1.5's. A model's own latents load
 * back and give the same bits; latents of another model are refused, with both shapes in the
 * message. If the code assumed SD-1.5's sizes, AddressSanitizer would report the overrun. */
#include "command/latents_file.h"
#include "engine/loop/pipeline.h"
#include "tests/check.h"
#include "tests/models/small/small_folder.h"

#include <stdlib.h>
#include <unistd.h>

static char folder[] = "/tmp/latents_file_test.XXXXXX";

static const struct small_folder models[] = {
    { .latent_channels = 4, .vae_blocks = 4, .sample_size = 8 },  /* 8 px a latent */
    { .latent_channels = 4, .vae_blocks = 3, .sample_size = 16 }, /* 4 px */
    { .latent_channels = 8, .vae_blocks = 4, .sample_size = 8 },
    { .latent_channels = 16, .vae_blocks = 2, .sample_size = 32 }, /* 2 px */
};
#define MODELS 4

static struct pipeline *open_model(int index) {
    struct pipeline *pipeline = NULL;
    struct error err = { 0 };
    char path[64];
    snprintf(path, sizeof(path), "%s/%d", folder, index);
    small_folder_write(path, &models[index]);
    const struct pipeline_options options = { .model_path = path, .dtype = { .dtype = DTYPE_F32 } };
    bool ok = pipeline_create(&options, &pipeline, &err);
    small_folder_remove(path);
    if (!ok) {
        CHECK(ok, "%s", err.message);
        exit(check_done());
    }
    return pipeline;
}

/* Draws one image in a few steps, with noise from a file or from the seed. The caller finishes the
 * result. */
static bool draw(struct pipeline *pipeline, const char *from, int width,
    struct generate_result *result, struct error *err) {
    char prompt[] = "a boat", *prompts[1] = { prompt };
    struct generate_request request;
    struct resolved_request resolved;
    generate_request_init(&request);
    request.prompts = prompts;
    request.prompt_count = 1;
    request.num_inference_steps = 2;
    request.seed_given = true;
    request.width = width;
    *result = (struct generate_result){ 0 };
    bool ok = (!from || latents_load(from, &request.init_latents, err)) &&
              pipeline_resolve(pipeline, &request, &resolved, err);
    free(request.init_latents.values);
    if (!ok)
        return false;
    ok = pipeline_generate(pipeline, &resolved, NULL, result, err);
    resolved_request_finish(&resolved);
    return ok;
}

static void file_of(int index, char *out, size_t size) {
    snprintf(out, size, "%s/%d.safetensors", folder, index);
}

static void a_models_own_latents_load_back(struct pipeline *pipeline, int index) {
    const struct small_folder *m = &models[index];
    int side = m->sample_size, scale = 1 << (m->vae_blocks - 1);
    struct generate_result made, from_file, from_seed;
    struct error err = { 0 };
    char path[64];
    file_of(index, path, sizeof(path));
    bool ok = draw(pipeline, NULL, 0, &made, &err);
    CHECK(ok, "%s", err.message);
    CHECK(made.latent_channels == m->latent_channels && made.latent_width == side, "[%d][%d][%d]",
        made.latent_channels, made.latent_height, made.latent_width);
    CHECK(made.width == side * scale, "%d px", made.width);
    /* The seed's torch.randn noise, saved and loaded, must draw what the seed itself draws. */
    struct noise_generator generator;
    float *kept = made.latents;
    int64_t count = (int64_t)m->latent_channels * side * side;
    made.latents = malloc(sizeof(float) * (size_t)count);
    noise_init(&generator, RNG_CPU, 0);
    noise_draw(&generator, made.latents, count);
    ok = latents_save(path, &made, &err);
    CHECK(ok, "%s", err.message);
    free(made.latents);
    made.latents = kept;
    ok = draw(pipeline, path, 0, &from_file, &err);
    CHECK(ok, "%s", err.message);
    CHECK(ok && memcmp(from_file.latents, made.latents, sizeof(float) * (size_t)count) == 0,
        "the file's noise draws other latents than the seed's");
    generate_result_finish(&from_file);
    /* The final latents can be loaded too, as `generate --save-latents` writes them. */
    ok = latents_save(path, &made, &err) && draw(pipeline, path, side * scale, &from_seed, &err);
    CHECK(ok, "%s", err.message);
    printf("[1][%d][%d][%d] at %d px: from the file and from the seed, the same bits\n",
        m->latent_channels, side, side, side * scale);
    generate_result_finish(&from_seed);
    generate_result_finish(&made);
}

/* The expected shape in the message has the file's height, if a picture can be that high, and this
 * model's width. */
static void anothers_are_refused(struct pipeline *pipeline, int index, int theirs) {
    const struct small_folder *m = &models[index], *t = &models[theirs];
    int scale = 1 << (m->vae_blocks - 1);
    struct generate_result result;
    struct error err = { 0 };
    char path[64], shape[64], wanted[96];
    file_of(theirs, path, sizeof(path));
    snprintf(shape, sizeof(shape), "[1][%d][%d][%d]", t->latent_channels, t->sample_size,
        t->sample_size);
    if (t->sample_size * scale >= 64)
        snprintf(wanted, sizeof(wanted), "[1][%d][%d][%d]:", m->latent_channels, t->sample_size,
            m->sample_size);
    else
        snprintf(wanted, sizeof(wanted), "[1][%d][height/%d][width/%d] with sides of 64 to 2048",
            m->latent_channels, scale, scale);
    bool ok = draw(pipeline, path, m->sample_size * scale, &result, &err);
    CHECK(!ok, "model %d takes those of model %d", index, theirs);
    CHECK_STRING(err.param, "init_latents");
    CHECK(strcmp(err.value, shape) == 0, "%s", err.value);
    CHECK_CONTAINS(err.allowed, wanted);
    printf("%s\n", err.message);
    generate_result_finish(&result);
}

int main(void) {
    struct pipeline *pipelines[MODELS];
    if (!mkdtemp(folder))
        return 1;
    for (int i = 0; i < MODELS; i++) {
        pipelines[i] = open_model(i);
        a_models_own_latents_load_back(pipelines[i], i);
    }
    for (int i = 0; i < MODELS; i++)
        for (int k = 0; k < MODELS; k++)
            if (i != k)
                anothers_are_refused(pipelines[i], i, k);
    for (int i = 0; i < MODELS; i++) {
        char path[64];
        file_of(i, path, sizeof(path));
        unlink(path);
        pipeline_destroy(pipelines[i]);
    }
    rmdir(folder);
    return check_done();
}
