/* The sample pictures and the held-out pictures of a kohya job, which are the two halves of a
 * validation. */
#include "base/limits.h"
#include "base/text/json.h"
#include "base/text/utf8.h"
#include "train/kohya/literal.h"
#include "train/kohya/translation.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The scripts' names of schedulers. */
static const char *const samplers[][2] = { { "ddim", "ddim" }, { "pndm", "pndm" }, { "lms", "lms" },
    { "k_lms", "lms" }, { "euler", "euler" }, { "k_euler", "euler" },
    { "euler_a", "euler_ancestral" }, { "k_euler_a", "euler_ancestral" }, { "heun", "heun" },
    { "dpm_2", "dpm2" }, { "k_dpm_2", "dpm2" }, { "dpm_2_a", "dpm2_ancestral" },
    { "k_dpm_2_a", "dpm2_ancestral" }, { "dpmsolver++", "dpmpp_2m" } };

/* Options in a line of prompts: "a cat --n blurry --s 28". `field`: that of the job, or NULL if the
 * option has no effect. `standard`: the scripts' default, as JSON. */
static const struct {
    const char *name, *field, *standard, *why;
} options[] = {
    { "n", "validation_negative_prompt", NULL, NULL },
    { "s", "validation_inference_steps", "30", NULL },
    { "l", "validation_guidance_scale", "7.5", NULL },
    { "d", "validation_seed", NULL, NULL },
    { "w", NULL, NULL, "pictures are drawn at the job's resolution" },
    { "h", NULL, NULL, "pictures are drawn at the job's resolution" },
    { "g", NULL, NULL, "it belongs to other models" },
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static bool set_sampler(struct translation *t, const char *key, const json_t *value) {
    const char *name = value ? json_string_value(value) : "ddim";
    for (size_t i = 0; name && i < sizeof(samplers) / sizeof(samplers[0]); i++)
        if (strcmp(samplers[i][0], name) == 0) {
            kohya_set_new(t, "validation_scheduler", json_string(samplers[i][1]));
            return true;
        }
    return kohya_refuse(
        t, key, value, "ddim, pndm, lms, euler, euler_a, heun, dpm_2, dpm_2_a or dpmsolver++");
}

static bool option_is(size_t option, const char *name) {
    return strcmp(options[option].name, name) == 0;
}

/* Sets an option of the first line, or checks that a later line has the same: a job has one for all
 * of its prompts. `text` is NULL if the line does not have the option. */
static bool set_option(struct translation *t, size_t option, const char *text, bool is_first) {
    const char *field = options[option].field, *standard = options[option].standard;
    char key[40];
    snprintf(key, sizeof(key), "sample_prompts --%s", options[option].name);
    if (!field) {
        if (text && is_first)
            kohya_note(t, key, options[option].why);
        return true;
    }
    json_t *value = text && !option_is(option, "n") ? kohya_literal(text)
                    : text                          ? json_string(text)
                    : standard                      ? json_loads(standard, JSON_DECODE_ANY, NULL)
                                                    : NULL;
    if ((option_is(option, "l") || option_is(option, "s")) && kohya_is_one_of(value, "[0]")) {
        json_decref(value);      /* a job's 0 is the default of requests */
        value = json_integer(1); /* also no guidance; the scripts take at least one step, too */
    }
    if (option_is(option, "d") && kohya_is_one_of(value, "[0]")) {
        kohya_refuse(t, key, value, "from 1: a validation_seed of 0 is the job's own seed");
        json_decref(value);
        return false;
    }
    const json_t *before = json_object_get(t->job, field);
    const bool ok = is_first || !value == !before;
    const bool same = ok && (is_first || !value || json_equal(value, before) ||
                                (json_is_number(value) && json_is_number(before) &&
                                    json_number_value(value) == json_number_value(before)));
    if (!same)
        kohya_refuse(t, key, value, "the same in all lines: a job has one for all its prompts");
    else if (is_first && value)
        kohya_set(t, field, value);
    json_decref(value);
    return same;
}

/* Cuts the options off a line, and reads them. */
static bool read_options(struct translation *t, char *line, bool is_first) {
    const char *given[OPTIONS] = { NULL };
    char *next = strstr(line, " --");
    while (next) {
        char *option = next + 3;
        *next = 0;
        next = strstr(option, " --");
        if (next)
            *next = 0;
        char *value = strchr(option, ' ');
        if (value)
            *value++ = 0;
        size_t i = 0;
        while (i < OPTIONS && !option_is(i, option))
            i++;
        if (i == OPTIONS || !value || !*value)
            return error_field(t->err, "sample_prompts", option,
                "prompts whose options are --n, --s, --l, --d, --w and --h, each with a value");
        given[i] = value;
    }
    for (size_t i = 0; i < OPTIONS; i++)
        if (!set_option(t, i, given[i], is_first))
            return false;
    return true;
}

/* Reads a file of prompts: one in each line, except in those that begin with #. */
static bool read_prompts(struct translation *t) {
    if (utf8_valid_bytes(t->prompts, strlen(t->prompts)) < strlen(t->prompts))
        return error_field(t->err, "sample_prompts", "(other bytes)", "a file in UTF-8");
    char *copy = strdup(t->prompts), *rest = copy, *line;
    json_t *prompts = json_array();
    bool ok = (copy && prompts) || error_set(t->err, ERROR_NO_MEMORY, "no memory for prompts");
    while (ok && (line = strsep(&rest, "\n"))) {
        const bool is_comment = *line == '#';
        while (isspace((unsigned char)*line))
            line++;
        for (size_t length = strlen(line); length && isspace((unsigned char)line[length - 1]);)
            line[--length] = 0;
        if (is_comment || !*line)
            continue;
        ok = read_options(t, line, json_array_size(prompts) == 0);
        if (ok && json_array_append_new(prompts, json_string(line)) != 0)
            ok = error_set(t->err, ERROR_NO_MEMORY, "no memory for prompts");
    }
    if (ok && json_array_size(prompts) == 0)
        ok = error_field(t->err, "sample_prompts", "(no line)", "a file with a prompt in a line");
    if (ok)
        kohya_set(t, "validation_prompts", prompts);
    json_decref(prompts);
    free(copy);
    return ok;
}

/* When something is done: after so many steps, or epochs of ours; 0: not by these. */
struct interval {
    json_int_t steps, epochs;
};

static bool take_interval(
    struct translation *t, const char *steps, const char *epochs, struct interval *out) {
    bool has_steps, has_epochs;
    *out = (struct interval){ 0 };
    if (!kohya_take_integer(t, steps, 1, &out->steps, &has_steps) ||
        !kohya_take_integer(t, epochs, 1, &out->epochs, &has_epochs))
        return false;
    if (has_steps && has_epochs) {
        char why[100];
        snprintf(why, sizeof(why), "%s is given too", epochs);
        kohya_note(t, steps, why);
        out->steps = 0;
    }
    out->epochs *= t->repeats;
    return true;
}

static bool read_samples(struct translation *t, struct interval *out) {
    json_t *file = kohya_take(t, "sample_prompts"), *sampler = kohya_take(t, "sample_sampler");
    bool ok = take_interval(t, "sample_every_n_steps", "sample_every_n_epochs", out);
    const bool is_wanted = out->steps || out->epochs;
    if (ok && is_wanted && file && t->prompts) {
        ok = set_sampler(t, "sample_sampler", sampler) && read_prompts(t);
    } else {
        if (is_wanted)
            json_array_append_new(
                t->notes, json_string("no sample pictures are drawn: there are no sample_prompts"));
        else if (file)
            kohya_note(t, "sample_prompts", "there is no sample_every_n_steps or _epochs");
        if (sampler)
            kohya_note(t, "sample_sampler", "no sample pictures are drawn");
        *out = (struct interval){ 0 };
    }
    json_decref(file);
    json_decref(sampler);
    return ok;
}

static bool read_held_out(struct translation *t, struct interval *out) {
    json_t *share = kohya_take(t, "validation_split");
    const bool is_wanted = share && json_number_value(share) > 0;
    bool ok = (!share || (json_is_number(share) && json_number_value(share) >= 0) ||
                  kohya_refuse(t, "validation_split", share, "a number from 0 to 0.9")) &&
              take_interval(t, "validate_every_n_steps", "validate_every_n_epochs", out);
    if (ok && is_wanted) {
        kohya_set(t, "validation_share", share);
        if (!out->steps && !out->epochs)
            out->epochs = t->repeats;
    } else if (ok) {
        if (out->steps || out->epochs)
            kohya_note(t, out->steps ? "validate_every_n_steps" : "validate_every_n_epochs",
                "there is no validation_split");
        *out = (struct interval){ 0 };
    }
    json_decref(share);
    return ok;
}

bool kohya_read_samples(struct translation *t) {
    struct interval pictures, losses;
    if (!read_samples(t, &pictures) || !read_held_out(t, &losses))
        return false;
    const bool one_is_off = !(pictures.steps || pictures.epochs) ||
                            !(losses.steps || losses.epochs);
    if (!one_is_off && (pictures.steps != losses.steps || pictures.epochs != losses.epochs))
        return error_field(t->err, "validate_every_n_steps", "(another interval)",
            "the interval of the sample pictures: a validation has both");
    const struct interval *which = losses.steps || losses.epochs ? &losses : &pictures;
    if (which->steps)
        kohya_set_new(t, "validation_steps", json_integer(which->steps));
    if (which->epochs)
        kohya_set_new(t, "validation_epochs", json_integer(which->epochs));
    return true;
}
