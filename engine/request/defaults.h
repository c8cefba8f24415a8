/* Defaults that a checkpoint brings, or an option of `latentd serve` gives, for fields that a
 * request leaves out. They are values of the fields of GENERATE_FIELDS whose column `by_model` is
 * set.
 *
 * A checkpoint has them in a JSON file, {"defaults": {"guidance_scale": 2.5}}: latentd.json in a
 * diffusers folder, NAME.latentd.json beside a file NAME.safetensors. */
#ifndef ENGINE_REQUEST_DEFAULTS_H
#define ENGINE_REQUEST_DEFAULTS_H

#include "engine/request/request.h"

#include <jansson.h>

/* Reads the checkpoint's file into *out, which needs no initialisation and is finished by the
 * caller on success (generate_request_finish). Without a file there are no defaults. ERROR_INVALID
 * names the file, the field, its value and what is allowed. */
bool generate_defaults_load(const char *model_path, struct generate_request *out, struct error *err)
    __attribute__((warn_unused_result));

/* Does what generate_defaults_load does, for a daemon or a job with defaults of its own, `first`
 * (may be NULL): these come before the checkpoint's. The caller finishes *out on success. */
bool generate_defaults_join(const struct generate_request *first, const char *model_path,
    struct generate_request *out, struct error *err) __attribute__((warn_unused_result));

/* Sets one default in *out, which generate_request_init has prepared, from a text of the form
 * FIELD=VALUE. Errors call the text `param`. */
bool generate_defaults_set(const char *param, const char *text, struct generate_request *out,
    struct error *err) __attribute__((warn_unused_result));

/* Fills in each field of `request` that was left open: its value is the built-in default or the
 * default of the client's API. Marks these fields as given. A size is not filled in if there is a
 * picture or latents, because these have a size. `defaults` may be NULL. */
bool generate_defaults_apply(const struct generate_request *defaults,
    struct generate_request *request, struct error *err) __attribute__((warn_unused_result));

/* Returns the values that a request gets for the fields that it leaves out: {"guidance_scale": 2.5,
 * ...}. A field without a value in `defaults` (may be NULL) gets its built-in default. A new
 * reference; NULL when memory is short. */
json_t *generate_defaults_json(const struct generate_request *defaults);

#endif
