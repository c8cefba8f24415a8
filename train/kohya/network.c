/* The adapter of a kohya job: networks.lora of sd-scripts and lycoris.kohya of LyCORIS. */
#include "base/text/json.h"
#include "train/kohya/literal.h"
#include "train/kohya/translation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The layers that the modules train, by the ends of their names. Of networks.lora, those in
 * Transformer2DModel, with conv_dim also in ResnetBlock2D, Downsample2D and Upsample2D; of
 * lycoris.kohya, those of its presets. */
#define LAYERS_TRANSFORMER "to_q to_k to_v to_out.0 ff.net.0.proj ff.net.2 proj_in proj_out"
#define LAYERS_CONV LAYERS_TRANSFORMER " time_emb_proj conv_shortcut conv1 conv2 conv"
#define LAYERS_FULL LAYERS_CONV " conv_in conv_out time_embedding.linear_1 time_embedding.linear_2"
#define LAYERS_TEXT_ENCODER "q_proj k_proj v_proj out_proj fc1 fc2"

static json_t *layers(const char *names) {
    json_t *list = json_array();
    for (const char *at = names; *at;) {
        const size_t length = strcspn(at, " ");
        json_array_append_new(list, json_stringn(at, length));
        at += length + (at[length] == ' ');
    }
    return list;
}

/* Arguments with values that change nothing; others are refused. `module`: 0 networks.lora, 1
 * lycoris.kohya. Values are compared as Python's literals. */
static const struct {
    int module;
    const char *name, *values, *why;
} plain[] = {
    { 0, "rank_dropout", "[0, null]", "ranks are not dropped" },
    { 0, "module_dropout", "[0, null]", "layers are not dropped" },
    { 1, "dropout", "[0, null]", "dropout of LyCORIS drops outputs" },
    { 1, "rank_dropout", "[0, null]", "ranks are not dropped" },
    { 1, "module_dropout", "[0, null]", "layers are not dropped" },
    { 1, "use_tucker", "[false]", "convolutions are not decomposed by Tucker" },
    { 1, "use_cp", "[false]", "convolutions are not decomposed by Tucker" },
    { 1, "use_conv_cp", "[false]", "convolutions are not decomposed by Tucker" },
    { 1, "disable_conv_cp", "[true]", "convolutions are not decomposed by Tucker" },
    { 1, "use_scalar", "[false]", "the product has no factor that is trained" },
    { 1, "train_norm", "[false]", "norms are not trained" },
    { 1, "wd_on_output", "[true]", "DoRA has a magnitude for each output" },
    { 1, "bypass_mode", "[false, null]", "the sum of weights is computed" },
    { 1, "full_matrix", "[false]", "LoKr's factors are whole if the rank is large" },
    { 1, "constraint", "[0, null]", "it belongs to another algo" },
    { 1, "rescaled", "[false]", "it belongs to another algo" },
    { 1, "unbalanced_factorization", "[false]", "the smaller factor is the first" },
};

struct network {
    int module;
    json_t *arguments; /* owned: those still to be read */
    json_int_t dim;
    double alpha;
};

static bool refuse_argument(
    struct translation *t, const char *name, const json_t *value, const char *why) {
    char path[64];
    snprintf(path, sizeof(path), "network_args.%.40s", name);
    return kohya_refuse(t, path, value, "%s", why);
}

static json_t *take_argument(struct network *n, const char *name) {
    json_t *value = json_incref(json_object_get(n->arguments, name));
    json_object_del(n->arguments, name);
    return value;
}

/* Takes a flag; *out stays as it is if it is not given. */
static bool argument_flag(struct translation *t, struct network *n, const char *name, bool *out) {
    json_t *value = take_argument(n, name);
    const bool ok = !value || json_is_boolean(value) ||
                    refuse_argument(t, name, value, "True or False");
    if (value)
        *out = json_is_true(value);
    json_decref(value);
    return ok;
}

/* Takes a word in lower case letters; returns its place in `words`, which ends with NULL, or -1
 * with an error. `standard`: the place if it is not given. */
static int argument_word(struct translation *t, struct network *n, const char *name,
    const char *const *words, int standard, const char *allowed) {
    json_t *value = take_argument(n, name);
    int found = value ? -1 : standard;
    for (int i = 0; value && json_is_string(value) && words[i]; i++)
        if (strcmp(words[i], json_string_value(value)) == 0)
            found = i;
    if (found < 0)
        refuse_argument(t, name, value, allowed);
    json_decref(value);
    return found;
}

/* Checks that the convolutions of 3x3 have the size of the other layers: a job has one rank. */
static bool read_conv(struct translation *t, struct network *n, bool *given) {
    json_t *dim = take_argument(n, "conv_dim"), *alpha = take_argument(n, "conv_alpha");
    const double standard = n->module ? n->alpha : 1; /* networks.lora: 1, whatever network_alpha */
    bool ok = true;
    *given = dim;
    if (dim && json_number_value(dim) != (double)n->dim)
        ok = refuse_argument(
            t, "conv_dim", dim, "the network_dim: an adapter has one rank for all layers");
    if (ok && alpha && !dim && !n->module)
        kohya_note(t, "network_args.conv_alpha", "there is no conv_dim");
    else if (ok && (dim || n->module) && (alpha ? json_number_value(alpha) : standard) != n->alpha)
        ok = refuse_argument(
            t, "conv_alpha", alpha, "the network_alpha: an adapter has one alpha for all layers");
    json_decref(dim);
    json_decref(alpha);
    return ok;
}

static bool read_plain(struct translation *t, struct network *n) {
    for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
        json_t *value = plain[i].module == n->module ? take_argument(n, plain[i].name) : NULL;
        const bool ok = !value || kohya_is_one_of(value, plain[i].values) ||
                        refuse_argument(t, plain[i].name, value, plain[i].why);
        json_decref(value);
        if (!ok)
            return false;
    }
    const char *name;
    json_t *value;
    json_object_foreach(n->arguments, name, value) {
        return refuse_argument(t, name, value, "to be left out: it is not implemented");
    }
    return true;
}

static void set_factors(struct translation *t, const char *targets) {
    kohya_set_new(t, "target_modules", layers(targets));
    if (json_is_true(json_object_get(t->job, "train_text_encoder")))
        kohya_set_new(t, "text_encoder_target_modules", layers(LAYERS_TEXT_ENCODER));
}

static void set_lora(struct translation *t) {
    kohya_set_new(t, "init_lora_weights", json_string("kaiming"));
    kohya_set_new(t, "save_format", json_string("kohya"));
}

static bool read_lora(struct translation *t, struct network *n) {
    bool with_conv;
    if (!read_conv(t, n, &with_conv))
        return false;
    set_lora(t);
    set_factors(t, with_conv ? LAYERS_CONV : LAYERS_TRANSFORMER);
    return read_plain(t, n);
}

static bool read_lokr(struct translation *t, struct network *n) {
    json_t *factor = take_argument(n, "factor");
    bool both = false;
    const bool ok = argument_flag(t, n, "decompose_both", &both);
    if (ok && factor)
        kohya_set(t, "lokr_factor", factor);
    if (ok && both)
        kohya_set_new(t, "lokr_decompose_both", json_true());
    json_decref(factor);
    return ok;
}

static bool read_lycoris(struct translation *t, struct network *n) {
    static const char *const algos[] = { "lora", "locon", "loha", "lokr", NULL };
    static const char *const presets[] = { "full", "attn-mlp", NULL };
    bool given, dora = false, by_root = false;
    const int algo = argument_word(
        t, n, "algo", algos, 0, "lora, locon, loha or lokr: the others are not implemented");
    const int preset = algo < 0 ? -1
                                : argument_word(t, n, "preset", presets, 0,
                                      "full or attn-mlp; a job of latentd's own has "
                                      "target_modules for any layers");
    if (preset < 0 || !read_conv(t, n, &given) || !argument_flag(t, n, "dora_wd", &dora) ||
        !argument_flag(t, n, "rs_lora", &by_root))
        return false;
    if (dora)
        kohya_set_new(t, "use_dora", json_true());
    if (by_root)
        kohya_set_new(t, "use_rslora", json_true());
    if (algo < 2)
        set_lora(t);
    else
        kohya_set_new(t, "adapter_type", json_string(algos[algo]));
    set_factors(t, preset ? LAYERS_TRANSFORMER : LAYERS_FULL);
    return (algo != 3 || read_lokr(t, n)) && read_plain(t, n);
}

static bool read_size(struct translation *t, struct network *n) {
    json_t *alpha = kohya_take(t, "network_alpha");
    const bool ok = (!alpha || json_is_number(alpha) ||
                        kohya_refuse(t, "network_alpha", alpha, "a number")) &&
                    kohya_take_integer(t, "network_dim", 1, &n->dim, NULL);
    if (alpha)
        n->alpha = json_number_value(alpha);
    json_decref(alpha);
    if (ok) {
        kohya_set_new(t, "rank", json_integer(n->dim));
        kohya_set_new(t, "alpha", json_real(n->alpha));
    }
    return ok;
}

bool kohya_read_network(struct translation *t) {
    json_t *module = kohya_take(t, "network_module");
    const bool is_lora = kohya_is_one_of(module, "[\"networks.lora\"]");
    const bool is_lycoris = kohya_is_one_of(module, "[\"lycoris.kohya\"]");
    struct network n = { .module = is_lycoris, .dim = 4, .alpha = 1 };
    bool unet_only = false;
    bool ok = is_lora || is_lycoris ||
              kohya_refuse(t, "network_module", module, "\"networks.lora\" or \"lycoris.kohya\"");
    json_decref(module);
    ok = ok && read_size(t, &n) && kohya_take_flag(t, "network_train_unet_only", &unet_only) &&
         kohya_take_arguments(t, "network_args", &n.arguments);
    if (ok) {
        json_t *rate = json_object_get(t->from, "text_encoder_lr");
        const json_t *first = json_is_array(rate) ? json_array_get(rate, 0) : rate;
        const bool is_still = json_is_number(first) && json_number_value(first) == 0;
        if (is_still && !unet_only)
            json_array_append_new(t->notes,
                json_string("text_encoder_lr: with a rate of 0 the text encoder is not trained"));
        kohya_set_new(t, "train_text_encoder", json_boolean(!unet_only && !is_still));
        ok = is_lycoris ? read_lycoris(t, &n) : read_lora(t, &n);
    }
    json_decref(n.arguments);
    return ok;
}
