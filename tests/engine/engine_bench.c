/* What the engine costs beside the models: its thread, its queue, the policy and the studio's
 * books, a step of one image at a time, on stages that do nothing.
 *
 * usage: engine_bench [REQUESTS [STEPS [IN_FLIGHT]]]
 *
 * For each number of images a call it prints microseconds per image and step; the bar is 50. */
#include "base/monotonic.h"
#include "engine/engine.h"
#include "tests/engine/idle_stages.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#define BAR_US 50.0

static struct {
    int call_images;
    struct studio *studio;
    struct scheduler_plan plan;
    sem_t may_submit;
} bench;

/* --- stages that do nothing --- */

static bool measure(
    void *user, const struct resolved_request *request, struct stage_work *out, struct error *err) {
    (void)user, (void)request, (void)err;
    *out = (struct stage_work){ .evaluation = 1, .decode = 1 };
    return true;
}

static int call_images(void *user, const struct resolved_request *request) {
    (void)user, (void)request;
    return bench.call_images;
}

static enum stage_begun begin(void *user, const struct resolved_request *request, int index,
    struct image *image, struct error *err) {
    (void)user, (void)index, (void)err;
    image->plan = request->plan;
    return STAGE_BEGUN;
}

/* --- the pipeline that has them --- */

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    static const struct stages stages = { .measure = measure,
        .call_images = call_images,
        .begin = begin,
        .ready = idle_ready,
        .step = idle_step,
        .take = idle_take,
        .leave = idle_leave };
    (void)options;
    *out = (struct pipeline *)&bench;
    return studio_create(&stages, 0, &bench.studio, err);
}

void pipeline_destroy(struct pipeline *pipeline) {
    if (pipeline)
        studio_destroy(bench.studio);
}

struct studio *pipeline_studio(struct pipeline *pipeline) {
    (void)pipeline;
    return bench.studio;
}

void pipeline_get_info(const struct pipeline *pipeline, struct pipeline_info *out) {
    (void)pipeline;
    *out = (struct pipeline_info){ .device = "none" };
}

bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) {
    (void)options, (void)like, (void)out;
    return error_set(err, ERROR_INTERNAL, "there is one model");
}

void pipeline_take_adapters(struct pipeline *pipeline, void (*switched)(void *user), void *user) {
    (void)pipeline, (void)switched, (void)user;
}

struct embeddings *pipeline_get_embeddings(const struct pipeline *p) {
    (void)p;
    return NULL;
}

struct adapters *pipeline_get_adapters(const struct pipeline *pipeline) {
    (void)pipeline;
    return NULL;
}

bool pipeline_get_figures(const struct pipeline *pipeline, struct device_figures *out) {
    (void)pipeline, (void)out;
    return false;
}

bool pipeline_resolve(const struct pipeline *pipeline, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    (void)pipeline, (void)request, (void)out;
    return error_set(err, ERROR_INTERNAL, "nothing is resolved here");
}

/* --- the load --- */

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    (void)user;
    if (err)
        fprintf(stderr, "engine_bench: %s\n", err->message);
    else
        generate_result_finish(result);
    sem_post(&bench.may_submit);
}

/* So many requests, `in_flight` of them at a time; seconds, or below 0. */
static double run(int requests, int in_flight) {
    const struct resolved_request request = {
        .asked = { .latent_output = true },
        .plan = &bench.plan,
        .guided = true,
        .images = 1,
        .latent_channels = 4,
        .latent_height = 64,
        .latent_width = 64,
    };
    const struct engine_options options = { .pipeline = { .model_path = "none" },
        .queue_max = in_flight };
    const struct engine_callbacks callbacks = { .done = on_done };
    struct engine *engine;
    struct error err = { 0 };
    if (!engine_create(&options, &engine, &err))
        return -1;
    while (engine_get_state(engine, NULL) == ENGINE_LOADING)
        ;
    sem_init(&bench.may_submit, 0, (unsigned)in_flight);
    bool ok = true;
    const double begun = monotonic_seconds();
    for (int i = 0; i < requests && ok; i++) {
        sem_wait(&bench.may_submit);
        ok = engine_submit(engine, &request, &callbacks, NULL, &err);
    }
    engine_destroy(engine, true);
    if (!ok)
        fprintf(stderr, "engine_bench: %s\n", err.message);
    return ok ? monotonic_seconds() - begun : -1;
}

int main(int argc, char **argv) {
    const int requests = argc > 1 ? atoi(argv[1]) : 2000, steps = argc > 2 ? atoi(argv[2]) : 30;
    const int in_flight = argc > 3 ? atoi(argv[3]) : 64;
    if (requests < 1 || steps < 1 || in_flight < 1) {
        fprintf(stderr, "usage: engine_bench [REQUESTS [STEPS [IN_FLIGHT]]]\n");
        return 2;
    }
    bench.plan.count = steps;
    for (bench.call_images = 1; bench.call_images <= UNET_CALL_MAX_IMAGES; bench.call_images *= 2) {
        const double seconds = run(requests, in_flight);
        if (seconds < 0)
            return 1;
        printf("%d images a call, %d requests in flight: %.2f us per image and step, the bar is "
               "%g\n",
            bench.call_images, in_flight, seconds / requests / steps * 1e6, BAR_US);
    }
    return 0;
}
