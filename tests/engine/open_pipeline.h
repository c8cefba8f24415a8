/* Opens a pipeline for a test; ends the test if that fails. */
#ifndef TESTS_ENGINE_OPEN_PIPELINE_H
#define TESTS_ENGINE_OPEN_PIPELINE_H

#include "engine/loop/pipeline.h"
#include "tests/check.h"

#include <stdlib.h>

static inline struct pipeline *open_pipeline(const struct pipeline_options *options) {
    struct pipeline *pipeline = NULL;
    struct error err = { 0 };
    if (!pipeline_create(options, &pipeline, &err)) {
        CHECK(false, "%s", err.message);
        exit(check_done());
    }
    return pipeline;
}

#endif
