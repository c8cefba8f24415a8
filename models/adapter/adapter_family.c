/* Finds the family of models that a file was made for, if its names or widths reveal it. */
#include "models/adapter/adapter_internal.h"

#include <stdio.h>
#include <string.h>

/* Parts of names that occur in one family but not in Stable Diffusion 1.x and 2.x. The first of
 * these that occurs anywhere in the file decides. */
static const struct {
    const char *part, *family;
} marks[] = {
    { "single_transformer_blocks", "Flux" },
    { "double_blocks", "Flux" },
    { "single_blocks", "Flux" },
    { "joint_blocks", "Stable Diffusion 3" },
    { "joint_transformer_blocks", "Stable Diffusion 3" },
    { "lora_te3_", "Stable Diffusion 3" },
    { "add_k_proj", "Stable Diffusion 3" },
    { "lora_prior_unet_", "Stable Cascade" },
    { "adaln_single", "PixArt" },
    { "lora_te2_", "Stable Diffusion XL" },
    { "text_encoder_2.", "Stable Diffusion XL" },
    { "label_emb", "Stable Diffusion XL" },
    { "add_embedding", "Stable Diffusion XL" },
    { "transformer_blocks_1_", "Stable Diffusion XL" },
    { "transformer_blocks.1.", "Stable Diffusion XL" },
};

/* Beginnings of names that no UNet has. */
static const char *const transformers[] = { "transformer.", "diffusion_model.blocks.",
    "diffusion_model.layers.", "lora_transformer_", "lora_unet_blocks_", "lora_unet_layers_" };

/* Layers whose number of inputs identifies the family. */
static const struct {
    const char *leafs[3];
    enum component component;
    struct {
        int64_t width;
        const char *family;
    } known[4];
} widths[] = {
    { { "attn2.to_k", "attn2_to_k", "attn2.processor.to_k" }, COMPONENT_UNET,
        { { 768, "Stable Diffusion 1.x" }, { 1024, "Stable Diffusion 2.x" },
            { 2048, "Stable Diffusion XL" }, { 1280, "the Stable Diffusion XL refiner" } } },
    { { "self_attn.q_proj", "self_attn_q_proj", "self_attn.to_q" }, COMPONENT_TEXT_ENCODER,
        { { 768, "Stable Diffusion 1.x" }, { 1024, "Stable Diffusion 2.x" },
            { 1280, "Stable Diffusion XL" } } },
};
#define WIDTH_COUNT (sizeof(widths) / sizeof(widths[0]))

static bool ends_with(const char *text, size_t length, const char *end) {
    const size_t n = strlen(end);
    return length >= n && memcmp(text + length - n, end, n) == 0;
}

static bool is_leaf(size_t which, const char *name, size_t length) {
    for (int i = 0; i < 3; i++)
        if (ends_with(name, length, widths[which].leafs[i]))
            return true;
    return false;
}

/* Returns the layer's number of inputs in the model; 0 if the model has no such layer. */
static int64_t model_width(const struct adapter_targets *targets, size_t which) {
    const struct weight_list *list = widths[which].component == COMPONENT_UNET
                                         ? targets->unet
                                         : targets->text_encoder;
    for (size_t i = 0; i < list->count; i++)
        if (is_leaf(which, list->items[i].name, strlen(list->items[i].name)))
            return list->items[i].k;
    return 0;
}

/* Returns the layer's number of inputs according to a tensor of the file; 0 if the tensor does not
 * show it. */
static int64_t file_width(const struct safetensors_entry *entry, size_t which) {
    struct adapter_name name;
    if (!adapter_name_parse(entry->name, &name) || entry->rank < 2 ||
        !is_leaf(which, entry->name, name.module_length))
        return 0;
    const bool tells = name.part == ADAPTER_DOWN || name.part == ADAPTER_DIFF ||
                       (name.part == ADAPTER_W1_B && name.kind == ADAPTER_LOHA);
    return tells ? entry->shape[1] : 0;
}

/* Returns "Stable Diffusion 1.x" and so on, or a description of a width that no known family
 * has. */
static const char *family_of(size_t which, int64_t width, char *text, size_t size) {
    for (size_t i = 0; i < sizeof(widths[0].known) / sizeof(widths[0].known[0]); i++)
        if (widths[which].known[i].family && widths[which].known[i].width == width)
            return widths[which].known[i].family;
    snprintf(text, size, "a model with %s of %lld channels",
        widths[which].component == COMPONENT_UNET ? "prompts" : "a text encoder", (long long)width);
    return text;
}

static bool refuse(const char *family, const char *name, const struct adapter_targets *targets,
    struct error *err) {
    char own[80];
    return error_set(err, ERROR_UNSUPPORTED,
        "this adapter is for %s (it has %.160s), and the model is %s", family, name,
        family_of(0, model_width(targets, 0), own, sizeof(own)));
}

static bool check_name(const char *name, const struct adapter_targets *targets, struct error *err) {
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++)
        if (strstr(name, marks[i].part))
            return refuse(marks[i].family, name, targets, err);
    for (size_t i = 0; i < sizeof(transformers) / sizeof(transformers[0]); i++)
        if (strncmp(name, transformers[i], strlen(transformers[i])) == 0)
            return refuse("a diffusion transformer", name, targets, err);
    return true;
}

bool adapter_family_check(const struct safetensors_header *header,
    const struct adapter_targets *targets, struct error *err) {
    for (size_t i = 0; i < header->count; i++)
        if (!check_name(header->entries[i].name, targets, err))
            return false;
    for (size_t which = 0; which < WIDTH_COUNT; which++) {
        const int64_t model = model_width(targets, which);
        for (size_t i = 0; model && i < header->count; i++) {
            const int64_t width = file_width(&header->entries[i], which);
            char theirs[80], own[80];
            if (width && width != model)
                return error_set(err, ERROR_UNSUPPORTED,
                    "this adapter is for %s (%.160s has %lld inputs), and the model is %s (%lld)",
                    family_of(which, width, theirs, sizeof(theirs)), header->entries[i].name,
                    (long long)width, family_of(which, model, own, sizeof(own)), (long long)model);
        }
    }
    return true;
}
