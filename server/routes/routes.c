#include "server/routes/routes.h"

#include <stddef.h>
#include <string.h>

/* One line for each route, which is defined in the file that handles it. */
#define ROUTES(X)                                                                                  \
    X(route_dataset)                                                                               \
    X(route_datasets)                                                                              \
    X(route_embeddings)                                                                            \
    X(route_embeddings_rescan)                                                                     \
    X(route_generate)                                                                              \
    X(route_generate_cancel)                                                                       \
    X(route_health)                                                                                \
    X(route_health_ready)                                                                          \
    X(route_huggingface)                                                                           \
    X(route_info)                                                                                  \
    X(route_jobs)                                                                                  \
    X(route_job_events)                                                                            \
    X(route_job_image)                                                                             \
    X(route_job_preview)                                                                           \
    X(route_job_cancel)                                                                            \
    X(route_job_pause)                                                                             \
    X(route_job_resume)                                                                            \
    X(route_job_metrics)                                                                           \
    X(route_job_plot)                                                                              \
    X(route_job_checkpoints)                                                                       \
    X(route_job_validations)                                                                       \
    X(route_job_validation_file)                                                                   \
    X(route_job_adapter)                                                                           \
    X(route_job_kohya)                                                                             \
    X(route_job)                                                                                   \
    X(route_loras)                                                                                 \
    X(route_loras_rescan)                                                                          \
    X(route_lora)                                                                                  \
    X(route_metrics)                                                                               \
    X(route_openapi)                                                                               \
    X(route_model)                                                                                 \
    X(route_models)                                                                                \
    X(route_openai_generations)                                                                    \
    X(route_openai_edits)                                                                          \
    X(route_openai_variations)                                                                     \
    X(route_openai_picture)                                                                        \
    X(route_openai_files)                                                                          \
    X(route_openai_file_content)                                                                   \
    X(route_openai_file)                                                                           \
    X(route_openai_tunings)                                                                        \
    X(route_openai_tuning_events)                                                                  \
    X(route_openai_tuning_checkpoints)                                                             \
    X(route_openai_tuning_cancel)                                                                  \
    X(route_openai_tuning_pause)                                                                   \
    X(route_openai_tuning_resume)                                                                  \
    X(route_openai_tuning)                                                                         \
    X(route_openai_models)                                                                         \
    X(route_openai_model)                                                                          \
    X(route_vllm_load)                                                                             \
    X(route_vllm_unload)                                                                           \
    X(route_page)                                                                                  \
    X(route_page_file)                                                                             \
    X(route_schedulers)                                                                            \
    X(route_internal_pending_tasks)                                                                \
    X(route_internal_ping)                                                                         \
    X(route_internal_progress)                                                                     \
    X(route_sdapi_cmd_flags)                                                                       \
    X(route_sdapi_embeddings)                                                                      \
    X(route_sdapi_extensions)                                                                      \
    X(route_sdapi_extra_batch)                                                                     \
    X(route_sdapi_extra_single)                                                                    \
    X(route_sdapi_face_restorers)                                                                  \
    X(route_sdapi_img2img)                                                                         \
    X(route_sdapi_interrupt)                                                                       \
    X(route_sdapi_progress)                                                                        \
    X(route_sdapi_skip)                                                                            \
    X(route_sdapi_txt2img)                                                                         \
    X(route_sdapi_hypernetworks)                                                                   \
    X(route_sdapi_latent_upscale_modes)                                                            \
    X(route_sdapi_loras)                                                                           \
    X(route_sdapi_memory)                                                                          \
    X(route_sdapi_models)                                                                          \
    X(route_sdapi_modules)                                                                         \
    X(route_sdapi_options)                                                                         \
    X(route_sdapi_png_info)                                                                        \
    X(route_sdapi_prompt_styles)                                                                   \
    X(route_sdapi_realesrgan_models)                                                               \
    X(route_sdapi_refresh_checkpoints)                                                             \
    X(route_sdapi_refresh_embeddings)                                                              \
    X(route_sdapi_refresh_loras)                                                                   \
    X(route_sdapi_refresh_vae)                                                                     \
    X(route_sdapi_reload_checkpoint)                                                               \
    X(route_sdapi_samplers)                                                                        \
    X(route_sdapi_schedulers)                                                                      \
    X(route_sdapi_script_info)                                                                     \
    X(route_sdapi_scripts)                                                                         \
    X(route_sdapi_unload_checkpoint)                                                               \
    X(route_sdapi_upscalers)                                                                       \
    X(route_sdapi_vae)                                                                             \
    X(route_tokens)                                                                                \
    X(route_train)

#define DECLARE(name) extern const struct route name;
#define ENTRY(name) &name,

ROUTES(DECLARE)

static const struct route *const routes[] = { ROUTES(ENTRY) };
#define ROUTE_COUNT (sizeof(routes) / sizeof(routes[0]))

const struct route *route_find(const char *path) {
    for (size_t i = 0; i < ROUTE_COUNT; i++)
        if (route_matches(routes[i], path))
            return routes[i];
    return NULL;
}

const struct route *route_at(size_t index) {
    return index < ROUTE_COUNT ? routes[index] : NULL;
}

/* One line for each path that belongs to another dialect, including everything below it. */
#define DIALECTS(X)                                                                                \
    X("/internal/", dialect_sdapi)                                                                 \
    X("/sdapi/", dialect_sdapi)                                                                    \
    X("/v1/", dialect_openai)

#define DECLARE_DIALECT(path, name) extern const struct dialect name;
#define DIALECT_ENTRY(path, name) { path, &name },

DIALECTS(DECLARE_DIALECT)

const struct dialect *route_dialect(const struct route *route, const char *path) {
    static const struct {
        const char *path;
        const struct dialect *dialect;
    } dialects[] = { DIALECTS(DIALECT_ENTRY) };
    for (size_t i = 0; !route && i < sizeof(dialects) / sizeof(dialects[0]); i++)
        if (strncmp(path, dialects[i].path, strlen(dialects[i].path)) == 0)
            return dialects[i].dialect;
    return route ? route->dialect : NULL;
}
