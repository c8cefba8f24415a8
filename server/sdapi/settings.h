/* AUTOMATIC1111's options, as far as they have a meaning here. POST /sdapi/v1/options sets them for
 * all requests of this dialect, override_settings for one. */
#ifndef SERVER_SDAPI_SETTINGS_H
#define SERVER_SDAPI_SETTINGS_H

#include "engine/request/request.h"

#include <jansson.h>

struct sdapi_settings {
    int clip_stop_at_last_layers; /* 1: use the last layer */
    enum picture_format samples_format;
    int jpeg_quality; /* also for WebP */
    enum rng_kind rng;
    bool live_previews;
    int preview_every; /* steps; 0 or less: no previews */
};

void sdapi_settings_init(struct sdapi_settings *settings);

/* Reads `options`, a JSON object, into *settings. Leaves `sd_model_checkpoint` to the caller.
 * Ignores options that only concern the look of AUTOMATIC1111's own page. For any other option
 * ERROR_INVALID names the field with `prefix` before it, and *settings is unchanged. */
bool sdapi_settings_read(struct sdapi_settings *settings, const json_t *options, const char *prefix,
    struct error *err) __attribute__((warn_unused_result));

/* Returns all options, including those with only one possible value. NULL when memory is short. */
json_t *sdapi_settings_json(const struct sdapi_settings *settings, const char *model_name);

#endif
