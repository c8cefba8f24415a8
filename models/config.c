/* Parses the config.json files of the components. There are three kinds of keys: those that are
 * read as values, those that must match what our arithmetic does, and those that do not affect the
 * arithmetic. Any other key is refused unless it is null or false, which is how later features are
 * switched off. Missing keys get the defaults of diffusers and transformers. */
#include "models/config.h"

#include "base/text/json.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX_SIZE (1 << 20) /* limit of widths, vocabularies and image sizes */

struct reader {
    const json_t *json;
    struct error *err;
    bool ok;
};

static void unsupported(
    struct reader *r, const char *key, const json_t *value, const char *supported) {
    char shown[96];
    if (r->ok)
        error_set(r->err, ERROR_UNSUPPORTED, "%s is %s; supported: %s", key,
            json_describe(value, shown, sizeof(shown)), supported);
    r->ok = false;
}

static void invalid(struct reader *r, const char *key, const json_t *value, const char *needed) {
    char shown[96];
    if (r->ok)
        error_set(r->err, ERROR_INVALID, "%s is %s; %s is needed", key,
            json_describe(value, shown, sizeof(shown)), needed);
    r->ok = false;
}

static int read_int(struct reader *r, const char *key, int fallback) {
    const json_t *value = json_object_get(r->json, key);
    int64_t number = fallback;
    if (value && !json_is_null(value) &&
        (!json_exact_integer(value, &number) || number < 1 || number > CONFIG_MAX_SIZE))
        invalid(r, key, value, "an integer from 1 to 1048576");
    return r->ok ? (int)number : fallback;
}

static float read_float(
    struct reader *r, const char *key, double fallback, double min, double max) {
    const json_t *value = json_object_get(r->json, key);
    if (!value || json_is_null(value))
        return (float)fallback;
    const double number = json_number_value(value);
    if (!json_is_number(value) || number < min || number > max) {
        char needed[64];
        snprintf(needed, sizeof(needed), "a number from %g to %g", min, max);
        invalid(r, key, value, needed);
    }
    return (float)number;
}

/* Reads a token of the vocabulary; -1 if the key is absent. */
static int read_token(struct reader *r, const char *key, int vocab_size) {
    const json_t *value = json_object_get(r->json, key);
    int64_t id = -1;
    if (!value || json_is_null(value))
        return -1;
    if (!json_exact_integer(value, &id) || id < 0 || id >= vocab_size) {
        char needed[64];
        snprintf(needed, sizeof(needed), "a token below vocab_size, %d,", vocab_size);
        invalid(r, key, value, needed);
    }
    return (int)id;
}

static bool read_bool(struct reader *r, const char *key, bool fallback) {
    const json_t *value = json_object_get(r->json, key);
    if (!value || json_is_null(value))
        return fallback;
    if (!json_is_boolean(value))
        invalid(r, key, value, "true or false");
    return json_is_true(value);
}

/* Reads a list of `count` sizes, or one size for all of them. */
static void read_sizes(struct reader *r, const char *key, int count, int fallback, int *out) {
    const json_t *value = json_object_get(r->json, key);
    for (int i = 0; i < count; i++) {
        const json_t *item = json_is_array(value) ? json_array_get(value, (size_t)i) : value;
        int64_t number = fallback;
        if (item && !json_is_null(item) &&
            (!json_exact_integer(item, &number) || number < 1 || number > CONFIG_MAX_SIZE))
            invalid(r, key, value, "an integer from 1 to 1048576, or a list of them");
        out[i] = (int)number;
    }
    if (json_is_array(value) && json_array_size(value) != (size_t)count)
        invalid(r, key, value, "one value, or one per block");
}

/* Reads block_out_channels. Returns the number of blocks, at least 1. */
static int read_channels(struct reader *r, const int *fallback, int fallback_count, int *out) {
    const json_t *value = json_object_get(r->json, "block_out_channels");
    if (!value) {
        memcpy(out, fallback, (size_t)fallback_count * sizeof(*out));
        return fallback_count;
    }
    size_t count = json_array_size(value);
    if (count < 1 || count > CONFIG_MAX_BLOCKS) {
        invalid(r, "block_out_channels", value, "a list of 1 to 8 sizes");
        return 1;
    }
    read_sizes(r, "block_out_channels", (int)count, 0, out);
    return (int)count;
}

/* Reads a list of block types. out[i] is whether entry i is `attention` instead of `plain`. */
static void read_block_types(struct reader *r, const char *key, int count, const char *plain,
    const char *attention, const bool *fallback, bool *out) {
    const json_t *value = json_object_get(r->json, key);
    if (!value) {
        memcpy(out, fallback, (size_t)count * sizeof(*out));
        return;
    }
    if (json_array_size(value) != (size_t)count) {
        invalid(r, key, value, "a list with one block type per entry of block_out_channels");
        return;
    }
    for (int i = 0; i < count; i++) {
        const char *word = json_string_value(json_array_get(value, (size_t)i));
        out[i] = attention && word && strcmp(word, attention) == 0;
        if (!out[i] && (!word || strcmp(word, plain) != 0)) {
            char supported[96];
            snprintf(supported, sizeof(supported), "%s%s%s", plain, attention ? ", " : "",
                attention ? attention : "");
            unsupported(r, key, json_array_get(value, (size_t)i), supported);
        }
    }
}

/* A key and the value that it must have, as JSON. "|" separates alternatives; "*" is any value. */
struct fixed_key {
    const char *key, *values;
};

static bool value_is_one_of(const json_t *value, const char *values) {
    if (strcmp(values, "*") == 0)
        return true;
    for (const char *at = values; at;) {
        const char *bar = strchr(at, '|');
        json_t *wanted = json_loadb(
            at, bar ? (size_t)(bar - at) : strlen(at), JSON_DECODE_ANY, NULL);
        bool same = json_equal(value, wanted) ||
                    (json_is_number(value) && json_is_number(wanted) &&
                        json_number_value(value) == json_number_value(wanted));
        json_decref(wanted);
        if (same)
            return true;
        at = bar ? bar + 1 : NULL;
    }
    return false;
}

/* Checks that every key is in one of the two tables (or is null or false, or begins with "_"). */
static void check_keys(
    struct reader *r, const char *const *values, const struct fixed_key *fixed, bool strict) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)r->json, key, value) {
        bool known = key[0] == '_';
        for (int i = 0; !known && values[i]; i++)
            known = strcmp(key, values[i]) == 0;
        for (int i = 0; !known && fixed[i].key; i++) {
            if (strcmp(key, fixed[i].key) != 0)
                continue;
            known = true;
            if (!value_is_one_of(value, fixed[i].values))
                unsupported(r, key, value, fixed[i].values);
        }
        if (!known && strict && !json_is_null(value) && !json_is_false(value))
            unsupported(r, key, value, "no value of this key, which is not known here");
    }
}

static bool reader_start(struct reader *r, const json_t *json, struct error *err) {
    *r = (struct reader){ json, err, json_is_object(json) };
    return r->ok || error_set(err, ERROR_INVALID, "the config is not a JSON object");
}

static void check_divides(
    struct reader *r, const char *what, int size, const char *by, int number) {
    if (r->ok && (number < 1 || size % number != 0)) {
        error_set(r->err, ERROR_INVALID, "%s is %d, which is not a multiple of %s, %d", what, size,
            by, number);
        r->ok = false;
    }
}

static enum activation read_text_activation(struct reader *r) {
    const json_t *value = json_object_get(r->json, "hidden_act");
    const char *word = value ? json_string_value(value) : "quick_gelu";
    if (word && strcmp(word, "quick_gelu") == 0)
        return ACTIVATION_QUICK_GELU;
    if (!word || strcmp(word, "gelu") != 0)
        unsupported(r, "hidden_act", value, "quick_gelu, gelu");
    return ACTIVATION_GELU;
}

bool text_encoder_config_parse(
    const json_t *json, struct text_encoder_config *out, struct error *err) {
    static const char *const values[] = { NULL };
    static const struct fixed_key fixed[] = {
        { "model_type", "\"clip_text_model\"|\"clip\"" },
        { "use_attention_mask", "false|null" }, /* SD was trained with attention to the padding */
        { NULL, NULL },
    };
    struct reader r;
    memset(out, 0, sizeof(*out));
    if (!reader_start(&r, json, err))
        return false;
    out->vocab_size = read_int(&r, "vocab_size", 49408);
    out->hidden_size = read_int(&r, "hidden_size", 512);
    out->intermediate_size = read_int(&r, "intermediate_size", 2048);
    out->num_hidden_layers = read_int(&r, "num_hidden_layers", 12);
    out->num_attention_heads = read_int(&r, "num_attention_heads", 8);
    out->max_position_embeddings = read_int(&r, "max_position_embeddings", 77);
    out->layer_norm_eps = read_float(&r, "layer_norm_eps", 1e-5, 0, 1);
    out->hidden_act = read_text_activation(&r);
    out->eos_token_id = read_token(&r, "eos_token_id", out->vocab_size);
    /* These two values are not used, but a config with invalid tokens is refused. */
    (void)read_token(&r, "bos_token_id", out->vocab_size);
    (void)read_token(&r, "pad_token_id", out->vocab_size);
    /* A transformers config has dozens of keys that only transformers itself reads. */
    check_keys(&r, values, fixed, false);
    check_divides(
        &r, "hidden_size", out->hidden_size, "num_attention_heads", out->num_attention_heads);
    if (r.ok && out->max_position_embeddings < 3)
        invalid(&r, "max_position_embeddings", json_object_get(json, "max_position_embeddings"),
            "at least 3 (begin, a token, end)");
    return r.ok || error_prefix(err, "text encoder config");
}

/* Reads a size. Newer files have an object in place of the number: 224 or {"shortest_edge":
 * 224}. */
static int read_side(
    struct reader *r, const char *key, const char *member, const char *other, int fallback) {
    const json_t *value = json_object_get(r->json, key);
    struct reader inner = *r;
    if (!json_is_object(value))
        return read_int(r, key, fallback);
    inner.json = value;
    const int side = read_int(&inner, member, fallback);
    if (inner.ok && other && read_int(&inner, other, side) != side)
        unsupported(&inner, key, value, "a square");
    r->ok = inner.ok;
    return side;
}

static void read_channels_of(
    struct reader *r, const char *key, const double fallback[3], double min, float out[3]) {
    const json_t *value = json_object_get(r->json, key);
    if (value && json_array_size(value) != 3)
        invalid(r, key, value, "a list of 3 numbers");
    for (size_t i = 0; i < 3; i++) {
        const json_t *item = json_array_get(value, i);
        const double number = item ? json_number_value(item) : fallback[i];
        if (item && (!json_is_number(item) || number < min || number > 10))
            invalid(r, key, value, "a list of 3 numbers up to 10, none of them below the least");
        out[i] = (float)number;
    }
}

static bool preprocessor_parse(
    const json_t *json, struct safety_checker_config *out, struct error *err) {
    static const char *const values[] = { NULL };
    static const struct fixed_key fixed[] = {
        { "do_resize", "true" },
        { "do_center_crop", "true" },
        { "do_rescale", "true" },
        { "do_normalize", "true" },
        { "resample", "3" }, /* bicubic */
        { NULL, NULL },
    };
    static const double mean[3] = { 0.48145466, 0.4578275, 0.40821073 };
    static const double std[3] = { 0.26862954, 0.26130258, 0.27577711 };
    struct reader r;
    if (!reader_start(&r, json, err))
        return false;
    out->resize = read_side(&r, "size", "shortest_edge", NULL, 224);
    const int crop = read_side(&r, "crop_size", "height", "width", 224);
    out->rescale_factor = read_float(&r, "rescale_factor", 1.0 / 255, 0, 1);
    read_channels_of(&r, "image_mean", mean, -10, out->image_mean);
    read_channels_of(&r, "image_std", std, 1e-3, out->image_std);
    check_keys(&r, values, fixed, false);
    if (r.ok && crop != out->image_size)
        r.ok = error_set(err, ERROR_INVALID, "crop_size is %d, and the tower's image_size is %d",
            crop, out->image_size);
    return r.ok || error_prefix(err, "preprocessor config");
}

bool safety_checker_config_parse(const json_t *json, const json_t *preprocessor,
    struct safety_checker_config *out, struct error *err) {
    static const char *const values[] = { NULL };
    static const struct fixed_key fixed[] = { { "num_channels", "3" }, { NULL, NULL } };
    struct reader r;
    memset(out, 0, sizeof(*out));
    if (!reader_start(&r, json, err))
        return false;
    out->projection_dim = read_int(&r, "projection_dim", 512);
    r.json = json_object_get(json, "vision_config");
    if (!json_is_object(r.json))
        return error_set(err, ERROR_INVALID, "safety checker config: there is no vision_config");
    out->hidden_size = read_int(&r, "hidden_size", 768);
    out->intermediate_size = read_int(&r, "intermediate_size", 3072);
    out->num_hidden_layers = read_int(&r, "num_hidden_layers", 12);
    out->num_attention_heads = read_int(&r, "num_attention_heads", 12);
    out->image_size = read_int(&r, "image_size", 224);
    out->patch_size = read_int(&r, "patch_size", 32);
    out->layer_norm_eps = read_float(&r, "layer_norm_eps", 1e-5, 0, 1);
    out->hidden_act = read_text_activation(&r);
    check_keys(&r, values, fixed, false);
    check_divides(
        &r, "hidden_size", out->hidden_size, "num_attention_heads", out->num_attention_heads);
    if (r.ok && (out->image_size > CLIP_IMAGE_MAX_PX || out->patch_size > out->image_size))
        invalid(&r, "image_size", json_object_get(r.json, "image_size"),
            "a side of at most 1024 px, and at least a patch's,");
    if (!r.ok)
        return error_prefix(err, "safety checker config");
    return preprocessor_parse(preprocessor, out, err);
}

static const char *const unet_values[] = { "sample_size", "in_channels", "out_channels",
    "block_out_channels", "down_block_types", "up_block_types", "layers_per_block",
    "attention_head_dim", "cross_attention_dim", "norm_num_groups", "norm_eps", "flip_sin_to_cos",
    "freq_shift", "use_linear_projection", "upcast_attention", NULL };

static const struct fixed_key unet_fixed[] = {
    { "act_fn", "\"silu\"|\"swish\"" },
    { "mid_block_type", "\"UNetMidBlock2DCrossAttn\"" },
    { "center_input_sample", "false" },
    { "downsample_padding", "1" },
    { "mid_block_scale_factor", "1" },
    { "transformer_layers_per_block", "1|[1]|[1,1]|[1,1,1]|[1,1,1,1]" },
    { "only_cross_attention",
        "false|[false]|[false,false]|[false,false,false]|[false,false,false,false]" },
    { "num_attention_heads", "null" }, /* refused by diffusers too */
    { "resnet_time_scale_shift", "\"default\"" },
    { "resnet_out_scale_factor", "1" },
    { "time_embedding_type", "\"positional\"" },
    { "time_embedding_dim", "null" },
    { "conv_in_kernel", "3" },
    { "conv_out_kernel", "3" },
    { "attention_type", "\"default\"" },
    { "addition_embed_type_num_heads", "*" }, /* only read with addition_embed_type */
    { "dropout", "*" },                       /* only affects training */
    /* The state of diffusers' EMA wrapper, which stays in the configs that it saves. */
    { "decay", "*" },
    { "min_decay", "*" },
    { "inv_gamma", "*" },
    { "power", "*" },
    { "optimization_step", "*" },
    { "update_after_step", "*" },
    { "use_ema_warmup", "*" },
    { NULL, NULL },
};

/* Reads one number for all blocks, or a list of equal numbers. */
static int read_layers_per_block(struct reader *r, int blocks, int fallback) {
    int layers[CONFIG_MAX_BLOCKS];
    read_sizes(r, "layers_per_block", blocks, fallback, layers);
    for (int i = 1; i < blocks; i++)
        if (layers[i] != layers[0])
            unsupported(r, "layers_per_block", json_object_get(r->json, "layers_per_block"),
                "the same number for every block");
    return layers[0];
}

/* Reads a pair of equal numbers, [a, a], or a. */
static int read_sample_size(struct reader *r, int fallback) {
    int size[2];
    read_sizes(r, "sample_size", 2, fallback, size);
    if (size[0] != size[1])
        unsupported(r, "sample_size", json_object_get(r->json, "sample_size"), "a square");
    return size[0];
}

bool unet_config_parse(const json_t *json, struct unet_config *out, struct error *err) {
    static const int channels[] = { 320, 640, 1280, 1280 };
    bool down[CONFIG_MAX_BLOCKS], up[CONFIG_MAX_BLOCKS];
    struct reader r;
    memset(out, 0, sizeof(*out));
    if (!reader_start(&r, json, err))
        return false;
    out->sample_size = read_sample_size(&r, 64);
    out->in_channels = read_int(&r, "in_channels", 4);
    out->out_channels = read_int(&r, "out_channels", 4);
    out->block_count = read_channels(&r, channels, 4, out->block_out_channels);
    for (int i = 0; i < CONFIG_MAX_BLOCKS; i++) {
        down[i] = i != out->block_count - 1; /* the default: all except the lowest level */
        up[i] = i != 0;
    }
    read_block_types(&r, "down_block_types", out->block_count, "DownBlock2D",
        "CrossAttnDownBlock2D", down, out->down_has_attention);
    read_block_types(&r, "up_block_types", out->block_count, "UpBlock2D", "CrossAttnUpBlock2D", up,
        out->up_has_attention);
    out->layers_per_block = read_layers_per_block(&r, out->block_count, 2);
    read_sizes(&r, "attention_head_dim", out->block_count, 8, out->heads);
    out->cross_attention_dim = read_int(&r, "cross_attention_dim", 1280);
    out->norm_num_groups = read_int(&r, "norm_num_groups", 32);
    out->norm_eps = read_float(&r, "norm_eps", 1e-5, 0, 1);
    out->flip_sin_to_cos = read_bool(&r, "flip_sin_to_cos", true);
    out->freq_shift = read_float(&r, "freq_shift", 0, 0, 1);
    out->use_linear_projection = read_bool(&r, "use_linear_projection", false);
    out->upcast_attention = read_bool(&r, "upcast_attention", false);
    check_keys(&r, unet_values, unet_fixed, true);
    for (int i = 0; r.ok && i < out->block_count; i++) {
        int width = out->block_out_channels[i];
        check_divides(&r, "block_out_channels", width, "norm_num_groups", out->norm_num_groups);
        if (out->down_has_attention[i] || out->up_has_attention[out->block_count - 1 - i] ||
            i == out->block_count - 1)
            check_divides(&r, "block_out_channels", width, "attention_head_dim", out->heads[i]);
    }
    check_divides(&r, "block_out_channels", out->block_out_channels[0], "the sine/cosine pair", 2);
    return r.ok || error_prefix(err, "unet config");
}

static const char *const vae_values[] = { "in_channels", "out_channels", "latent_channels",
    "block_out_channels", "down_block_types", "up_block_types", "layers_per_block",
    "norm_num_groups", "sample_size", "scaling_factor", NULL };

static const struct fixed_key vae_fixed[] = {
    { "act_fn", "\"silu\"|\"swish\"" },
    { "use_quant_conv", "true" },
    { "use_post_quant_conv", "true" },
    { "mid_block_add_attention", "true" },
    { "shift_factor", "null|0" },
    { "latents_mean", "null" },
    { "latents_std", "null" },
    { "force_upcast", "*" }, /* for f16; nothing here computes in f16 */
    { NULL, NULL },
};

bool vae_config_parse(const json_t *json, struct vae_config *out, struct error *err) {
    static const int channels[] = { 64 };
    static const bool none[CONFIG_MAX_BLOCKS];
    bool ignored[CONFIG_MAX_BLOCKS];
    struct reader r;
    memset(out, 0, sizeof(*out));
    if (!reader_start(&r, json, err))
        return false;
    out->in_channels = read_int(&r, "in_channels", 3);
    out->out_channels = read_int(&r, "out_channels", 3);
    out->latent_channels = read_int(&r, "latent_channels", 4);
    out->block_count = read_channels(&r, channels, 1, out->block_out_channels);
    read_block_types(
        &r, "down_block_types", out->block_count, "DownEncoderBlock2D", NULL, none, ignored);
    read_block_types(
        &r, "up_block_types", out->block_count, "UpDecoderBlock2D", NULL, none, ignored);
    out->layers_per_block = read_layers_per_block(&r, out->block_count, 1);
    out->norm_num_groups = read_int(&r, "norm_num_groups", 32);
    out->sample_size = read_sample_size(&r, 32);
    out->scaling_factor = read_float(&r, "scaling_factor", 0.18215, 1e-4, 1e4);
    check_keys(&r, vae_values, vae_fixed, true);
    for (int i = 0; i < out->block_count; i++)
        check_divides(&r, "block_out_channels", out->block_out_channels[i], "norm_num_groups",
            out->norm_num_groups);
    return r.ok || error_prefix(err, "vae config");
}
