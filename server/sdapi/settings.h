/* AUTOMATIC1111's options, as far as they have an effect here. POST /sdapi/v1/options sets them for
 * all requests of this dialect, override_settings for one request. */
#ifndef SERVER_SDAPI_SETTINGS_H
#define SERVER_SDAPI_SETTINGS_H

#include "engine/request/request.h"

#include <jansson.h>

#define SDAPI_KEPT_MAX 64    /* options that are kept and change no picture */
#define SDAPI_KEPT_BYTES 128 /* of one of them, as JSON with a final NUL */

struct sdapi_settings {
    char kept[SDAPI_KEPT_MAX][SDAPI_KEPT_BYTES]; /* settings.c; "": AUTOMATIC1111's default */
    int clip_stop_at_last_layers;                /* 1: use the last layer */
    enum picture_format samples_format;
    int jpeg_quality; /* also for WebP */
    enum rng_kind rng;
    bool live_previews;
    int preview_every; /* in steps; 0 or less: no previews */
};

void sdapi_settings_init(struct sdapi_settings *settings);

/* Reads `options`, a JSON object, into *settings. The caller handles `sd_model_checkpoint`. Options
 * of AUTOMATIC1111 that change no picture are kept and given back. For any other unsupported
 * option, ERROR_INVALID names the field with `prefix` before it, and *settings is unchanged. */
bool sdapi_settings_read(struct sdapi_settings *settings, const json_t *options, const char *prefix,
    struct error *err) __attribute__((warn_unused_result));

/* Returns whether the value is equal to the value of a JSON text; `text` may be NULL. */
bool sdapi_json_is(const json_t *value, const char *text);

/* Returns the VAE that the options name, which is never there: requests are drawn with the
 * checkpoint's own. A new string; NULL: they name none, or there is no memory. */
json_t *sdapi_settings_vae(const struct sdapi_settings *settings);

/* Returns all options, including those with only one possible value. NULL when memory is short. */
json_t *sdapi_settings_json(const struct sdapi_settings *settings, const char *model_name);

#endif
