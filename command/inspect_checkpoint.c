#include "command/inspect_checkpoint.h"

#include "base/file.h"
#include "models/adapter/adapter_names.h"
#include "models/checkpoint/checkpoint.h"

#include <stdlib.h>
#include <string.h>

#define TENSORS_SHOWN 20 /* for other safetensors files */

static void print_bytes(FILE *out, uint64_t bytes) {
    if (bytes >= 10000000)
        fprintf(out, "%.1f MB", (double)bytes / 1e6);
    else
        fprintf(out, "%llu bytes", (unsigned long long)bytes);
}

/* Prints a text without its control characters: metadata comes from unknown sources and must not
 * control the terminal. */
static void print_text(FILE *out, const char *text, size_t most) {
    size_t at = 0;
    for (; text[at] && at < most; at++)
        fputc((unsigned char)text[at] < 0x20 || text[at] == 0x7f ? ' ' : text[at], out);
    if (text[at])
        fprintf(out, "... (%zu bytes)", strlen(text));
}

static void print_metadata(FILE *out, const json_t *metadata) {
    const char *key;
    json_t *value;
    if (json_object_size(metadata) == 0)
        return;
    fprintf(out, "metadata\n");
    json_object_foreach((json_t *)metadata, key, value) {
        fprintf(out, "  ");
        print_text(out, key, 60);
        fprintf(out, ": ");
        print_text(out, json_string_value(value), 100);
        fprintf(out, "\n");
    }
}

static void print_component(FILE *out, const struct checkpoint *c, enum component component) {
    struct checkpoint_stats stats;
    checkpoint_get_stats(c, component, &stats);
    fprintf(out, "%s\n  %-12s%zu, %llu parameters, ", component_name(component), "tensors",
        stats.tensors, (unsigned long long)stats.parameters);
    print_bytes(out, stats.bytes);
    fprintf(out, "\n  %-12s", "dtype");
    bool first = true;
    for (int i = 0; i <= DTYPE_I64; i++) {
        if (!stats.by_dtype[i])
            continue;
        fprintf(out, "%s%s (%zu)", first ? "" : ", ", dtype_name((enum dtype)i), stats.by_dtype[i]);
        first = false;
    }
    fprintf(out, "\n");
}

static void print_list(FILE *out, const char *label, const int *values, int count) {
    fprintf(out, "  %-12s", label);
    for (int i = 0; i < count; i++)
        fprintf(out, "%s%d", i ? ", " : "", values[i]);
    fprintf(out, "\n");
}

static void print_text_encoder(FILE *out, const struct text_encoder_config *config) {
    fprintf(out, "  %-12s%d layers of %d, %d heads, %s\n", "shape", config->num_hidden_layers,
        config->hidden_size, config->num_attention_heads,
        config->hidden_act == ACTIVATION_QUICK_GELU ? "quick_gelu" : "gelu");
    fprintf(out, "  %-12s%d tokens, %d positions\n", "vocabulary", config->vocab_size,
        config->max_position_embeddings);
}

static const char *unet_purpose(int in_channels) {
    switch (in_channels) {
    case 4:
        return "text to image";
    case 5:
        return "depth to image";
    case 8:
        return "InstructPix2Pix";
    case 9:
        return "inpainting";
    default:
        return "of an unknown purpose";
    }
}

static void print_unet(FILE *out, const struct unet_config *config) {
    fprintf(out, "  %-12sin_channels %d (%s), out_channels %d, sample_size %d\n", "channels",
        config->in_channels, unet_purpose(config->in_channels), config->out_channels,
        config->sample_size);
    print_list(out, "widths", config->block_out_channels, config->block_count);
    print_list(out, "heads", config->heads, config->block_count);
    fprintf(out, "  %-12scross_attention_dim %d, %s projections\n", "attention",
        config->cross_attention_dim, config->use_linear_projection ? "linear" : "1x1 convolution");
}

static void print_vae(FILE *out, const struct vae_config *config) {
    print_list(out, "widths", config->block_out_channels, config->block_count);
    fprintf(out, "  %-12slatent_channels %d, scaling_factor %g, 1 latent per %d px\n", "latents",
        config->latent_channels, (double)config->scaling_factor, 1 << (config->block_count - 1));
}

static const char *word(const json_t *object, const char *key, const char *fallback) {
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : fallback;
}

static void print_tokenizer(FILE *out, const struct checkpoint *c) {
    const bool pads_with_0 = checkpoint_clip_padding(c) == CLIP_PADS_WITH_0;
    fprintf(out, "tokenizer\n");
    switch (checkpoint_tokenizer_source(c)) {
    case TOKENIZER_FOLDER:
        fprintf(out, "  %-12s%s\n", "folder", checkpoint_tokenizer_dir(c));
        break;
    case TOKENIZER_CLIP:
        fprintf(out, "  %-12sCLIP's own %d tokens, padded with %s\n", "bundled", CLIP_VOCAB_SIZE,
            pads_with_0 ? "0, as SD-2.x pads" : "the end mark, as SD-1.x pads");
        break;
    case TOKENIZER_MISSING:
        fprintf(out,
            "  %-12sits text encoder has %d tokens, CLIP's own vocabulary %d: give one with "
            "--tokenizer\n",
            "none", checkpoint_text_encoder_config(c)->vocab_size, CLIP_VOCAB_SIZE);
        break;
    }
}

static void print_checkpoint(FILE *out, const char *path, const struct checkpoint *c) {
    fprintf(out, "%s\n  %s\n", path,
        checkpoint_is_single_file(c) ? "checkpoint in a single file (LDM names)"
                                     : "checkpoint in a diffusers folder");
    print_component(out, c, COMPONENT_TEXT_ENCODER);
    print_text_encoder(out, checkpoint_text_encoder_config(c));
    print_component(out, c, COMPONENT_UNET);
    print_unet(out, checkpoint_unet_config(c));
    print_component(out, c, COMPONENT_VAE);
    print_vae(out, checkpoint_vae_config(c));
    const json_t *scheduler = checkpoint_scheduler_json(c);
    fprintf(out, "scheduler\n  %-12s", "class");
    print_text(out, word(scheduler, "_class_name", "(not said)"), 60);
    fprintf(out, "\n  %-12s", "predicts");
    print_text(out, word(scheduler, "prediction_type", "epsilon"), 60);
    fprintf(out, "\n");
    if (checkpoint_note(c)[0])
        fprintf(out, "  %-12s%s\n", "note", checkpoint_note(c));
    print_tokenizer(out, c);
    print_metadata(out, checkpoint_file_metadata(c));
}

static void print_other(FILE *out, const struct safetensors_header *header) {
    fprintf(out, "tensors\n");
    for (size_t i = 0; i < header->count && i < TENSORS_SHOWN; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        fprintf(out, "  %s: %s ", entry->name, safetensors_dtype_name(entry->dtype));
        for (int k = 0; k < entry->rank; k++)
            fprintf(out, "[%lld]", (long long)entry->shape[k]);
        fprintf(out, "\n");
    }
    if (header->count > TENSORS_SHOWN)
        fprintf(out, "  ... and %zu more\n", header->count - TENSORS_SHOWN);
}

static void print_values(
    FILE *out, const char *label, const struct adapter_value *values, size_t count) {
    fprintf(out, "  %-12s", label);
    for (size_t i = 0; i < count; i++)
        fprintf(out, "%s%g (%zu)", i ? ", " : "", values[i].value, values[i].count);
    fprintf(out, "%s\n", count == ADAPTER_VALUES_MAX ? ", ..." : "");
}

static void print_adapter(FILE *out, const struct adapter_summary *s) {
    fprintf(out, "adapter\n  %-12s%s\n  %-12s", "format", s->format, "kind");
    for (size_t i = 0; i < s->kind_count; i++)
        fprintf(out, "%s%s", i ? ", " : "", s->kinds[i]);
    fprintf(out, "\n");
    if (s->rank_count)
        print_values(out, "rank", s->ranks, s->rank_count);
    if (s->alpha_count)
        print_values(out, "alpha", s->alphas, s->alpha_count);
    else
        fprintf(out, "  %-12snot stored: the same as the rank\n", "alpha");
    fprintf(out, "  %-12s%zu (%zu of the unet, %zu of the text encoder)\n", "modules",
        s->unet_modules + s->text_encoder_modules, s->unet_modules, s->text_encoder_modules);
    fprintf(out, "  %-12s", "targets");
    for (size_t i = 0; i < s->target_count; i++)
        fprintf(out, "%s%s (%zu)", i ? ", " : "", s->targets[i].name, s->targets[i].count);
    fprintf(out, "\n");
    if (s->trigger[0])
        fprintf(out, "  %-12s%s\n", "trigger", s->trigger);
    if (s->other_tensors)
        fprintf(
            out, "  %-12s%zu tensors are no part of an adapter\n", "beside it", s->other_tensors);
}

static void print_file(FILE *out, const char *path, struct safetensors *file) {
    const struct safetensors_header *header = safetensors_get_header(file);
    uint64_t parameters = 0;
    for (size_t i = 0; i < header->count; i++)
        parameters += header->entries[i].elements;
    fprintf(out, "%s\n  %zu tensors, %llu numbers, ", path, header->count,
        (unsigned long long)parameters);
    print_bytes(out, safetensors_file_bytes(file));
    fprintf(out, "\n");
    struct adapter_summary adapter;
    if (adapter_summarize(file, true, &adapter))
        print_adapter(out, &adapter);
    else
        print_other(out, header);
    print_metadata(out, header->metadata);
}

static bool is_checkpoint_file(const struct safetensors *file) {
    static const char prefix[] = "model.diffusion_model.";
    const struct safetensors_header *header = safetensors_get_header(file);
    for (size_t i = 0; i < header->count; i++)
        if (strncmp(header->entries[i].name, prefix, sizeof(prefix) - 1) == 0)
            return true;
    return false;
}

static bool inspect_checkpoint(FILE *out, const char *path, struct error *err) {
    struct checkpoint *c;
    if (!checkpoint_open(path, NULL, &c, err))
        return false;
    print_checkpoint(out, path, c);
    checkpoint_close(c);
    return true;
}

static bool inspect_file(FILE *out, const char *path, struct error *err) {
    struct safetensors *file;
    if (!safetensors_open(path, &file, err))
        return false;
    bool checkpoint = is_checkpoint_file(file);
    if (!checkpoint)
        print_file(out, path, file);
    safetensors_close(file);
    return !checkpoint || inspect_checkpoint(out, path, err);
}

bool inspect_print(FILE *out, const char *path, struct error *err) {
    if (!file_is_folder(path))
        return inspect_file(out, path, err);
    /* A folder in peft's format contains one adapter. */
    char *adapter = file_join(path, "adapter_model.safetensors");
    if (!adapter)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    bool ok = file_exists(adapter) ? inspect_file(out, adapter, err)
                                   : inspect_checkpoint(out, path, err);
    free(adapter);
    return ok;
}
