#include "server/sdapi/answer.h"

#include "base/text/base64.h"
#include "base/text/json.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define DUMP_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(15))

/* Returns the prompt that was drawn, with its tags, weights and styles. */
static const char *prompt_of(const struct sdapi_answer *answer) {
    return resolved_request_prompt(answer->drawn->request, 0);
}

static const char *negative_prompt_of(const struct sdapi_answer *answer) {
    const char *text = answer->drawn->request->asked.negative_prompt;
    return text ? text : "";
}

/* Returns the sampling that drew: the request's, or what the model's default scheduler is called
 * here. Zeroed if it has no name here. */
static struct sdapi_sampling used_sampling(const struct sdapi_answer *answer) {
    const struct resolved_request *drawn = answer->drawn->request;
    struct sdapi_sampling sampling = answer->request->sampling;
    if (!sdapi_sampling_of(&drawn->scheduler, &sampling))
        sampling = (struct sdapi_sampling){ 0 };
    return sampling;
}

static const char *sampler_name(const struct sdapi_answer *answer) {
    const struct sdapi_sampler *sampler = used_sampling(answer).sampler;
    return sampler ? sampler->name
                   : scheduler_get_info(answer->drawn->request->scheduler.kind)->display_name;
}

/* Returns the eta that drew, or AUTOMATIC1111's where ours cannot be changed. */
static double used_eta(const struct sdapi_answer *answer) {
    const struct scheduler_config *scheduler = &answer->drawn->request->scheduler;
    const struct sdapi_sampler *sampler = used_sampling(answer).sampler;
    if (scheduler_has_option(scheduler->kind, OPTION_ETA))
        return scheduler->values.eta;
    return sampler ? sampler->default_eta : 0;
}

/* Sets "Eta" or "Eta DDIM" if eta is not the sampler's default. */
static bool set_eta(const struct sdapi_answer *answer, json_t *extra) {
    const struct sdapi_sampler *sampler = used_sampling(answer).sampler;
    const double eta = used_eta(answer);
    return !sampler || eta == sampler->default_eta ||
           json_object_set_new(
               extra, sampler->eta_name ? sampler->eta_name : "Eta", json_real(eta)) == 0;
}

/* Returns the parameters that AUTOMATIC1111 calls "extra_generation_params". Its infotext has them
 * after the other parameters. */
static json_t *extra_json(const struct sdapi_answer *answer) {
    const struct sdapi_request *request = answer->request;
    const struct sdapi_inpainting *in = &request->inpainting;
    const struct sdapi_sampling sampling = used_sampling(answer);
    json_t *extra = json_object();
    bool ok = extra != NULL;
    if (ok && sampling.sampler && !sampling.sampler->own_timesteps)
        ok = json_object_set_new(extra, "Schedule type", json_string(sampling.schedule->label)) ==
             0;
    if (ok && in->given && in->blur_x == in->blur_y)
        ok = json_object_set_new(extra, "Mask blur", json_integer(in->blur_x)) == 0;
    if (ok && in->given && in->invert)
        ok = json_object_set_new(extra, "Mask mode", json_string("Inpaint not masked")) == 0;
    if (ok && in->given && in->full_res)
        ok = json_object_set_new(extra, "Inpaint area", json_string("Only masked")) == 0 &&
             json_object_set_new(extra, "Masked area padding", json_integer(in->padding)) == 0;
    if (ok && in->given)
        ok = json_object_set_new(
                 extra, "Masked content", json_string(sdapi_fill_names[in->fill])) == 0;
    if (ok && set_eta(answer, extra))
        return extra;
    json_decref(extra);
    return NULL;
}

static void write_extra(FILE *out, const json_t *extra) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)extra, name, value) {
        if (strcmp(name, "Schedule type") == 0)
            continue; /* written earlier in the line */
        if (json_is_string(value))
            fprintf(out, ", %s: %s", name, json_string_value(value));
        else if (json_is_real(value))
            fprintf(out, ", %s: %.10g", name, json_real_value(value));
        else
            fprintf(out, ", %s: %" JSON_INTEGER_FORMAT, name, json_integer_value(value));
    }
}

/* Writes the line of parameters, which follows the prompts. */
static void write_parameters(
    FILE *out, const struct sdapi_answer *answer, int index, const json_t *extra) {
    const struct sdapi_request *request = answer->request;
    const struct generate_request *asked = &answer->drawn->request->asked;
    const char *schedule = json_string_value(json_object_get(extra, "Schedule type"));
    fprintf(out, "Steps: %d, Sampler: %s", asked->num_inference_steps, sampler_name(answer));
    if (schedule)
        fprintf(out, ", Schedule type: %s", schedule);
    fprintf(out,
        ", CFG scale: %.10g, Seed: %" PRIu64 ", Size: %dx%d, Model: ", asked->guidance_scale,
        resolved_request_seed(answer->drawn->request, index), asked->width, asked->height);
    generate_answer_write_value(out, answer->drawn->model_name);
    generate_answer_write_variation(out, answer->drawn->request, index);
    if (request->kind == SDAPI_IMG2IMG)
        fprintf(out, ", Denoising strength: %.10g", request->denoising_strength);
    if (asked->clip_skip > 0)
        fprintf(out, ", Clip skip: %d", asked->clip_skip + 1);
    fprintf(out, ", RNG: %s", asked->rng == RNG_CUDA ? "NV" : "CPU");
    write_extra(out, extra);
    fprintf(out, ", Version: latentd %s", LATENTD_VERSION);
}

char *sdapi_infotext(const struct sdapi_answer *answer, int index) {
    const char *negative = negative_prompt_of(answer);
    char *text = NULL;
    size_t size = 0;
    json_t *extra = extra_json(answer);
    FILE *out = extra ? open_memstream(&text, &size) : NULL;
    if (!out) {
        json_decref(extra);
        return NULL;
    }
    fprintf(out, "%s\n", prompt_of(answer));
    if (negative[0])
        fprintf(out, "Negative prompt: %s\n", negative);
    write_parameters(out, answer, index, extra);
    json_decref(extra);
    const bool ok = !ferror(out);
    if (fclose(out) == 0 && ok)
        return text;
    free(text);
    return NULL;
}

/* --- info --- */

/* Returns a list with one item for each picture; `make` returns a new reference. */
static json_t *list_json(const struct sdapi_answer *answer,
    json_t *(*make)(const struct sdapi_answer *answer, int index)) {
    json_t *list = json_array();
    for (int i = 0; list && i < answer->drawn->result->image_count; i++) {
        if (json_array_append_new(list, make(answer, i)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *prompt_item(const struct sdapi_answer *answer, int index) {
    (void)index;
    return json_string(prompt_of(answer));
}

static json_t *negative_item(const struct sdapi_answer *answer, int index) {
    (void)index;
    return json_string(negative_prompt_of(answer));
}

static json_t *seed_item(const struct sdapi_answer *answer, int index) {
    return json_integer((json_int_t)resolved_request_seed(answer->drawn->request, index));
}

static json_t *subseed_item(const struct sdapi_answer *answer, int index) {
    const struct resolved_request *drawn = answer->drawn->request;
    if (drawn->asked.subseed_strength > 0)
        return json_integer((json_int_t)resolved_request_subseed(drawn, index));
    const json_t *value = json_object_get(answer->request->parameters, "subseed");
    const json_int_t subseed = json_is_integer(value) ? json_integer_value(value) : -1;
    return json_integer(subseed < 0 ? -1 : subseed + index);
}

static json_t *infotext_item(const struct sdapi_answer *answer, int index) {
    char *text = sdapi_infotext(answer, index);
    json_t *item = text ? json_lenient_string(text) : NULL;
    free(text);
    return item;
}

static json_t *timestamp_json(time_t created) {
    char text[32] = "";
    struct tm local;
    if (localtime_r(&created, &local))
        strftime(text, sizeof(text), "%Y%m%d%H%M%S", &local);
    return json_string(text);
}

static json_t *parameter(const struct sdapi_answer *answer, const char *name) {
    return json_incref(json_object_get(answer->request->parameters, name));
}

/* json_pack's arguments are split in two, because there are so many. */
static json_t *first_half(const struct sdapi_answer *answer) {
    const struct generate_request *asked = &answer->drawn->request->asked;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:s, s:f, s:i, s:i}",
        "prompt", prompt_item(answer, 0), "all_prompts", list_json(answer, prompt_item),
        "negative_prompt", negative_item(answer, 0), "all_negative_prompts",
        list_json(answer, negative_item), "seed", seed_item(answer, 0), "all_seeds",
        list_json(answer, seed_item), "subseed", subseed_item(answer, 0), "all_subseeds",
        list_json(answer, subseed_item), "subseed_strength", parameter(answer, "subseed_strength"),
        "width", asked->width, "height", asked->height, "sampler_name", sampler_name(answer),
        "cfg_scale", asked->guidance_scale, "steps", asked->num_inference_steps, "batch_size",
        answer->request->batch_size);
}

static json_t *second_half(const struct sdapi_answer *answer) {
    const struct resolved_request *drawn = answer->drawn->request;
    json_t *strength = answer->request->kind == SDAPI_IMG2IMG
                           ? json_real(answer->request->denoising_strength)
                           : parameter(answer, "denoising_strength");
    return json_pack("{s:b, s:n, s:o, s:n, s:n, s:n, s:o, s:o, s:o, s:o, s:i, s:o, s:o, s:o, "
                     "s:i, s:b, s:s}",
        "restore_faces", 0, "face_restoration_model", "sd_model_name",
        json_lenient_string(answer->drawn->model_name), "sd_model_hash", "sd_vae_name",
        "sd_vae_hash", "seed_resize_from_w", parameter(answer, "seed_resize_from_w"),
        "seed_resize_from_h", parameter(answer, "seed_resize_from_h"), "denoising_strength",
        strength, "extra_generation_params", extra_json(answer), "index_of_first_image", 0,
        "infotexts", list_json(answer, infotext_item), "styles", parameter(answer, "styles"),
        "job_timestamp", timestamp_json(answer->drawn->created), "clip_skip",
        drawn->asked.clip_skip + 1, "is_using_inpainting_conditioning",
        drawn->source && drawn->source->inpaints, "version", "latentd " LATENTD_VERSION);
}

/* Says so if eta is not what the request asks for. */
static bool comment_eta(const struct sdapi_answer *answer, json_t *comments) {
    const struct sdapi_request *request = answer->request;
    const struct scheduler_config *scheduler = &answer->drawn->request->scheduler;
    const struct sdapi_sampler *sampler = used_sampling(answer).sampler;
    const bool uses_eta = scheduler_has_option(scheduler->kind, OPTION_ETA) ||
                          (sampler && sampler->default_eta != 0);
    const double used = used_eta(answer);
    if (!request->eta_given || !uses_eta || used == request->eta)
        return true;
    return json_array_append_new(comments, json_sprintf("eta: %g has no effect: %s draws with %g",
                                               request->eta, sampler_name(answer), used)) == 0;
}

/* Adds "comments" if something of the request had no effect, or another one than asked. It is the
 * only key that AUTOMATIC1111 does not have, which shows such comments on its page. */
static bool add_comments(const struct sdapi_answer *answer, json_t *info) {
    const struct resolved_request *drawn = answer->drawn->request;
    json_t *comments = json_copy(answer->request->comments);
    bool ok = comments && comment_eta(answer, comments);
    for (int i = 0; ok && i < drawn->warning_count; i++)
        ok = json_array_append_new(comments, json_lenient_string(drawn->warnings[i])) == 0;
    if (ok && json_array_size(comments) > 0)
        ok = json_object_set(info, "comments", comments) == 0;
    json_decref(comments);
    return ok;
}

json_t *sdapi_info_json(const struct sdapi_answer *answer) {
    json_t *info = first_half(answer), *more = second_half(answer);
    const bool ok = info && more && json_object_update(info, more) == 0 &&
                    add_comments(answer, info);
    json_decref(more);
    if (ok)
        return info;
    json_decref(info);
    return NULL;
}

static json_t *info_string(const struct sdapi_answer *answer) {
    json_t *info = sdapi_info_json(answer);
    char *text = info ? json_dumps(info, DUMP_FLAGS) : NULL;
    json_t *string = text ? json_string(text) : NULL;
    free(text);
    json_decref(info);
    return string;
}

/* --- the answer --- */

/* Encodes picture `index` as a file. If there is a canvas, the picture is first pasted into it. */
static bool make_file(const struct sdapi_answer *answer, int index, const char *infotext,
    uint8_t **out, size_t *size, struct error *err) {
    const struct sdapi_canvas *canvas = &answer->request->canvas;
    struct generate_answer drawn = *answer->drawn;
    struct generate_result result = *drawn.result;
    uint8_t *painted = NULL;
    if (!canvas->picture.pixels)
        return generate_answer_file(&drawn, index, infotext, out, size, err);
    if (!sdapi_canvas_paint(
            canvas, result.images[index], result.width, result.height, &painted, err))
        return false;
    uint8_t *images[IMAGES_PER_REQUEST_MAX] = { 0 };
    images[index] = painted;
    result.images = images;
    result.width = canvas->picture.width;
    result.height = canvas->picture.height;
    drawn.result = &result;
    const bool ok = generate_answer_file(&drawn, index, infotext, out, size, err);
    free(painted);
    return ok;
}

static json_t *image_json(const struct sdapi_answer *answer, int index, struct error *err) {
    uint8_t *file = NULL;
    size_t size = 0, length = 0;
    char *infotext = sdapi_infotext(answer, index);
    const bool ok = infotext ? make_file(answer, index, infotext, &file, &size, err)
                             : error_set(err, ERROR_NO_MEMORY, "no memory for the infotext");
    char *text = ok ? base64_encode(file, size, &length) : NULL;
    json_t *image = text ? json_stringn_nocheck(text, length) : NULL;
    free(text);
    free(file);
    free(infotext);
    return image;
}

static json_t *images_json(const struct sdapi_answer *answer, struct error *err) {
    const int count = answer->request->send_images ? answer->drawn->result->image_count : 0;
    json_t *images = json_array();
    for (int i = 0; images && i < count; i++) {
        if (json_array_append_new(images, image_json(answer, i, err)) != 0) {
            json_decref(images);
            return NULL;
        }
    }
    return images;
}

char *sdapi_answer_json(const struct sdapi_answer *answer, size_t *out_length, struct error *err) {
    struct error found = { 0 };
    json_t *images = images_json(answer, &found), *info = images ? info_string(answer) : NULL;
    json_t *root = info ? json_pack("{s:O, s:O, s:O}", "images", images, "parameters",
                              answer->request->parameters, "info", info)
                        : NULL;
    char *text = root ? json_dumps(root, DUMP_FLAGS) : NULL;
    json_decref(root);
    json_decref(info);
    json_decref(images);
    if (text)
        *out_length = strlen(text);
    else if (found.code != ERROR_NONE && err)
        *err = found;
    else
        error_set(err, ERROR_NO_MEMORY, "no memory for the answer");
    return text;
}
