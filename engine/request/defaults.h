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

/* Sets one from text of the form FIELD=VALUE, in a request after generate_request_init. Errors call
 * it `param`. */
bool generate_defaults_set(const char *param, const char *text, struct generate_request *out,
    struct error *err) __attribute__((warn_unused_result));

/* Fills in every field of `request` that was not given and has the built-in default or one of the
 * client's API, and marks it as given. A size is not
 * filled in beside a picture or latents, which have one. `defaults` may be NULL. */
bool generate_defaults_apply(const struct generate_request *defaults,
    struct generate_request *request, struct error *err) __attribute__((warn_unused_result));

/* What a request gets that leaves everything out: {"guidance_scale": 2.5, ...}, the built-in
 * default where `defaults` (may be NULL) has none. A new reference; NULL when memory is short. */
json_t *generate_defaults_json(const struct generate_request *defaults);

#endif
