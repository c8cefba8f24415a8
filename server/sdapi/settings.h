/* AUTOMATIC1111's options, as far as they have an effect here. POST /sdapi/v1/options sets them for
 * all requests of this dialect, override_settings for one request. */
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
    int preview_every; /* in steps; 0 or less: no previews */
};

void sdapi_settings_init(struct sdapi_settings *settings);

/* Reads `options`, a JSON object, into *settings. The caller handles `sd_model_checkpoint`. Options
 * that only concern AUTOMATIC1111's own page are ignored. For any other unsupported option,
 * ERROR_INVALID names the field with `prefix` before it, and *settings is unchanged. */
bool sdapi_settings_read(struct sdapi_settings *settings, const json_t *options, const char *prefix,
    struct error *err) __attribute__((warn_unused_result));

/* Returns all options, including those with only one possible value. NULL when memory is short. */
json_t *sdapi_settings_json(const struct sdapi_settings *settings, const char *model_name);

#endif
