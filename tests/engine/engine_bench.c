/* The engine's own cost without the models: its thread, its queue, the policy and the studio's
 * bookkeeping. The stages do nothing.
 *
 * usage: engine_bench [REQUESTS [STEPS [IN_FLIGHT]]]
 *
 * For each number of images in a call it prints microseconds per image and step; the limit is 50.
 * */
#include "base/monotonic.h"
#include "engine/loop/engine.h"
#include "tests/engine/idle_pipeline.h"
#include "tests/engine/idle_stages.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>

#define BAR_US 50.0

static struct {
    int call_images;
    struct scheduler_plan plan;
    sem_t may_submit;
} bench;

/* --- stages that do nothing --- */

static int call_images(void *user, const struct resolved_request *request) {
    (void)user, (void)request;
    return bench.call_images;
}

/* --- the pipeline with these stages --- */

bool pipeline_create(
    const struct pipeline_options *options, struct pipeline **out, struct error *err) {
    const struct stages stages = idle_stages(call_images, NULL, NULL);
    (void)options;
    *out = (struct pipeline *)&bench;
    return studio_create(&stages, 0, &idle_studio, err);
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

/* Draws this many requests, `in_flight` of them at a time. Returns the seconds, or a negative
 * number on failure. */
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
