#include "server/generation/generate_answer.h"

#include "base/text/base64.h"
#include "base/text/json.h"
#include "base/text/shape.h"
#include "kernels/random/noise.h"
#include "pictures/encode.h"
#include "server/generation/generate_json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* 15 digits write numbers as a person would: 0.1, not 0.10000000000000001. */
#define DUMP_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(15))

/* Takes over the reference to `value`. A NULL value (memory was short) makes the whole object fail
 * later. */
static bool set(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

static json_t *prompts_json(const struct generate_request *asked) {
    if (asked->prompt_count == 1)
        return json_string(asked->prompts[0]);
    json_t *list = json_array();
    for (int i = 0; list && i < asked->prompt_count; i++) {
        if (json_array_append_new(list, json_string(asked->prompts[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

/* Returns whether the adapter is named by a <lora:...> tag in the prompt. */
static bool is_tag(const struct resolved_request *request, const char *name) {
    const struct generate_request *asked = &request->asked;
    for (int i = asked->lora_count - request->tag_count; i < asked->lora_count; i++)
        if (strcmp(asked->loras[i].name, name) == 0)
            return true;
    return false;
}

/* Lists the adapters of a request as they were used, the server's default adapters included. If
 * `versions` is set, each entry has the version that was used. If not, the list is for a new
 * request: adapters that the prompt names by a tag are left out. */
static json_t *loras_json(const struct resolved_request *request, bool versions) {
    const struct adapter_use *uses;
    const int count = adapter_set_uses(request->adapters, &uses);
    json_t *list = json_array();
    for (int i = 0; list && i < count; i++) {
        const struct adapter_use *use = &uses[i];
        if (!versions && is_tag(request, use->name))
            continue;
        json_t *item = json_pack("{s:s, s:o, s:o}", "name", use->name, "weight",
            field_number_to_json(use->weight), "text_encoder_weight",
            field_number_to_json(use->text_encoder_weight));
        if (item && versions)
            json_object_set_new(item, "version", json_integer((json_int_t)use->version));
        if (json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *shape_json(const struct encoded_texts *e) {
    return json_pack(
        "{s:[III]}", "shape", (json_int_t)e->texts, (json_int_t)e->tokens, (json_int_t)e->width);
}

/* Number of bytes of a picture that was sent. The bytes themselves are not kept. */
static json_t *bytes_json(const struct picture_file *file) {
    return json_pack("{s:I}", "bytes", (json_int_t)file->size);
}

/* Returns a field's value as the request used it. Sets *left_out if the field is not one of the
 * answer's parameters. `index` is a picture's, or -1 for the whole answer. */
static json_t *parameter_json(
    const struct resolved_request *request, enum generate_field_id id, int index, bool *left_out) {
    const struct generate_request *asked = &request->asked;
    const bool whole = index < 0, encoded = asked->prompt_embeds.values,
               negative_encoded = asked->negative_prompt_embeds.values;
    const struct generate_field *f = &generate_fields[id];
    const bool is_default = f->kind != FIELD_OTHER && field_get(&f->field, asked) == f->value;
    switch (id) {
    case GENERATE_prompt:
        *left_out = encoded;
        return encoded ? NULL
               : whole ? prompts_json(asked)
                       : json_string(resolved_request_prompt(request, index));
    case GENERATE_prompt_embeds:
        *left_out = !encoded;
        return encoded ? shape_json(&asked->prompt_embeds) : NULL;
    case GENERATE_negative_prompt:
        *left_out = negative_encoded;
        return negative_encoded ? NULL
                                : json_string(asked->negative_prompt ? asked->negative_prompt : "");
    case GENERATE_negative_prompt_embeds:
        *left_out = !negative_encoded;
        return negative_encoded ? shape_json(&asked->negative_prompt_embeds) : NULL;
    case GENERATE_scheduler:
        return scheduler_config_to_json(&request->scheduler);
    case GENERATE_loras:
        return loras_json(request, false);
    case GENERATE_num_images:
        return json_integer(whole ? asked->num_images : 1);
    case GENERATE_seed:
        return json_integer((json_int_t)resolved_request_seed(request, whole ? 0 : index));
    case GENERATE_subseed:
        *left_out = asked->subseed_strength == 0;
        return *left_out
                   ? NULL
                   : json_integer((json_int_t)resolved_request_subseed(request, whole ? 0 : index));
    case GENERATE_init_image:
        *left_out = !request->source;
        return *left_out ? NULL : bytes_json(&asked->init_image);
    case GENERATE_mask_image:
        *left_out = !request->source || !request->source->mask.pixels;
        return *left_out ? NULL : bytes_json(&asked->mask_image);
    case GENERATE_output:
        *left_out = !whole;
        return whole ? json_string(
                           asked->latent_output ? "latent" : picture_format_name(asked->format))
                     : NULL;
    default:
        *left_out = f->echo == ECHO_NEVER || (f->echo == ECHO_WITH_IMAGE && !request->source) ||
                    (f->echo >= ECHO_ANSWER && !whole) ||
                    ((f->echo == ECHO_SET || f->echo == ECHO_ANSWER_SET) && is_default);
        return *left_out ? NULL : field_to_json(&f->field, asked);
    }
}

json_t *generate_parameters_json(const struct resolved_request *request, int index) {
    json_t *p = json_object();
    bool ok = p != NULL;
    for (int id = 0; ok && id < GENERATE_FIELD_COUNT; id++) {
        bool left_out = false;
        json_t *value = parameter_json(request, (enum generate_field_id)id, index, &left_out);
        ok = left_out || set(p, generate_fields[id].name, value);
    }
    if (ok)
        return p;
    json_decref(p);
    return NULL;
}

json_t *generate_parameters_schema(void) {
    static const char encoded[] = "{shape: [integer]}", picture[] = "{bytes: integer}";
    static const char *const shapes[GENERATE_FIELD_COUNT] = {
        [GENERATE_prompt_embeds] = encoded,
        [GENERATE_negative_prompt_embeds] = encoded,
        [GENERATE_scheduler] = "{name: string, ...}",
        [GENERATE_loras] = "[{name: string, weight: number, text_encoder_weight: number}]",
        [GENERATE_init_image] = picture,
        [GENERATE_mask_image] = picture,
    };
    json_t *properties = json_object();
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++) {
        const char *shape = shapes[id];
        json_t *schema = shape ? shape_read(&shape)
                               : generate_json_field_schema((enum generate_field_id)id);
        json_object_del(schema, "default");
        json_object_set_new(properties, generate_fields[id].name, schema);
    }
    return json_pack("{s:s, s:o, s:b}", "type", "object", "properties", properties,
        "additionalProperties", false);
}

bool generate_answer_write_value(FILE *out, const char *value) {
    if (!strpbrk(value, ",:\n"))
        return fputs(value, out) >= 0;
    json_t *string = json_string(value);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    bool ok = quoted && fputs(quoted, out) >= 0;
    free(quoted);
    json_decref(string);
    return ok;
}

void generate_answer_write_variation(FILE *out, const struct resolved_request *request, int index) {
    const struct generate_request *asked = &request->asked;
    if (asked->subseed_strength > 0)
        fprintf(out, ", Variation seed: %" PRIu64 ", Variation seed strength: %.10g",
            resolved_request_subseed(request, index), asked->subseed_strength);
    if (asked->seed_resize_from_w > 0)
        fprintf(
            out, ", Seed resize from: %dx%d", asked->seed_resize_from_w, asked->seed_resize_from_h);
}

/* Writes `Lora: "snow 0.5 (version 3), ink 1/0 (version 4)"`: the UNet's weight, then the text
 * encoder's if it is different. */
static bool write_loras(FILE *out, const struct adapter_set *set) {
    const struct adapter_use *uses;
    const int count = adapter_set_uses(set, &uses);
    for (int i = 0; i < count; i++) {
        const struct adapter_use *use = &uses[i];
        fprintf(out, "%s%s %.10g", i ? ", " : ", Lora: \"", use->name, use->weight);
        if (use->text_encoder_weight != use->weight)
            fprintf(out, "/%.10g", use->text_encoder_weight);
        fprintf(out, " (version %" PRIu64 ")", use->version);
    }
    return fputs(count > 0 ? "\"" : "", out) >= 0;
}

char *generate_answer_infotext(const struct generate_answer *answer, int index) {
    const struct resolved_request *request = answer->request;
    const struct generate_request *asked = &request->asked;
    const char *negative = asked->negative_prompt ? asked->negative_prompt : "";
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    fprintf(out, "%s\n", resolved_request_prompt(request, index));
    if (negative[0])
        fprintf(out, "Negative prompt: %s\n", negative);
    fprintf(out, "Steps: %d, Sampler: %s, CFG scale: %.10g", asked->num_inference_steps,
        scheduler_get_info(request->scheduler.kind)->display_name, asked->guidance_scale);
    if (asked->guidance_rescale > 0)
        fprintf(out, ", CFG Rescale: %.10g", asked->guidance_rescale);
    fprintf(out, ", Seed: %" PRIu64 ", Size: %dx%d, Model: ", resolved_request_seed(request, index),
        asked->width, asked->height);
    bool ok = generate_answer_write_value(out, answer->model_name);
    generate_answer_write_variation(out, request, index);
    if (request->scheduler.values.eta > 0)
        fprintf(out, ", Eta: %.10g", request->scheduler.values.eta);
    if (request->source)
        fprintf(out, ", Denoising strength: %.10g", asked->strength);
    if (asked->clip_skip > 0) /* AUTOMATIC1111 counts from 1 */
        fprintf(out, ", Clip skip: %d", asked->clip_skip + 1);
    ok = write_loras(out, request->adapters) && ok;
    fprintf(out, ", RNG: %s, Version: latentd %s", asked->rng == RNG_CUDA ? "NV" : "CPU",
        LATENTD_VERSION);
    ok = !ferror(out) && ok;
    if (fclose(out) != 0 || !ok) {
        free(text);
        return NULL;
    }
    return text;
}

/* Returns a request body that draws only picture `index` again. It is ASCII in any language of the
 * prompt, because it goes into a tEXt chunk. */
static char *again_json(const struct generate_answer *answer, int index) {
    json_t *p = generate_parameters_json(answer->request, index);
    char *text = p ? json_dumps(p, DUMP_FLAGS | JSON_ENSURE_ASCII) : NULL;
    json_decref(p);
    return text;
}

bool generate_answer_file(const struct generate_answer *answer, int index, const char *infotext,
    uint8_t **out, size_t *out_size, struct error *err) {
    const struct generate_result *result = answer->result;
    const struct generate_request *asked = &answer->request->asked;
    char *again = again_json(answer, index);
    const struct picture_encoding encoding = { asked->format,
        asked->quality ? asked->quality : PICTURE_QUALITY, { infotext, again } };
    const bool ok = again ? picture_encode(result->images[index], result->width, result->height,
                                &encoding, out, out_size, err)
                          : error_set(err, ERROR_NO_MEMORY, "no memory for the picture's texts");
    free(again);
    return ok;
}

bool generate_answer_picture(const struct generate_answer *answer, int index, uint8_t **out,
    size_t *out_size, struct error *err) {
    char *infotext = generate_answer_infotext(answer, index);
    const bool ok = infotext ? generate_answer_file(answer, index, infotext, out, out_size, err)
                             : error_set(err, ERROR_NO_MEMORY, "no memory for the picture's texts");
    free(infotext);
    return ok;
}

/* Returns a new JSON string with the base64 of the bytes. `data` stays the caller's. */
static json_t *base64_json(const void *data, size_t size) {
    size_t length;
    char *text = base64_encode(data, size, &length);
    json_t *string = text ? json_stringn_nocheck(text, length) : NULL;
    free(text);
    return string;
}

static json_t *image_json(const struct generate_answer *answer, int index, struct error *err) {
    const struct generate_result *r = answer->result;
    json_t *image = json_object();
    bool ok = image != NULL;
    if (ok && r->images) {
        uint8_t *file = NULL;
        size_t size = 0;
        ok = generate_answer_picture(answer, index, &file, &size, err) &&
             set(image, "b64_json", base64_json(file, size));
        free(file);
    } else if (ok) {
        size_t count = (size_t)r->latent_channels * (size_t)r->latent_height *
                       (size_t)r->latent_width;
        const float *latent = r->latents + (size_t)index * count;
        ok = set(image, "b64_latent", base64_json(latent, count * sizeof(float))) &&
             set(image, "dtype", json_string("float32")) &&
             set(image, "shape",
                 json_pack("[iii]", r->latent_channels, r->latent_height, r->latent_width));
    }
    ok = ok && set(image, "seed", json_integer((json_int_t)r->seeds[index])) &&
         set(image, "nsfw", r->nsfw ? json_boolean(r->nsfw[index]) : json_null()) &&
         set(image, "width", json_integer(r->width)) &&
         set(image, "height", json_integer(r->height));
    if (ok)
        return image;
    json_decref(image);
    return NULL;
}

static json_t *images_json(const struct generate_answer *answer, struct error *err) {
    json_t *images = json_array();
    for (int i = 0; images && i < answer->result->image_count; i++) {
        if (json_array_append_new(images, image_json(answer, i, err)) != 0) {
            json_decref(images);
            return NULL;
        }
    }
    return images;
}

static json_t *warnings_json(const struct resolved_request *request) {
    json_t *warnings = json_array();
    for (int i = 0; warnings && i < request->warning_count; i++) {
        if (json_array_append_new(warnings, json_string(request->warnings[i])) != 0) {
            json_decref(warnings);
            return NULL;
        }
    }
    return warnings;
}

static json_t *timings_json(const struct generate_timings *t) {
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:i, s:f}", "queue_s", t->queue_s, "text_encoder_s",
        t->text_encoder_s, "unet_s", t->unet_s, "vae_s", t->vae_s, "total_s", t->total_s, "steps",
        t->steps, "batch_rows_mean", t->batch_rows_mean);
}

json_t *generate_answer_about_json(const struct generate_answer *answer, json_t *images) {
    json_t *root = json_object();
    bool ok = root && images && set(root, "id", json_string(answer->id)) &&
              set(root, "created", json_integer((json_int_t)answer->created)) &&
              set(root, "model", json_lenient_string(answer->model_name)) &&
              json_object_set(root, "images", images) == 0 &&
              set(root, "parameters", generate_parameters_json(answer->request, -1)) &&
              set(root, "loras", loras_json(answer->request, true)) &&
              set(root, "timings", timings_json(&answer->result->timings)) &&
              set(root, "vae_tiled", json_boolean(answer->result->vae_tiled)) &&
              set(root, "warnings", warnings_json(answer->request));
    json_decref(images);
    if (ok)
        return root;
    json_decref(root);
    return NULL;
}

char *generate_answer_json(
    const struct generate_answer *answer, size_t *out_length, struct error *err) {
    struct error found = { 0 };
    json_t *root = generate_answer_about_json(answer, images_json(answer, &found));
    char *text = root ? json_dumps(root, DUMP_FLAGS) : NULL;
    json_decref(root);
    if (text)
        *out_length = strlen(text);
    else if (found.code != ERROR_NONE && err)
        *err = found;
    else
        error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    return text;
}

char *model_name_of_path(const char *path) {
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    return strndup(path + begin, end - begin);
}
