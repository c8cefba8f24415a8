/* For pipelines that replace engine/loop/pipeline.c in tests: they have no adapters and no
 * embeddings. */
#ifndef TESTS_ENGINE_NO_ADAPTERS_H
#define TESTS_ENGINE_NO_ADAPTERS_H

#include "engine/loop/pipeline.h"

void pipeline_take_adapters(struct pipeline *pipeline, void (*switched)(void *user), void *user) {
    (void)pipeline, (void)switched, (void)user;
}

struct embeddings *pipeline_get_embeddings(const struct pipeline *pipeline) {
    (void)pipeline;
    return NULL;
}

struct adapters *pipeline_get_adapters(const struct pipeline *pipeline) {
    (void)pipeline;
    return NULL;
}

#endif
