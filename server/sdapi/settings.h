/* AUTOMATIC1111's options, as far as they mean something here: what POST /sdapi/v1/options sets for
 * all requests of this dialect, and override_settings for one. */
#ifndef SERVER_SDAPI_SETTINGS_H
#define SERVER_SDAPI_SETTINGS_H

#include "engine/request.h"

#include <jansson.h>

struct sdapi_settings {
    int clip_stop_at_last_layers; /* 1: the last layer */
    enum picture_format samples_format;
    int jpeg_quality; /* of WebP too */
    enum rng_kind rng;
    bool live_previews;
    int preview_every; /* steps; 0 or less: none */
};

void sdapi_settings_init(struct sdapi_settings *settings);

/* Takes over what `options`, a JSON object, says. `sd_model_checkpoint` is left to the caller;
 * those that only tell AUTOMATIC1111's own page how to look are passed over; for others
 * ERROR_INVALID names the field, `prefix` before it. *settings is unchanged then. */
bool sdapi_settings_read(struct sdapi_settings *settings, const json_t *options, const char *prefix,
    struct error *err) __attribute__((warn_unused_result));

/* All options, those included that can have one value only. NULL when memory is short. */
json_t *sdapi_settings_json(const struct sdapi_settings *settings, const char *model_name);

#endif
