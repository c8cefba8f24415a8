/* The optimizer, the learning rates and the schedule of a kohya job. */
#include "base/text/json.h"
#include "train/config.h"
#include "train/kohya/literal.h"
#include "train/kohya/translation.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define ADAMW (1 << TRAIN_ADAMW)
#define LION (1 << TRAIN_LION)
#define ADAFACTOR (1 << TRAIN_ADAFACTOR)
#define PRODIGY (1 << TRAIN_PRODIGY)

static const struct {
    const char *name, *field; /* in the scripts, without regard to case; here */
    int optimizer;
    bool has_8_bits, is_paged;
} optimizers[] = {
    { "AdamW", "adamw", TRAIN_ADAMW, false, false },
    { "AdamW8bit", "adamw", TRAIN_ADAMW, true, false },
    { "PagedAdamW", "adamw", TRAIN_ADAMW, false, true },
    { "PagedAdamW32bit", "adamw", TRAIN_ADAMW, false, true },
    { "PagedAdamW8bit", "adamw", TRAIN_ADAMW, true, true },
    { "Lion", "lion", TRAIN_LION, false, false },
    { "Adafactor", "adafactor", TRAIN_ADAFACTOR, false, false },
    { "Prodigy", "prodigy", TRAIN_PRODIGY, false, false },
};
#define OPTIMIZERS "AdamW, AdamW8bit, PagedAdamW, PagedAdamW8bit, Lion, Adafactor or Prodigy"

/* Arguments of the optimizers' constructors, with the defaults of torch, lion-pytorch, transformers
 * and prodigyopt. */
static const struct {
    unsigned optimizers;
    const char *name, *field, *standard; /* standard: JSON; NULL: none is set */
} arguments[] = {
    { ADAMW, "weight_decay", "adam_weight_decay", "0.01" },
    { LION | ADAFACTOR | PRODIGY, "weight_decay", "adam_weight_decay", "0" },
    { ADAMW | PRODIGY, "eps", "adam_epsilon", "1e-8" },
    { ADAFACTOR, "scale_parameter", "adafactor_scale_parameter", "true" },
    { ADAFACTOR, "clip_threshold", "adafactor_clip_threshold", "1" },
    { ADAFACTOR, "decay_rate", "adafactor_decay_rate", "-0.8" },
    { PRODIGY, "d0", "prodigy_d0", "1e-6" },
    { PRODIGY, "d_coef", "prodigy_d_coef", "1" },
    { PRODIGY, "growth_rate", "prodigy_growth_rate", NULL },
    { PRODIGY, "beta3", "prodigy_beta3", NULL },
    { PRODIGY, "decouple", "prodigy_decouple", "true" },
    { PRODIGY, "use_bias_correction", "prodigy_use_bias_correction", "false" },
    { PRODIGY, "safeguard_warmup", "prodigy_safeguard_warmup", "false" },
};

/* Arguments with values that change nothing; others are refused. */
static const struct {
    unsigned optimizers;
    const char *name, *values, *why;
} plain[] = {
    { ADAMW, "amsgrad", "[false]", "AMSGrad is not implemented" },
    { ADAMW, "percentile_clipping", "[100]", "gradients are clipped by max_grad_norm" },
    { ADAMW, "block_wise", "[true]", "8-bit states are in blocks" },
    { LION, "use_triton", "[false, true]", "" },
    { LION, "decoupled_weight_decay", "[false]", "it is not implemented" },
    { ADAFACTOR, "eps", "[[1e-30, 0.001]]", "Adafactor's are fixed" },
    { ADAFACTOR, "beta1", "[null]", "Adafactor has no first moment here" },
    { PRODIGY, "fsdp_in_use", "[false]", "each process keeps the whole model" },
    { PRODIGY, "slice_p", "[1]", "it is not implemented" },
};

struct choice {
    int optimizer;
    bool sets_rate; /* Adafactor with relative_step */
    json_t *given;  /* owned: arguments still to be read */
};

static bool has(const struct choice *c, unsigned bits) {
    return bits >> c->optimizer & 1;
}

static bool refuse_argument(
    struct translation *t, const char *name, const json_t *value, const char *why) {
    char path[64];
    snprintf(path, sizeof(path), "optimizer_args.%.40s", name);
    return kohya_refuse(t, path, value, "%s", why);
}

/* Reads which optimizer it is. Two old flags name one too. */
static bool read_kind(struct translation *t, struct choice *c) {
    json_t *type = kohya_take(t, "optimizer_type");
    bool has_8_bits = false, is_lion = false;
    bool ok = kohya_take_flag(t, "use_8bit_adam", &has_8_bits) &&
              kohya_take_flag(t, "use_lion_optimizer", &is_lion);
    if (ok && has_8_bits + is_lion + (type != NULL) > 1)
        ok = kohya_refuse(t, has_8_bits ? "use_8bit_adam" : "use_lion_optimizer", json_true(),
            "false beside another optimizer");
    const char *name = has_8_bits ? "AdamW8bit" : is_lion ? "Lion" : "AdamW";
    if (type)
        name = json_is_string(type) ? json_string_value(type) : "";
    size_t i = 0;
    while (
        i < sizeof(optimizers) / sizeof(optimizers[0]) && strcasecmp(optimizers[i].name, name) != 0)
        i++;
    if (ok && i == sizeof(optimizers) / sizeof(optimizers[0]))
        ok = kohya_refuse(t, "optimizer_type", type, "%s", OPTIMIZERS);
    json_decref(type);
    if (!ok)
        return false;
    c->optimizer = optimizers[i].optimizer;
    kohya_set_new(t, "optimizer", json_string(optimizers[i].field));
    if (optimizers[i].has_8_bits)
        kohya_set_new(t, "use_8bit_adam", json_true());
    if (optimizers[i].is_paged)
        json_array_append_new(t->notes, json_string("optimizer_type: states are not paged"));
    return true;
}

static json_t *take_argument(struct choice *c, const char *name) {
    json_t *value = json_incref(json_object_get(c->given, name));
    json_object_del(c->given, name);
    return value;
}

static bool read_betas(struct translation *t, struct choice *c) {
    static const char *const fields[][2] = { { "adam_beta1", "adam_beta2" },
        { "lion_beta1", "lion_beta2" } };
    json_t *betas = c->optimizer == TRAIN_ADAFACTOR ? NULL : take_argument(c, "betas");
    const bool ok = !betas || json_array_size(betas) == 2 ||
                    refuse_argument(t, "betas", betas, "two numbers with a comma");
    for (size_t i = 0; ok && betas && i < 2; i++)
        kohya_set(t, fields[c->optimizer == TRAIN_LION][i], json_array_get(betas, i));
    json_decref(betas);
    return ok;
}

/* Adafactor sets the rate itself unless relative_step is False; warmup_init makes it True. */
static bool read_relative_step(struct translation *t, struct choice *c) {
    json_t *relative = take_argument(c, "relative_step"), *warmup = take_argument(c, "warmup_init");
    const bool ok = (!relative || json_is_boolean(relative) ||
                        refuse_argument(t, "relative_step", relative, "True or False")) &&
                    (!warmup || json_is_boolean(warmup) ||
                        refuse_argument(t, "warmup_init", warmup, "True or False"));
    c->sets_rate = !json_is_false(relative) || json_is_true(warmup);
    if (c->sets_rate)
        kohya_set_new(t, "adafactor_relative_step", json_true());
    if (json_is_true(warmup))
        kohya_set_new(t, "adafactor_warmup_init", json_true());
    json_decref(relative);
    json_decref(warmup);
    return ok;
}

static bool read_arguments(struct translation *t, struct choice *c) {
    if (!read_betas(t, c) || (c->optimizer == TRAIN_ADAFACTOR && !read_relative_step(t, c)))
        return false;
    for (size_t i = 0; i < sizeof(arguments) / sizeof(arguments[0]); i++) {
        if (!has(c, arguments[i].optimizers))
            continue;
        json_t *value = take_argument(c, arguments[i].name);
        if (value && !json_is_null(value))
            kohya_set(t, arguments[i].field, value);
        else if (arguments[i].standard)
            kohya_set_new(
                t, arguments[i].field, json_loads(arguments[i].standard, JSON_DECODE_ANY, NULL));
        json_decref(value);
    }
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        json_t *value = has(c, plain[i].optimizers) ? take_argument(c, plain[i].name) : NULL;
        const bool ok = !value || kohya_is_one_of(value, plain[i].values) ||
                        refuse_argument(t, plain[i].name, value, plain[i].why);
        json_decref(value);
        if (!ok)
            return false;
    }
    const char *name;
    json_t *value;
    json_object_foreach(c->given, name, value) {
        return refuse_argument(t, name, value, "to be left out: this optimizer does not have it");
    }
    return true;
}

/* --- rates --- */

/* Takes a rate; one number may stand in a list. *out stays as it is if it is not given. */
static bool take_rate(struct translation *t, const char *key, double *out, bool *given) {
    json_t *value = kohya_take(t, key);
    const json_t *one = json_array_size(value) == 1 ? json_array_get(value, 0) : value;
    const bool ok = !value || (json_is_number(one) && json_number_value(one) >= 0) ||
                    kohya_refuse(t, key, value, "a number from 0");
    *given = value;
    if (ok && value)
        *out = json_number_value(one);
    json_decref(value);
    return ok;
}

static bool refuse_rate(struct translation *t, const char *key, double rate, const char *why) {
    json_t *value = json_real(rate);
    kohya_refuse(t, key, value, "%s", why);
    json_decref(value);
    return false;
}

static bool read_rates(struct translation *t, const struct choice *c) {
    static const char replaced[] = "Adafactor sets the rate itself, with relative_step";
    double rate = 2e-6; /* the scripts' default */
    bool given, for_unet, for_text;
    if (!take_rate(t, "learning_rate", &rate, &given))
        return false;
    double unet = rate, text = rate;
    if (!take_rate(t, "unet_lr", &unet, &for_unet) ||
        !take_rate(t, "text_encoder_lr", &text, &for_text))
        return false;
    const bool trains_text = json_is_true(json_object_get(t->job, "train_text_encoder"));
    if (for_text && !trains_text && text != 0)
        kohya_note(t, "text_encoder_lr", "the text encoder is not trained");
    if (c->sets_rate) {
        if (given)
            kohya_note(t, "learning_rate", replaced);
        if (for_unet)
            kohya_note(t, "unet_lr", replaced);
        if (for_text && trains_text)
            kohya_note(t, "text_encoder_lr", replaced);
        return true;
    }
    if (unet == 0)
        return refuse_rate(t, for_unet ? "unet_lr" : "learning_rate", unet,
            "a number above 0: the UNet is always trained");
    kohya_set_new(t, "learning_rate", json_real(unet));
    if (!trains_text || text == unet)
        return true;
    if (text == 0)
        return refuse_rate(t, "learning_rate", text,
            "a number above 0: it is the text encoder's rate, unless text_encoder_lr is given");
    if (c->optimizer == TRAIN_PRODIGY)
        return refuse_rate(t, for_text ? "text_encoder_lr" : "unet_lr", for_text ? text : unet,
            "one rate for the UNet and the text encoder: Prodigy has one");
    kohya_set_new(t, "text_encoder_learning_rate", json_real(text));
    return true;
}

/* --- the schedule --- */

/* Sets a field from a key that only one schedule has. */
static void take_for(struct translation *t, const char *key, const char *field, bool has_effect) {
    json_t *value = kohya_take(t, key);
    if (value && has_effect)
        kohya_set(t, field, value);
    else if (value)
        kohya_note(t, key, "this lr_scheduler has none");
    json_decref(value);
}

static bool read_warmup(struct translation *t) {
    json_t *warmup = kohya_take(t, "lr_warmup_steps");
    const bool ok = !warmup || json_is_number(warmup) ||
                    kohya_refuse(t, "lr_warmup_steps", warmup,
                        "an integer of steps, or a number below 1 as a share of all steps");
    if (ok && warmup && json_number_value(warmup) != 0)
        kohya_set(t, json_is_integer(warmup) ? "lr_warmup_steps" : "lr_warmup_ratio", warmup);
    json_decref(warmup);
    return ok;
}

static bool read_schedule(struct translation *t, const struct choice *c) {
    static const char names[] = "[\"constant\", \"constant_with_warmup\", \"linear\", \"cosine\", "
                                "\"cosine_with_restarts\", \"polynomial\"]";
    static const char *const keys[] = { "lr_scheduler", "lr_warmup_steps",
        "lr_scheduler_num_cycles", "lr_scheduler_power" };
    if (c->sets_rate) {
        for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
            json_t *value = kohya_take(t, keys[i]);
            if (value)
                kohya_note(t, keys[i], "Adafactor sets the rate itself, with relative_step");
            json_decref(value);
        }
        return true;
    }
    json_t *name = kohya_take(t, "lr_scheduler");
    const bool ok = (!name || kohya_is_one_of(name, names) ||
                        kohya_refuse(t, "lr_scheduler", name, "one of %s", names)) &&
                    read_warmup(t);
    if (ok && name)
        kohya_set(t, "lr_scheduler", name);
    take_for(t, "lr_scheduler_num_cycles", "lr_num_cycles",
        kohya_is_one_of(name, "[\"cosine_with_restarts\"]"));
    take_for(t, "lr_scheduler_power", "lr_power", kohya_is_one_of(name, "[\"polynomial\"]"));
    json_decref(name);
    return ok;
}

bool kohya_read_optimizer(struct translation *t) {
    struct choice c = { 0 };
    const bool ok = read_kind(t, &c) && kohya_take_arguments(t, "optimizer_args", &c.given) &&
                    read_arguments(t, &c) && read_rates(t, &c) && read_schedule(t, &c);
    json_decref(c.given);
    return ok;
}
