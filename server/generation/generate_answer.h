/* The results of a finished request: the parameters as used, the JSON answer, and picture files
 * that carry their parameters. No HTTP here; the command line writes the same files. */
#ifndef SERVER_GENERATION_GENERATE_ANSWER_H
#define SERVER_GENERATION_GENERATE_ANSWER_H

#include "engine/loop/pipeline.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

/* All members are borrowed. */
struct generate_answer {
    const char *id;
    time_t created;
    const char *model_name;
    const struct resolved_request *request;
    const struct generate_result *result;
};

/* Returns the request's fields as used, under the API's names, as a body for POST /generate. If
 * `index` is -1, the body draws all images again. Otherwise it draws only image `index`, and leaves
 * out output, quality, priority and timeout_s. Pictures are replaced by their sizes in bytes, and
 * encoded prompts by their shapes; a client must send them again. NULL when memory is short; the
 * caller owns the reference. */
json_t *generate_parameters_json(const struct resolved_request *request, int index);

/* Returns the JSON schema of the object that generate_parameters_json returns. A new reference;
 * NULL when memory is short. */
json_t *generate_parameters_schema(void);

/* Returns {"id", "created", "model", "images", "parameters", "loras", "timings", "vae_tiled",
 * "warnings"} as text, malloc'd; NULL on error. An image is {"b64_json", "seed", "nsfw", "width",
 * "height"}; nsfw is null if no safety checker ran. With latent output an image is {"b64_latent",
 * "dtype", "shape", ...}: float32, little-endian, [channels][height][width]. */
char *generate_answer_json(
    const struct generate_answer *answer, size_t *out_length, struct error *err);

/* Returns the object that generate_answer_json writes, with `images` in place of its list of
 * images. Takes over the reference to `images`. NULL when memory is short. */
json_t *generate_answer_about_json(const struct generate_answer *answer, json_t *images);

/* Encodes image `index` in the request's format. The file carries two texts (pictures/encode.h): an
 * infotext in AUTOMATIC1111's form, and a body for POST /generate that draws this image again. *out
 * is malloc'd. */
bool generate_answer_picture(const struct generate_answer *answer, int index, uint8_t **out,
    size_t *out_size, struct error *err) __attribute__((warn_unused_result));

/* Does what generate_answer_picture does, but with the caller's infotext. */
bool generate_answer_file(const struct generate_answer *answer, int index, const char *infotext,
    uint8_t **out, size_t *out_size, struct error *err) __attribute__((warn_unused_result));

/* Returns the infotext of image `index`, malloc'd; NULL when memory is short. */
char *generate_answer_infotext(const struct generate_answer *answer, int index);
/* Writes one value of an infotext. AUTOMATIC1111 reads infotexts as "Key: value, Key: value", so a
 * value with a comma, colon or line break is quoted as a JSON string. Returns false when memory is
 * short. */
bool generate_answer_write_value(FILE *out, const char *value);
/* Writes ", Variation seed: 7, ..." and ", Seed resize from: 512x512", as far as image `index` has
 * them. */
void generate_answer_write_variation(FILE *out, const struct resolved_request *request, int index);

/* Returns the model's name: the last part of the path, without trailing slashes. malloc'd; NULL
 * when memory is short. */
char *model_name_of_path(const char *path);

#endif
