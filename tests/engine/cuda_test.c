/* Whole pictures drawn on the emulated CUDA device, compared with the CPU's latents and pixels. The
 * bits are the same whether steps are replayed or launched call by call, in the first request or a
 * later one, alone or with other requests. A request that runs out of memory fails without harm to
 * others, and the loss of the device is reported.
 *
 * usage: cuda_test MODEL_FOLDER quick|full */
#include "engine/loop/engine.h"
#include "engine/loop/pipeline.h"
#include "tests/check.h"
#include "tests/cuda-emulator/emulator.h"
#include "tests/engine/adapters/adapter_rig.h"
#include "tests/engine/drawn_together.h"
#include "tests/engine/open_pipeline.h"
#include "tests/models/small/small_folder.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include <stdlib.h>
#include <unistd.h>

#define SIZE_PX 64
#define STEPS 2
/* For f32 on both devices: they add in a different order. */
#define LATENTS_TOLERANCE 1e-4
#define PIXELS_TOLERANCE 1
/* For bf16 activations against f32: one model call has an error of about 1e-2, and guidance
 * enlarges it. */
#define BF16_TOLERANCE 7e-2
#define BF16_PIXELS_TOLERANCE 40

static const char *model;

static struct pipeline *open_on(enum device_kind kind, enum dtype dtype, bool no_recordings) {
    const struct pipeline_options options = {
        .model_path = model,
        .device = { .kind = kind },
        .dtype = { .dtype = dtype },
        .no_recordings = no_recordings,
    };
    return open_pipeline(&options);
}

/* prompts: an array of one prompt; the request borrows it. */
static void fill_request(struct generate_request *request, char **prompts, int px, int steps) {
    generate_request_init(request);
    request->prompts = prompts;
    request->prompt_count = 1;
    request->width = request->height = px;
    request->num_inference_steps = steps;
    request->scheduler.has_kind = true;
    request->scheduler.kind = SCHEDULER_DDIM;
    /* With eta, noise is drawn in every step. */
    scheduler_choose(&request->scheduler, OPTION_ETA, 0.5);
    request->guidance_rescale = 0.3;
    request->seed = 1;
    request->seed_given = true;
    request->vae_tiling = CHOICE_OFF; /* the large picture must not be drawn in tiles */
}

static bool try_to_draw(struct pipeline *pipeline, int px, int steps,
    struct generate_result *result, struct error *err) {
    char prompt[] = "a red house by the sea", *prompts[1] = { prompt };
    struct generate_request request;
    fill_request(&request, prompts, px, steps);
    struct resolved_request resolved;
    *err = (struct error){ 0 };
    if (!pipeline_resolve(pipeline, &request, &resolved, err))
        return false;
    bool ok = pipeline_generate(pipeline, &resolved, NULL, result, err);
    resolved_request_finish(&resolved);
    return ok;
}

/* Ends the program if no picture is drawn, because there would be nothing to compare. */
static void draw(struct pipeline *pipeline, int px, int steps, struct generate_result *result) {
    struct error err;
    if (!try_to_draw(pipeline, px, steps, result, &err)) {
        CHECK(false, "%s", err.message);
        exit(check_done());
    }
}

/* Draws after a dry run that announces the operations to the tuner. Checks that drawing uses
 * exactly those operations, so that `latentd tune` measures what is used. */
static void note_and_draw(
    struct pipeline *pipeline, int px, int steps, struct generate_result *result) {
    char prompt[] = "", *prompts[1] = { prompt };
    struct generate_request request;
    struct error err = { 0 };
    const struct tuner *tuner = kernels_cuda(0, &err)->tuner;
    fill_request(&request, prompts, px, 1);
    CHECK(pipeline_note(pipeline, &request, &err), "%s", err.message);
    const int noted = tuner->problem_count();
    draw(pipeline, px, steps, result);
    for (int i = noted; i < tuner->problem_count(); i++) {
        char key[TUNER_KEY_BYTES];
        tuner->problem_key(i, key);
        CHECK(false, "the call %s is not in the list of operations", key);
    }
    CHECK(noted > 50, "%d operations were noted", noted);
}

static int64_t latent_count(const struct generate_result *r) {
    return (int64_t)r->latent_channels * r->latent_height * r->latent_width;
}

static void compare(const struct generate_result *want, const struct generate_result *got,
    double latents_tolerance, int pixels_tolerance, const char *what) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < latent_count(want); i++) {
        double d = (double)got->latents[i] - (double)want->latents[i];
        difference += d * d;
        size += (double)want->latents[i] * (double)want->latents[i];
    }
    int worst = 0;
    for (int i = 0; i < want->width * want->height * 3; i++) {
        int d = abs(want->images[0][i] - got->images[0][i]);
        worst = d > worst ? d : worst;
    }
    printf(
        "%s: latents differ by %.3g, pixels by at most %d\n", what, sqrt(difference / size), worst);
    CHECK(sqrt(difference / size) <= latents_tolerance, "%s: allowed %g", what, latents_tolerance);
    CHECK(worst <= pixels_tolerance, "%s: allowed %d", what, pixels_tolerance);
}

static bool same_bits(const struct generate_result *a, const struct generate_result *b) {
    return memcmp(a->latents, b->latents, (size_t)latent_count(a) * sizeof(float)) == 0 &&
           memcmp(a->images[0], b->images[0], (size_t)(a->width * a->height * 3)) == 0;
}

/* In f32, the picture drawn with CUDA matches that drawn on the CPU. The request is drawn with CUDA
 * a second time, when all of its steps are replayed from recordings. */
static void f32_matches_the_cpu(void) {
    struct generate_result cpu, cuda, again;
    struct device_figures figures;
    struct pipeline *p = open_on(DEVICE_CPU, DTYPE_F32, false);
    draw(p, SIZE_PX, STEPS, &cpu);
    CHECK(!pipeline_get_figures(p, &figures), "a pipeline on the CPU has device figures");
    pipeline_destroy(p);

    p = open_on(DEVICE_CUDA, DTYPE_F32, false);
    note_and_draw(p, SIZE_PX, STEPS, &cuda);
    compare(&cpu, &cuda, LATENTS_TOLERANCE, PIXELS_TOLERANCE, "f32 on cuda");
    CHECK(pipeline_get_figures(p, &figures) && figures.weight_bytes > 0 &&
              figures.activation_bytes > 0 && figures.memory_free < figures.memory_total,
        "%lld bytes of weights", (long long)figures.weight_bytes);
    draw(p, SIZE_PX, STEPS, &again);
    CHECK(same_bits(&cuda, &again), "the same request draws other bits the second time");
    pipeline_destroy(p);
    generate_result_finish(&cpu);
    generate_result_finish(&cuda);
    generate_result_finish(&again);
}

/* bf16 is the default and uses tensor cores. It is drawn with recordings and without. */
static void bf16_matches_the_cpu_with_and_without_recordings(void) {
    struct generate_result cpu, bf16, plain;
    struct pipeline *p = open_on(DEVICE_CPU, DTYPE_F32, false);
    draw(p, SIZE_PX, STEPS, &cpu);
    pipeline_destroy(p);
    p = open_on(DEVICE_CUDA, DTYPE_BF16, false);
    note_and_draw(p, SIZE_PX, STEPS, &bf16);
    compare(&cpu, &bf16, BF16_TOLERANCE, BF16_PIXELS_TOLERANCE, "bf16 on cuda");
    pipeline_destroy(p);
    p = open_on(DEVICE_CUDA, DTYPE_BF16, true);
    draw(p, SIZE_PX, STEPS, &plain);
    CHECK(same_bits(&bf16, &plain),
        "launching each kernel by itself instead of a graph changes bits");
    pipeline_destroy(p);
    generate_result_finish(&cpu);
    generate_result_finish(&bf16);
    generate_result_finish(&plain);
}

/* Requests that share calls, and join and leave while others are drawn, draw the same bits as each
 * alone. */
static void drawn_together(void) {
    static const struct small_folder small = {
        .latent_channels = 4, .vae_blocks = 4, .sample_size = 8
    };
    static const int max_rows[] = { 5, 16, 0 };
    char path[128];
    struct rig rig; /* only for its adapters: its checkpoint has the same UNet and text encoder */
    rig_make(&rig, kernels_cpu(), DTYPE_F32);
    rig_open(&rig, 0, false);
    rig_put(&rig, "a", RIG_LORA, 4, "", 1);
    rig_put(&rig, "b", RIG_LOCON, 8, "", 2);
    rig_put(&rig, "c", RIG_LOHA, 2, "attn", 3);
    snprintf(path, sizeof(path), "%s/small", rig.root);
    small_folder_write(path, &small);
    const struct drawn_together four = { .model = path,
        .loras = rig.loras,
        .device = DEVICE_CUDA,
        .dtype = DTYPE_BF16,
        .requests = 4,
        .latents_only = true,
        .seed = 3 }; /* so that requests share calls, and one has edited texts and AND */
    CHECK(drawn_together_same_bits(&four, max_rows, 2),
        "some request is drawn differently together with others: see above");
    rig_remove(&rig);
}

/* Loads an adapter, unloads it while a set uses it, and releases the set on this thread. The engine
 * has nothing to do, and must free the memory that is left to it. */
static void an_idle_engine_frees_adapters(void) {
    char folder[512];
    snprintf(folder, sizeof(folder), "%s/loras", model);
    const struct engine_options options = {
        .pipeline = { .model_path = model,
            .device = { .kind = DEVICE_CUDA },
            .dtype = { .dtype = DTYPE_BF16 },
            .adapters = { .folder = folder } },
        .queue_max = 1,
    };
    struct engine *engine;
    struct error err = { 0 };
    if (!engine_create(&options, &engine, &err)) {
        CHECK(false, "%s", err.message);
        return;
    }
    while (engine_get_state(engine, &err) == ENGINE_LOADING)
        usleep(1000);
    CHECK(engine_get_state(engine, &err) == ENGINE_READY, "%s", err.message);
    struct adapters *adapters = engine_get_adapters(engine);
    struct pipeline_info info;
    CHECK(engine_get_info(engine, &info), "no model");
    const struct device_memory *memory = info.kernels->memory;
    const size_t before = memory->used(MEMORY_WEIGHTS);
    const struct lora_choice choice = { .name = "snow", .weight = 1, .text_encoder_weight = 1 };
    struct adapter_set *set = NULL;
    CHECK(adapters_resolve(adapters, &choice, 1, true, &set, &err), "%s", err.message);
    const size_t loaded = memory->used(MEMORY_WEIGHTS);
    CHECK(adapters_unload(adapters, "snow", &err), "%s", err.message);
    CHECK(memory->used(MEMORY_WEIGHTS) == loaded && loaded > before,
        "%zu bytes in use, %zu when it was loaded, %zu before", memory->used(MEMORY_WEIGHTS),
        loaded, before);
    adapter_set_release(set);
    for (int ms = 0; ms < 60000 && memory->used(MEMORY_WEIGHTS) > before; ms++)
        usleep(1000);
    const size_t left = memory->used(MEMORY_WEIGHTS);
    printf("adapters: %zu bytes loaded, %zu left\n", loaded - before, left - before);
    CHECK(left == before, "the engine freed nothing");
    engine_destroy(engine, true);
}

static void faults(void) {
    struct error err;
    struct generate_result result;
    struct pipeline *p = open_on(DEVICE_CUDA, DTYPE_BF16, false);
    size_t total = emulator_memory_used() + ((size_t)1 << 20);
    emulator_set_memory(total);
    CHECK(!try_to_draw(p, 256, 1, &result, &err) && err.code == ERROR_NO_MEMORY, "%s", err.message);
    CHECK_CONTAINS(err.message, "256x256");
    emulator_set_memory((size_t)4 << 30);
    emulator_fail("cudaMalloc", 1, cudaErrorMemoryAllocation, false);
    CHECK(!try_to_draw(p, 256, 1, &result, &err) && err.code == ERROR_NO_MEMORY, "%s", err.message);
    emulator_fail_nothing();
    draw(p, SIZE_PX, 1, &result);
    generate_result_finish(&result);
    pipeline_destroy(p);
}

/* The memory of a lost device is not freed; it is released with the process and is not a leak. */
static void loss(void) {
    struct error err;
    struct generate_result result;
#ifdef __SANITIZE_ADDRESS__
    __lsan_do_leak_check(); /* the last leak check, for all earlier tests */
#endif
    struct pipeline *p = open_on(DEVICE_CUDA, DTYPE_BF16, false);
    draw(p, SIZE_PX, 1, &result);
    generate_result_finish(&result);
    emulator_fail("cudaStreamSynchronize", 2, cudaErrorIllegalAddress, true);
    CHECK(!try_to_draw(p, SIZE_PX, 1, &result, &err) && err.code == ERROR_DEVICE_LOST, "%s",
        err.message);
    CHECK(!try_to_draw(p, SIZE_PX, 1, &result, &err) && err.code == ERROR_DEVICE_LOST, "%s",
        err.message);
    CHECK_CONTAINS(err.message, "the GPU is lost to this process");
    pipeline_destroy(p);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        printf("usage: cuda_test MODEL_FOLDER quick|full\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0); /* keeps the output if the program dies */
    model = argv[1];
    const char *capability = getenv("CUDA_EMULATOR_CAPABILITY");
    setenv("LATENTD_TUNER_CACHE", "/nonexistent/tuner.txt", 1);
    emulator_set_capability(capability ? atoi(capability) : 80);
    emulator_set_memory((size_t)4 << 30);
    f32_matches_the_cpu();
    if (strcmp(argv[2], "full") == 0)
        bf16_matches_the_cpu_with_and_without_recordings();
    drawn_together();
    an_idle_engine_frees_adapters();
    faults();
    loss();
    return check_done();
}
