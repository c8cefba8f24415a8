/* Stages without models, which only count evaluations. A test replaces single stages by its own. */
#ifndef TESTS_ENGINE_IDLE_STAGES_H
#define TESTS_ENGINE_IDLE_STAGES_H

#include "engine/drawing/stages.h"

static inline bool idle_measure(
    void *user, const struct resolved_request *request, struct stage_work *out, struct error *err) {
    (void)user, (void)request, (void)err;
    *out = (struct stage_work){ .evaluation = 1, .decode = 1 };
    return true;
}

static inline enum stage_begun idle_begin(void *user, const struct resolved_request *request,
    int index, struct image *image, struct error *err) {
    (void)user, (void)index, (void)err;
    image->plan = request->plan;
    return STAGE_BEGUN;
}

static inline bool idle_ready(
    void *user, struct image *const *images, int count, struct error *err) {
    (void)user, (void)images, (void)count, (void)err;
    return true;
}

/* Latents of 0 are grey; the first channel makes them brighter. */
static inline bool idle_colours(void *user, struct latent_colours *out, struct error *err) {
    (void)user, (void)err;
    *out = (struct latent_colours){ .channels = 4, .weights = { { 1 }, { 1 }, { 1 } } };
    return true;
}

/* Each image advances by one evaluation. */
static inline bool idle_step(
    void *user, struct image *const *images, int count, struct error *err) {
    (void)user, (void)err;
    for (int i = 0; i < count; i++)
        images[i]->evaluations++;
    return true;
}

static inline bool idle_take(void *user, struct image *image, struct error *err) {
    (void)user, (void)image, (void)err;
    return true;
}

static inline void idle_leave(void *user, struct image *image) {
    (void)user, (void)image;
}

/* Returns the idle stages with the test's own call_images, step and take; step or take NULL: the
 * idle one. */
static inline struct stages idle_stages(
    int (*call_images)(void *user, const struct resolved_request *request),
    bool (*step)(void *user, struct image *const *images, int count, struct error *err),
    bool (*take)(void *user, struct image *image, struct error *err)) {
    return (struct stages){ .measure = idle_measure,
        .call_images = call_images,
        .begin = idle_begin,
        .ready = idle_ready,
        .step = step ? step : idle_step,
        .take = take ? take : idle_take,
        .leave = idle_leave };
}

#endif
