/* What is said about a finished request: its parameters as they were used, the JSON answer, and PNG
 * files that carry their parameters. No HTTP here; the command line writes the same files. */
#ifndef SERVER_DIALECT_GENERATE_ANSWER_H
#define SERVER_DIALECT_GENERATE_ANSWER_H

#include "engine/pipeline.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* Everything is borrowed. */
struct generate_answer {
    const char *id;
    time_t created;
    const char *model_name;
    const struct resolved_request *request;
    const struct generate_result *result;
};

/* Every field of the request as it was used, under the names of the API: a body for POST /generate
 * that asks for the same again, or, unless index is -1, for that image alone. Of pictures that it
 * brought only their sizes in bytes are there, of encoded prompts their shapes: who asks again
 * sends them again. NULL when memory is short; the caller owns the reference. */
json_t *generate_parameters_json(const struct resolved_request *request, int index);

/* {"id", "created", "model", "images", "parameters", "loras", "timings", "vae_tiled", "warnings"} as text,
 * malloc'd. An image is
 * {"b64_json", "seed", "nsfw", "width", "height"}, nsfw being null where no safety checker looked;
 * with latent output {"b64_latent", "dtype", "shape",
 * ...}, float32 little-endian [channels][height][width]. NULL on error. */
char *generate_answer_json(
    const struct generate_answer *answer, size_t *out_length, struct error *err);

/* The same with a list of images of the caller's, whose reference it takes, as an object; NULL when
 * memory is short. */
json_t *generate_answer_about_json(const struct generate_answer *answer, json_t *images);

/* Picture `index` as a file of the request's format, with two texts (pictures/encode.h): its
 * infotext in AUTOMATIC1111's form, and a body for POST /generate that draws this picture again.
 * *out is malloc'd. */
bool generate_answer_picture(const struct generate_answer *answer, int index, uint8_t **out,
    size_t *out_size, struct error *err) __attribute__((warn_unused_result));

/* The same with an infotext of the caller's. */
bool generate_answer_file(const struct generate_answer *answer, int index, const char *infotext,
    uint8_t **out, size_t *out_size, struct error *err) __attribute__((warn_unused_result));

/* The infotext of picture `index`, malloc'd, NULL when memory is short. */
char *generate_answer_infotext(const struct generate_answer *answer, int index);
/* A value of an infotext, which AUTOMATIC1111 reads as "Key: value, Key: value": one with a comma,
 * colon or line break is quoted as a JSON string. False when memory is short. */
bool generate_answer_write_value(FILE *out, const char *value);

/* The last part of a path, without a trailing slash: what a model is called. malloc'd. */
char *model_name_of_path(const char *path);

#endif
