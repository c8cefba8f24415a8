/* Replaces engine/loop/pipeline.c in tests of the layers above it: a pipeline that has only a
 * studio. The test creates the studio in its own pipeline_create. */
#ifndef TESTS_ENGINE_IDLE_PIPELINE_H
#define TESTS_ENGINE_IDLE_PIPELINE_H

#include "engine/loop/pipeline.h"
#include "tests/engine/no_adapters.h"

static struct studio *idle_studio;
static const struct kernels *idle_kernels; /* the device's, if there is one */

void pipeline_destroy(struct pipeline *pipeline) {
    if (pipeline)
        studio_destroy(idle_studio);
}

struct studio *pipeline_studio(struct pipeline *pipeline) {
    (void)pipeline;
    return idle_studio;
}

void pipeline_get_info(const struct pipeline *pipeline, struct pipeline_info *out) {
    (void)pipeline;
    *out = (struct pipeline_info){ .device = "none", .kernels = idle_kernels, .max_tokens = 77 };
}

bool pipeline_weigh(const struct pipeline_options *options, const struct pipeline_info *like,
    struct pipeline_size *out, struct error *err) {
    (void)options, (void)like, (void)out;
    return error_set(err, ERROR_INTERNAL, "there is one model");
}

bool pipeline_get_figures(const struct pipeline *pipeline, struct device_figures *out) {
    (void)pipeline, (void)out;
    return false;
}

bool pipeline_count_text(const struct pipeline *pipeline, const struct generate_request *request,
    bool negative, struct text_count *out, struct error *err) {
    (void)pipeline, (void)request, (void)negative, (void)out;
    return error_set(err, ERROR_INTERNAL, "there are no texts");
}

bool pipeline_resolve(const struct pipeline *pipeline, const struct generate_request *request,
    struct resolved_request *out, struct error *err) {
    (void)pipeline;
    *out = (struct resolved_request){ 0 };
    return generate_request_copy(request, &out->asked, err);
}

#endif
