#include "train/save_adapter.h"

#include "models/checkpoint/safetensors.h"
#include "train/optimizer/learning_rate.h"
#include "train/optimizer/optimizer.h"
#include "train/optimizer/products.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- tensors --- */

#define MODULE_TENSORS_MAX 5
struct file {
    struct safetensors_item *items; /* at most five per module; their names and data are owned */
    size_t count;
};

static void file_finish(struct file *f) {
    for (size_t i = 0; i < f->count; i++) {
        free((char *)f->items[i].name);
        free(f->items[i].tensor.data);
    }
    free(f->items);
}

/* Takes over `name`, which may be NULL if memory is short. */
static bool add(struct file *f, char *name, const float *values, enum dtype dtype, int rank,
    const int64_t *shape, struct error *err) {
    struct safetensors_item *item = &f->items[f->count++];
    *item = (struct safetensors_item){ name, { .dtype = dtype, .rank = rank } };
    for (int i = 0; i < rank; i++)
        item->tensor.shape[i] = shape[i];
    const int64_t count = tensor_elements(&item->tensor);
    item->tensor.data = malloc((size_t)count * dtype_size(dtype));
    if (!name || !item->tensor.data)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an adapter's tensors");
    convert_elements(item->tensor.data, dtype, values, DTYPE_F32, count);
    return true;
}

/* How a format names the tensors of one component. */
struct naming {
    const char *prefix, *down, *up, *alpha; /* alpha NULL: written to the metadata instead */
    bool underscores;                       /* in place of the dots of a layer's name */
};
static const struct naming kohya[] = { /* UNet, text encoder */
    { "lora_unet_", ".lora_down.weight", ".lora_up.weight", ".alpha", true },
    { "lora_te_", ".lora_down.weight", ".lora_up.weight", ".alpha", true }
};
static const struct naming diffusers[] = { { "unet.", ".lora_A.weight", ".lora_B.weight", NULL,
                                               false },
    { "text_encoder.", ".lora_A.weight", ".lora_B.weight", NULL, false } };
/* The older names of the attention projections, from before peft. */
static const struct naming diffusers_attention[] = { { "unet.", ".lora.down.weight",
                                                         ".lora.up.weight", NULL, false },
    { "text_encoder.", ".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight", NULL,
        false } };

static bool ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), n = strlen(end);
    return length >= n && strcmp(name + length - n, end) == 0;
}

static bool ends_with_one(const char *name, const char *const *ends) {
    while (*ends && !ends_with(name, *ends))
        ends++;
    return *ends != NULL;
}

static bool is_attention(const struct trained_module *m) {
    static const char *const projections[] = { ".to_q", ".to_k", ".to_v", ".to_out.0", ".q_proj",
        ".k_proj", ".v_proj", ".out_proj", NULL };
    return ends_with_one(m->target->name, projections);
}

/* diffusers writes both kinds of names into one file, and then cannot read it: it expects only the
 * attention names, or only the others. So if other layers are trained too, all names are peft's. */
static bool is_attention_alone(const struct parameters *p) {
    for (size_t i = 0; i < p->count; i++)
        if (!is_attention(&p->modules[i]))
            return false;
    return true;
}

static const struct naming *naming_of(
    enum train_save_format format, const struct parameters *p, const struct trained_module *m) {
    const bool is_text = m->component == COMPONENT_TEXT_ENCODER;
    if (format == TRAIN_SAVE_KOHYA)
        return &kohya[is_text];
    return is_attention_alone(p) ? &diffusers_attention[is_text] : &diffusers[is_text];
}

/* Returns a name, malloc'd; NULL if memory is short. */
static char *tensor_name(const struct naming *naming, const char *layer, const char *suffix) {
    char *name;
    const int length = asprintf(&name, "%s%s%s", naming->prefix, layer, suffix);
    if (length < 0)
        return NULL;
    char *at = name + strlen(naming->prefix), *end = name + (size_t)length - strlen(suffix);
    for (; naming->underscores && at < end; at++)
        if (*at == '.')
            *at = '_';
    return name;
}

/* proj_in and proj_out are linear layers in the model, but may be convolutions in a file. */
static bool is_conv_in_file(const struct named_weight *w, const struct adapter_facts *facts) {
    static const char *const projections[] = { ".proj_in", ".proj_out", NULL };
    return w->is_conv || (!facts->linear_projection && ends_with_one(w->name, projections));
}

static bool add_module(struct file *f, enum train_save_format format, const struct parameters *p,
    const struct trained_module *m, const float *values, enum dtype dtype,
    const struct adapter_facts *facts, struct error *err) {
    const struct named_weight *w = m->target;
    const int64_t side = w->is_conv && w->kind != CONV_1X1 ? 3 : 1;
    const int64_t down_shape[] = { p->rank, w->k, side, side },
                  up_shape[] = { w->n, p->rank, 1, 1 };
    const struct naming *naming = naming_of(format, p, m);
    float *down = malloc((size_t)(p->rank * w->k * side * side) * sizeof(float));
    float *up = malloc((size_t)(w->n * p->rank) * sizeof(float));
    bool ok = down && up;
    if (ok)
        parameters_plain(m, p->rank, values, down, up);
    else
        error_set(err, ERROR_NO_MEMORY, "no memory for the factors of %s", w->name);
    const int rank = is_conv_in_file(w, facts) ? 4 : 2;
    /* Readers divide this alpha by the rank. For rsLoRA LyCORIS writes it so that they get the
     * right scale. */
    const float alpha = (float)(p->scale * (double)p->rank);
    ok = ok &&
         add(f, tensor_name(naming, w->name, naming->down), down, dtype, rank, down_shape, err) &&
         add(f, tensor_name(naming, w->name, naming->up), up, dtype, rank, up_shape, err) &&
         (!naming->alpha ||
             add(f, tensor_name(naming, w->name, naming->alpha), &alpha, dtype, 0, NULL, err));
    free(down);
    free(up);
    return ok;
}

/* The tensors of a module of products.h. */
struct product_file {
    struct file *file;
    const struct naming *naming;
    const struct product_module *module;
    const float *values;
    enum dtype dtype;
    bool is_conv;
    int64_t side; /* of a kernel */
};

/* Adds a matrix; of a convolution's weights with 4 dimensions if `is_kernel`. */
static bool add_matrix(const struct product_file *to, const char *suffix, int64_t at, int64_t rows,
    int64_t cols, bool is_kernel, struct error *err) {
    const int64_t side = cols % (to->side * to->side) ? 1 : to->side;
    const int64_t shape[] = { rows, is_kernel ? cols / (side * side) : cols, side, side };
    return add(to->file, tensor_name(to->naming, to->module->target->name, suffix), to->values + at,
        to->dtype, is_kernel ? 4 : 2, shape, err);
}

/* Adds a factor of LoHa or LoKr, whole or as the products _a and _b. */
static bool add_factor(const struct product_file *to, const char *name, int number, bool is_kernel,
    struct error *err) {
    const struct product_factor *factor = &to->module->factors[number];
    char a[32], b[32];
    snprintf(a, sizeof(a), ".%s%d%s", name, number + 1, factor->rank ? "_a" : "");
    snprintf(b, sizeof(b), ".%s%d_b", name, number + 1);
    if (!factor->rank)
        return add_matrix(to, a, factor->a, factor->rows, factor->cols, is_kernel, err);
    return add_matrix(to, a, factor->a, factor->rows, factor->rank, false, err) &&
           add_matrix(to, b, factor->b, factor->rank, factor->cols, false, err);
}

/* Adds down and up of DoRA, and its magnitudes: [n] or [1][n][1][1] in peft, [n][1] or [n][1][1][1]
 * in LyCORIS. */
static bool add_dora(const struct product_file *to, bool is_peft, struct error *err) {
    const struct product_module *m = to->module;
    const struct product_factor *factor = &m->factors[0];
    const int64_t n = m->target->n, lycoris[] = { n, 1, 1, 1 }, peft[] = { 1, n, 1, 1 };
    float *const values = (float *)to->values; /* only read */
    const struct naming *names = to->naming;
    const int64_t down[] = { factor->rank, factor->cols / (to->side * to->side), to->side,
        to->side };
    const int64_t up[] = { n, factor->rank, 1, 1 };
    const int rank = to->is_conv ? 4 : 2;
    return add(to->file, tensor_name(names, m->target->name, names->down), values + factor->b,
               to->dtype, rank, down, err) &&
           add(to->file, tensor_name(names, m->target->name, names->up), values + factor->a,
               to->dtype, rank, up, err) &&
           add(to->file,
               tensor_name(
                   names, m->target->name, is_peft ? ".lora_magnitude_vector" : ".dora_scale"),
               values + m->magnitude, to->dtype, is_peft && !to->is_conv ? 1 : rank,
               is_peft && to->is_conv ? peft : lycoris, err);
}

static bool add_product(struct file *f, enum train_save_format format, const struct products *s,
    const struct product_module *m, const float *values, enum dtype dtype,
    const struct adapter_facts *facts, struct error *err) {
    const bool is_text = m->component == COMPONENT_TEXT_ENCODER;
    const bool is_lora = s->kind == TRAIN_ADAPTER_LORA;
    const bool is_peft = is_lora && format != TRAIN_SAVE_KOHYA;
    const struct product_file to = { f, is_peft ? &diffusers[is_text] : &kohya[is_text], m, values,
        dtype, is_conv_in_file(m->target, facts),
        m->target->is_conv && m->target->kind != CONV_1X1 ? 3 : 1 };
    const float alpha = (float)m->alpha;
    const char *name = s->kind == TRAIN_ADAPTER_LOHA ? "hada_w" : "lokr_w";
    const bool is_lokr = s->kind == TRAIN_ADAPTER_LOKR;
    if (is_lora ? !add_dora(&to, is_peft, err)
                : !add_factor(&to, name, 0, false, err) ||
                      !add_factor(&to, name, 1, is_lokr && to.is_conv, err))
        return false;
    return is_peft ||
           add(f, tensor_name(to.naming, m->target->name, ".alpha"), &alpha, dtype, 0, NULL, err);
}

/* --- metadata --- */

static json_t *list_of(const struct train_texts *texts) {
    json_t *list = json_array();
    for (size_t i = 0; i < texts->count; i++)
        json_array_append_new(list, json_string(texts->items[i]));
    return list;
}

/* Adds one component's part of peft's LoraConfig: the required values, and those that are not
 * defaults. */
static void add_peft(json_t *to, const char *component, const struct train_config *c,
    const struct train_texts *targets) {
    json_t *gaussian = c->init_lora_weights == TRAIN_INIT_GAUSSIAN ? json_string("gaussian")
                                                                   : json_true();
    json_t *config = json_pack("{s:s, s:I, s:o, s:f, s:s, s:o, s:o}", "peft_type", "LORA", "r",
        (json_int_t)c->rank, "lora_alpha",
        c->alpha == (double)(json_int_t)c->alpha ? json_integer((json_int_t)c->alpha)
                                                 : json_real(c->alpha),
        "lora_dropout", 0.0, "bias", "none", "init_lora_weights", gaussian, "target_modules",
        list_of(targets));
    if (c->use_rslora)
        json_object_set_new(config, "use_rslora", json_true());
    if (c->use_dora)
        json_object_set_new(config, "use_dora", json_true());
    const char *key;
    json_t *value;
    json_object_foreach(config, key, value) {
        char name[64];
        snprintf(name, sizeof(name), "%s.%s", component, key);
        json_object_set(to, name, value);
    }
    json_decref(config);
}

static void say(json_t *metadata, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(json_t *metadata, const char *key, const char *format, ...) {
    va_list args;
    va_start(args, format);
    json_object_set_new(metadata, key, json_vsprintf(format, args));
    va_end(args);
}

/* Adds the metadata that both formats have, under the names of kohya's scripts. */
static void add_training(
    json_t *to, const struct train_config *c, const struct adapter_facts *facts) {
    say(to, "modelspec.prediction_type", "%s",
        train_config_predicts_v(c, facts->v_prediction) ? "v" : "epsilon");
    say(to, "ss_network_dropout", "%.15g", c->dropout);
}

static json_t *diffusers_metadata(const struct train_config *c, const struct adapter_facts *facts) {
    json_t *peft = json_object();
    add_peft(peft, "unet", c, &c->target_modules);
    if (c->train_text_encoder)
        add_peft(peft, "text_encoder", c, &c->text_encoder_target_modules);
    char *dumped = json_dumps(peft, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(15));
    json_t *metadata =
        dumped ? json_pack("{s:s, s:s}", "format", "pt", "lora_adapter_metadata", dumped) : NULL;
    free(dumped);
    json_decref(peft);
    if (metadata)
        add_training(metadata, c, facts);
    return metadata;
}

/* Returns Python's word for a flag, as kohya's scripts write it. */
static const char *python(bool value) {
    return value ? "True" : "False";
}

/* Adds what LyCORIS takes as arguments, if there is any. */
static void add_network_args(json_t *to, const struct train_config *c) {
    static const char *const algos[] = { "lora", "loha", "lokr" };
    json_t *args = json_object();
    if (train_config_changes_weights(c))
        say(args, "algo", "%s", algos[c->adapter_type]);
    if (c->use_rslora)
        say(args, "rs_lora", "True");
    if (c->use_dora)
        say(args, "dora_wd", "True");
    if (c->adapter_type == TRAIN_ADAPTER_LOKR) {
        say(args, "factor", "%lld", (long long)c->lokr_factor);
        say(args, "decompose_both", "%s", python(c->lokr_decompose_both));
    }
    char *text = json_object_size(args) ? json_dumps(args, JSON_SORT_KEYS) : NULL;
    if (text)
        say(to, "ss_network_args", "%s", text);
    free(text);
    json_decref(args);
}

static json_t *kohya_metadata(const struct train_config *c, const struct adapter_facts *facts) {
    static const char *const precisions[] = { "no", "bf16", "fp16" };
    json_t *m = json_object();
    if (!m)
        return NULL;
    say(m, "ss_output_name", "%s", c->name);
    say(m, "ss_sd_model_name", "%s", facts->model);
    say(m, "ss_base_model_version", "%s%s", facts->is_sd2 ? "sd_v2" : "sd_v1",
        train_config_predicts_v(c, facts->v_prediction) ? "_v" : "");
    say(m, "ss_v2", "%s", python(facts->is_sd2));
    say(m, "ss_network_module", "%s",
        train_config_changes_weights(c) ? "lycoris.kohya" : "networks.lora");
    say(m, "ss_network_dim", "%lld", (long long)c->rank);
    say(m, "ss_network_alpha", "%.15g", c->alpha);
    add_network_args(m, c);
    say(m, "ss_learning_rate", "%.15g", c->learning_rate);
    say(m, "ss_unet_lr", "%.15g", c->learning_rate);
    say(m, "ss_text_encoder_lr", "%.15g",
        !c->train_text_encoder              ? 0
        : c->text_encoder_learning_rate > 0 ? c->text_encoder_learning_rate
                                            : c->learning_rate);
    say(m, "ss_lr_scheduler", "%s", learning_rate_names[c->lr_scheduler]);
    say(m, "ss_lr_warmup_steps", "%lld", (long long)c->lr_warmup_steps);
    say(m, "ss_optimizer", "%s", optimizer_title(c));
    say(m, "ss_max_grad_norm", "%.15g", c->max_grad_norm);
    say(m, "ss_resolution", "(%lld, %lld)", (long long)c->resolution, (long long)c->resolution);
    say(m, "ss_enable_bucket", "%s", python(c->enable_bucket));
    say(m, "ss_num_train_images", "%lld", (long long)facts->pictures);
    say(m, "ss_num_epochs", "%lld", (long long)facts->epochs);
    say(m, "ss_epoch", "%lld", (long long)facts->epochs);
    say(m, "ss_steps", "%lld", (long long)facts->steps);
    say(m, "ss_batch_size_per_device", "%lld", (long long)c->train_batch_size);
    say(m, "ss_total_batch_size", "%lld",
        (long long)(c->train_batch_size * c->gradient_accumulation_steps));
    say(m, "ss_gradient_accumulation_steps", "%lld", (long long)c->gradient_accumulation_steps);
    say(m, "ss_gradient_checkpointing", "%s", python(c->gradient_checkpointing));
    say(m, "ss_mixed_precision", "%s", precisions[c->mixed_precision]);
    say(m, "ss_seed", "%lld", (long long)c->seed);
    say(m, "ss_noise_offset", "%.15g", c->noise_offset);
    say(m, "ss_min_snr_gamma", "%.15g", c->snr_gamma);
    say(m, "ss_prior_loss_weight", "%.15g", c->prior_loss_weight);
    say(m, "ss_caption_dropout_rate", "%.15g", c->caption_dropout);
    say(m, "ss_clip_skip", "None");
    add_training(m, c, facts);
    return m;
}

/* --- the whole --- */

bool save_adapter(const char *path, enum train_save_format format, const struct parameters *p,
    const float *values, const struct train_config *config, const struct adapter_facts *facts,
    struct error *err) {
    const size_t modules = p->products ? p->products->count : p->count;
    struct file f = { .items = calloc(MODULE_TENSORS_MAX * modules, sizeof(*f.items)) };
    /* diffusers and peft have no metadata for LoHa and LoKr; LyCORIS reads kohya's. */
    const bool is_kohya = format == TRAIN_SAVE_KOHYA || config->adapter_type != TRAIN_ADAPTER_LORA;
    json_t *metadata = is_kohya ? kohya_metadata(config, facts) : diffusers_metadata(config, facts);
    bool ok = (f.items && metadata) ||
              error_set(err, ERROR_NO_MEMORY, "no memory to write an adapter");
    for (size_t i = 0; ok && i < modules; i++)
        ok = p->products ? add_product(&f, format, p->products, &p->products->modules[i], values,
                               train_save_dtype(config), facts, err)
                         : add_module(&f, format, p, &p->modules[i], values,
                               train_save_dtype(config), facts, err);
    ok = ok && safetensors_write(path, f.items, f.count, metadata, err);
    json_decref(metadata);
    file_finish(&f);
    return ok;
}
