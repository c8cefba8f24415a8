/* What the engine thread drives: the pipeline, or in tests something quicker that behaves like it.
 * Contracts as in engine/pipeline.h. */
#ifndef ENGINE_ENGINE_BACKEND_H
#define ENGINE_ENGINE_BACKEND_H

#include "engine/engine.h"

struct engine_backend {
    bool (*create)(
        const struct pipeline_options *options, struct pipeline **out, struct error *err);
    void (*destroy)(struct pipeline *pipeline);
    void (*get_info)(const struct pipeline *pipeline, struct pipeline_info *out);
    bool (*generate)(struct pipeline *pipeline, const struct generate_request *request,
        const struct generate_hooks *hooks, struct generate_result *result, struct error *err);
};

/* engine_create on another backend, which must outlive the engine. */
bool engine_create_with(const struct engine_options *options, const struct engine_backend *backend,
    struct engine **out, struct error *err) __attribute__((warn_unused_result));

#endif
