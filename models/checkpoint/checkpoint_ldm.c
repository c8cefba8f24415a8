/* The single-file layout. models/checkpoint/ldm_names.h renames the tensors. The file holds no
 * configs: they are derived from the shapes, written as the config.json that diffusers would have,
 * and parsed like one. */
#include "models/checkpoint/checkpoint_internal.h"

#include "models/checkpoint/ldm_names.h"

#include <stdlib.h>
#include <string.h>

#define UNET_PREFIX "model.diffusion_model."
#define VAE_PREFIX "first_stage_model."
#define OPEN_CLIP_PREFIX "cond_stage_model.model."

/* OpenCLIP ViT-H has 24 layers; SD-2 was trained on the first 23. */
#define OPEN_CLIP_H_USED_LAYERS 23

static struct ldm_layout find_layout(const struct safetensors_header *header) {
    int first_op = 0, last_input = 0, vae_levels = 0, resblocks = 0;
    for (size_t i = 0; i < header->count; i++) {
        const char *name = header->entries[i].name, *rest;
        int n = ldm_number_after(name, UNET_PREFIX "input_blocks.", &rest);
        if (n > last_input)
            last_input = n;
        if (n > 0 && strcmp(rest, "0.op.weight") == 0 && (first_op == 0 || n < first_op))
            first_op = n;
        n = ldm_number_after(name, VAE_PREFIX "decoder.up.", &rest);
        if (n >= vae_levels)
            vae_levels = n + 1;
        n = ldm_number_after(name, OPEN_CLIP_PREFIX "transformer.resblocks.", &rest);
        if (n >= resblocks)
            resblocks = n + 1;
    }
    bool last_is_gone = resblocks == OPEN_CLIP_H_USED_LAYERS;
    return (struct ldm_layout){
        .unet_layers_per_block = first_op ? first_op - 1 : last_input,
        .vae_levels = vae_levels,
        .open_clip_layers = resblocks > 0 && !last_is_gone ? resblocks - 1 : resblocks,
    };
}

static bool add_stacked(struct checkpoint *c, const struct ldm_name *name, struct safetensors *file,
    size_t entry, struct error *err) {
    const struct safetensors_entry *e = &safetensors_get_header(file)->entries[entry];
    if (e->rank < 1 || e->shape[0] % 3 != 0)
        return error_set(err, ERROR_INVALID,
            "tensor %s stacks q, k and v, but its first dimension is not a multiple of 3", e->name);
    char text[sizeof(name->name)];
    memcpy(text, name->name, sizeof(text));
    char *letter = strchr(text, '?');
    for (int part = 0; part < 3; part++) {
        *letter = "qkv"[part];
        if (!checkpoint_add_weight(c, name->component, text, file, entry, part, 3, err))
            return false;
    }
    return true;
}

static bool add_tensors(struct checkpoint *c, struct safetensors *file, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(file);
    struct ldm_layout layout = find_layout(header);
    size_t unknown = 0, at = 0;
    char names[320] = "";
    for (size_t i = 0; i < header->count; i++) {
        struct ldm_name name;
        enum ldm_kind kind = ldm_translate(header->entries[i].name, &layout, &name);
        bool ok = true;
        if (kind == LDM_TENSOR && name.stacked_qkv)
            ok = add_stacked(c, &name, file, i, err);
        else if (kind == LDM_TENSOR)
            ok = checkpoint_add_weight(c, name.component, name.name, file, i, 0, 1, err);
        else if (kind == LDM_UNKNOWN && unknown++ < 3)
            at += (size_t)snprintf(
                names + at, sizeof(names) - at, "%s%.90s", at ? ", " : "", header->entries[i].name);
        if (!ok)
            return false;
    }
    for (int i = 0; i < COMPONENT_COUNT; i++)
        if (c->tables[i].count == 0)
            return error_set(err, ERROR_INVALID,
                "not a single-file checkpoint: it has no tensors of the %s (%zu tensors in "
                "all%s%s)",
                component_name((enum component)i), header->count, at ? ", for example " : "",
                names);
    if (unknown)
        return error_set(err, ERROR_INVALID,
            "%zu tensor%s of a single-file checkpoint that nothing has a place for: %s%s", unknown,
            unknown == 1 ? "" : "s", names, unknown > 3 ? ", ..." : "");
    return true;
}

/* Returns dimension `dim` of a tensor that must exist; 0 with an error if it does not. */
static int64_t dimension(const struct checkpoint *c, enum component component, const char *name,
    int dim, struct error *err) {
    struct weight *weight = checkpoint_find(c, component, name);
    int64_t shape[TENSOR_MAX_RANK];
    if (!weight) {
        error_set(err, ERROR_INVALID, "%s: tensor %s is missing", component_name(component), name);
        return 0;
    }
    int rank = weight_shape(weight, shape);
    if (dim >= rank) {
        error_set(err, ERROR_INVALID, "%s: tensor %s has %d dimensions", component_name(component),
            name, rank);
        return 0;
    }
    return shape[dim];
}

/* Returns whether the tensor PREFIX I SUFFIX exists. */
static bool has_numbered(const struct checkpoint *c, enum component component, const char *prefix,
    int i, const char *suffix) {
    char name[128];
    snprintf(name, sizeof(name), "%s%d%s", prefix, i, suffix);
    return checkpoint_has_tensor(c, component, name);
}

/* Appends the widths of blocks "down_blocks.0", ... to a list. */
static bool block_widths(const struct checkpoint *c, enum component component, const char *prefix,
    json_t *widths, struct error *err) {
    for (int i = 0; i < CONFIG_MAX_BLOCKS; i++) {
        char name[128];
        snprintf(name, sizeof(name), "%sdown_blocks.%d.resnets.0.conv1.weight", prefix, i);
        if (i > 0 && !checkpoint_has_tensor(c, component, name))
            break;
        int64_t width = dimension(c, component, name, 0, err);
        if (!width)
            return false;
        json_array_append_new(widths, json_integer(width));
    }
    return true;
}

/* Returns the width of the context. The middle block's attn2.to_k.weight shows it, because every
 * attention reads the same context. */
static int64_t context_width(const struct checkpoint *c, bool *linear, struct error *err) {
    int64_t width = dimension(
        c, COMPONENT_UNET, "mid_block.attentions.0.transformer_blocks.0.attn2.to_k.weight", 1, err);
    int64_t shape[TENSOR_MAX_RANK];
    struct weight *proj = checkpoint_find(
        c, COMPONENT_UNET, "mid_block.attentions.0.proj_in.weight");
    *linear = proj && weight_shape(proj, shape) == 2;
    return width;
}

static json_t *unet_config_json(const struct checkpoint *c, struct error *err) {
    enum component unet = COMPONENT_UNET;
    bool linear;
    int64_t in_channels = dimension(c, unet, "conv_in.weight", 1, err);
    int64_t out_channels = in_channels ? dimension(c, unet, "conv_out.weight", 0, err) : 0;
    int64_t context = out_channels ? context_width(c, &linear, err) : 0;
    if (!context)
        return NULL;
    json_t *widths = json_array(), *down = json_array(), *up = json_array(), *heads = json_array();
    bool ok = block_widths(c, unet, "", widths, err);
    int layers = 0;
    while (layers < 100 && has_numbered(c, unet, "down_blocks.0.resnets.", layers, ".conv1.weight"))
        layers++;
    for (int i = 0; i < (int)json_array_size(widths); i++) {
        bool down_attention = has_numbered(c, unet, "down_blocks.", i, ".attentions.0.norm.weight");
        bool up_attention = has_numbered(c, unet, "up_blocks.", i, ".attentions.0.norm.weight");
        json_int_t width = json_integer_value(json_array_get(widths, (size_t)i));
        json_array_append_new(
            down, json_string(down_attention ? "CrossAttnDownBlock2D" : "DownBlock2D"));
        json_array_append_new(up, json_string(up_attention ? "CrossAttnUpBlock2D" : "UpBlock2D"));
        /* SD-1: 8 heads everywhere. SD-2, recognised by its linear projections: heads of 64. */
        json_array_append_new(heads, json_integer(linear ? width / 64 : 8));
    }
    json_t *json = json_pack("{s:I, s:I, s:o, s:o, s:o, s:o, s:I, s:i, s:b, s:i}", "in_channels",
        (json_int_t)in_channels, "out_channels", (json_int_t)out_channels, "block_out_channels",
        widths, "down_block_types", down, "up_block_types", up, "attention_head_dim", heads,
        "cross_attention_dim", (json_int_t)context, "layers_per_block", layers,
        "use_linear_projection", (int)linear, "sample_size", 64);
    if (ok && json)
        return json;
    if (ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for the unet's config");
    json_decref(json);
    return NULL;
}

static json_t *vae_config_json(const struct checkpoint *c, struct error *err) {
    enum component vae = COMPONENT_VAE;
    int64_t in_channels = dimension(c, vae, "encoder.conv_in.weight", 1, err);
    int64_t out_channels = in_channels ? dimension(c, vae, "decoder.conv_out.weight", 0, err) : 0;
    int64_t latent = out_channels ? dimension(c, vae, "post_quant_conv.weight", 1, err) : 0;
    if (!latent)
        return NULL;
    int layers = 0;
    while (layers < 100 &&
           has_numbered(c, vae, "encoder.down_blocks.0.resnets.", layers, ".conv1.weight"))
        layers++;
    json_t *widths = json_array(), *down = json_array(), *up = json_array();
    bool ok = block_widths(c, vae, "encoder.", widths, err);
    for (size_t i = 0; i < json_array_size(widths); i++) {
        json_array_append_new(down, json_string("DownEncoderBlock2D"));
        json_array_append_new(up, json_string("UpDecoderBlock2D"));
    }
    json_t *json = json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:i, s:i}", "in_channels",
        (json_int_t)in_channels, "out_channels", (json_int_t)out_channels, "latent_channels",
        (json_int_t)latent, "block_out_channels", widths, "down_block_types", down,
        "up_block_types", up, "layers_per_block", layers, "sample_size", 512);
    if (ok && json)
        return json;
    if (ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for the vae's config");
    json_decref(json);
    return NULL;
}

static json_t *text_config_json(const struct checkpoint *c, bool open_clip, struct error *err) {
    enum component text = COMPONENT_TEXT_ENCODER;
    int64_t vocab = dimension(c, text, "text_model.embeddings.token_embedding.weight", 0, err);
    int64_t positions =
        vocab ? dimension(c, text, "text_model.embeddings.position_embedding.weight", 0, err) : 0;
    int64_t width = positions ? dimension(c, text, "text_model.final_layer_norm.weight", 0, err)
                              : 0;
    int64_t inner = width ? dimension(c, text, "text_model.encoder.layers.0.mlp.fc1.weight", 0, err)
                          : 0;
    if (!inner)
        return NULL;
    int layers = 0;
    while (layers < 1000 &&
           has_numbered(c, text, "text_model.encoder.layers.", layers, ".mlp.fc1.weight"))
        layers++;
    json_t *json = json_pack("{s:I, s:I, s:I, s:I, s:i, s:I, s:s}", "vocab_size", (json_int_t)vocab,
        "max_position_embeddings", (json_int_t)positions, "hidden_size", (json_int_t)width,
        "intermediate_size", (json_int_t)inner, "num_hidden_layers", layers, "num_attention_heads",
        (json_int_t)(width / 64), "hidden_act",
        open_clip ? "gelu" : "quick_gelu"); /* both families have heads of 64 */
    if (!json)
        error_set(err, ERROR_NO_MEMORY, "no memory for the text encoder's config");
    return json;
}

static bool infer_configs(struct checkpoint *c, bool open_clip, struct error *err) {
    json_t *unet = unet_config_json(c, err);
    json_t *vae = unet ? vae_config_json(c, err) : NULL;
    json_t *text = vae ? text_config_json(c, open_clip, err) : NULL;
    bool ok = text && unet_config_parse(unet, &c->unet, err) &&
              vae_config_parse(vae, &c->vae, err) &&
              text_encoder_config_parse(text, &c->text_encoder, err);
    json_decref(unet);
    json_decref(vae);
    json_decref(text);
    return ok;
}

static bool has_entry(const struct safetensors *file, const char *name) {
    return safetensors_find(file, name) >= 0;
}

/* Returns the value of a scalar I64 tensor, or -1. */
static int64_t counter(struct safetensors *file, const char *name) {
    ptrdiff_t entry = safetensors_find(file, name);
    struct tensor t;
    int64_t value = -1;
    if (entry >= 0 && safetensors_view(file, (size_t)entry, &t, NULL) && t.dtype == DTYPE_I64)
        memcpy(&value, t.data, sizeof(value));
    return value;
}

/* Finds out whether the model predicts the noise or v, which the shapes do not show. If the file
 * itself does not say it, the type is guessed. SD-2 models have a context 1024 wide. They are taken
 * to predict v, except those with more than 4 input channels and the base model for 512 px, which
 * is recognised by its global_step (the rule of diffusers' converter). All other models predict the
 * noise. */
static const char *prediction_type(struct checkpoint *c, struct safetensors *file) {
    const json_t *metadata = safetensors_get_header(file)->metadata;
    const char *said = json_string_value(json_object_get(metadata, "modelspec.prediction_type"));
    if (said && (strcmp(said, "v") == 0 || strcmp(said, "epsilon") == 0)) {
        snprintf(
            c->note, sizeof(c->note), "prediction_type is the file's modelspec.prediction_type");
        return said[0] == 'v' ? "v_prediction" : "epsilon";
    }
    if (has_entry(file, "v_pred")) {
        snprintf(c->note, sizeof(c->note), "prediction_type follows from the tensor v_pred");
        return "v_prediction";
    }
    if (c->unet.cross_attention_dim != 1024)
        return "epsilon";
    if (c->unet.in_channels != 4) {
        snprintf(c->note, sizeof(c->note),
            "prediction_type epsilon is guessed: SD-2 models with more than 4 channels predict it");
        return "epsilon";
    }
    bool base = counter(file, "global_step") == 875000;
    snprintf(c->note, sizeof(c->note),
        "prediction_type %s is guessed from global_step, which %s 875000 (that of the SD-2 512 px "
        "base model)",
        base ? "epsilon" : "v_prediction", base ? "is" : "is not");
    return base ? "epsilon" : "v_prediction";
}

/* Sets the scheduler's config to the one that ships with SD-1.5 (PNDM) or with SD-2 768 (DDIM). */
static bool set_scheduler(struct checkpoint *c, struct safetensors *file, struct error *err) {
    const char *prediction = prediction_type(c, file);
    bool v = strcmp(prediction, "v_prediction") == 0;
    c->scheduler = json_pack("{s:s, s:f, s:f, s:s, s:i, s:s, s:b, s:b, s:b, s:i, s:n}",
        "_class_name", v ? "DDIMScheduler" : "PNDMScheduler", "beta_start", 0.00085, "beta_end",
        0.012, "beta_schedule", "scaled_linear", "num_train_timesteps", 1000, "prediction_type",
        prediction, "set_alpha_to_one", 0, "skip_prk_steps", 1, "clip_sample", 0, "steps_offset", 1,
        "trained_betas");
    if (c->scheduler && has_entry(file, "ztsnr"))
        json_object_set_new(c->scheduler, "rescale_betas_zero_snr", json_true());
    if (v) {
        c->unet.sample_size = 96;
        c->vae.sample_size = 768;
    }
    return c->scheduler || error_set(err, ERROR_NO_MEMORY, "no memory for the scheduler's config");
}

bool checkpoint_open_ldm(struct checkpoint *c, const char *path, struct error *err) {
    struct safetensors *file = checkpoint_add_file(c, path, err);
    if (!file)
        return false;
    bool open_clip = has_entry(file, OPEN_CLIP_PREFIX "ln_final.weight");
    if (!add_tensors(c, file, err) || !checkpoint_seal(c, err) ||
        !infer_configs(c, open_clip, err) || !set_scheduler(c, file, err))
        return error_prefix(err, "%s", path);
    return true;
}
