/* In some formats the names of modules have underscores in place of dots, and cannot be split
 * again. So the model's own names are converted to each format, and compared with the file's. */
#include "base/list.h"
#include "models/adapter/adapter_internal.h"
#include "models/checkpoint/ldm_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES (SAFETENSORS_MAX_NAME_BYTES + 64)

static bool ends_with(const char *text, const char *end) {
    const size_t length = strlen(text), n = strlen(end);
    return length >= n && strcmp(text + length - n, end) == 0;
}

static void flatten(char *text) {
    for (; *text; text++)
        if (*text == '.')
            *text = '_';
}

/* A layer of the model. */
struct layer {
    const struct named_weight *target;
    const struct named_resident *norm;
};

static bool add(struct adapter_index *index, enum component component, struct layer layer,
    const char *name, struct error *err) {
    char key[KEY_BYTES];
    const int length = snprintf(
        key, sizeof(key), "%s_%s", component == COMPONENT_UNET ? "unet" : "te", name);
    if (length < 0 || (size_t)length >= sizeof(key))
        return true; /* tensor names are shorter than this */
    flatten(key);
    if (!LIST_ROOM(index->items, index->count, "the names of layers", err))
        return false;
    char *copy = strdup(key);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the name of a layer");
    index->items[index->count++] = (struct adapter_index_entry){ copy, component, layer.target,
        layer.norm };
    return true;
}

static bool list_has(const struct weight_list *list, const char *prefix) {
    for (size_t i = 0; i < list->count; i++)
        if (strncmp(list->items[i].name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

/* Adds the layer's name in the LDM layout, if it has one. */
static bool add_ldm(struct adapter_index *index, const struct weight_list *unet, int layers,
    struct layer layer, struct error *err) {
    char ldm[KEY_BYTES], attention[64];
    const char *rest;
    const int level = ldm_number_after(layer.target->name, "up_blocks.", &rest);
    bool attends = false;
    if (level >= 0) {
        snprintf(attention, sizeof(attention), "up_blocks.%d.attentions.", level);
        attends = list_has(unet, attention);
    }
    return !ldm_unet_layer(layer.target->name, layers, attends, ldm, sizeof(ldm)) ||
           add(index, COMPONENT_UNET, layer, ldm, err);
}

static bool add_unet(struct adapter_index *index, const struct weight_list *unet,
    struct layer layer, int layers, struct error *err) {
    char old[KEY_BYTES];
    const char *name = layer.target->name;
    if (!add(index, COMPONENT_UNET, layer, name, err) || !add_ldm(index, unet, layers, layer, err))
        return false;
    /* Attention processors of 2023 called the output projection by the name of its parent. */
    if (!ends_with(name, ".to_out.0"))
        return true;
    snprintf(old, sizeof(old), "%.*s", (int)(strlen(name) - 2), name);
    return add(index, COMPONENT_UNET, layer, old, err);
}

static bool add_text_name(
    struct adapter_index *index, struct layer layer, const char *name, struct error *err) {
    static const char *const old_leafs[][2] = { { ".q_proj", ".to_q" }, { ".k_proj", ".to_k" },
        { ".v_proj", ".to_v" }, { ".out_proj", ".to_out" } };
    if (!add(index, COMPONENT_TEXT_ENCODER, layer, name, err))
        return false;
    for (size_t i = 0; i < sizeof(old_leafs) / sizeof(old_leafs[0]); i++) {
        char old[KEY_BYTES];
        if (!ends_with(name, old_leafs[i][0]))
            continue;
        snprintf(old, sizeof(old), "%.*s%s", (int)(strlen(name) - strlen(old_leafs[i][0])), name,
            old_leafs[i][1]);
        return add(index, COMPONENT_TEXT_ENCODER, layer, old, err);
    }
    return true;
}

/* Adds the names of a text encoder's layer, with and without "text_model.", which transformers 5
 * leaves out. */
static bool add_text(struct adapter_index *index, struct layer layer, struct error *err) {
    static const char prefix[] = "text_model.";
    const char *name = layer.target->name;
    return add_text_name(index, layer, name, err) &&
           (strncmp(name, prefix, strlen(prefix)) != 0 ||
               add_text_name(index, layer, name + strlen(prefix), err));
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct adapter_index_entry *)a)->name,
        ((const struct adapter_index_entry *)b)->name);
}

static int layers_per_block(const struct weight_list *unet) {
    int layers = 0;
    char resnet[64];
    do
        snprintf(resnet, sizeof(resnet), "down_blocks.0.resnets.%d.", layers++);
    while (layers <= UNET_MAX_LAYERS_PER_BLOCK && list_has(unet, resnet));
    return layers - 1;
}

/* Lists the norms of both lists as targets: first the UNet's. */
static bool list_norms(
    struct adapter_index *index, const struct adapter_targets *targets, struct error *err) {
    const struct weight_list *lists[] = { targets->unet, targets->text_encoder };
    const size_t count = lists[0]->resident_count + lists[1]->resident_count;
    size_t at = 0;
    index->norms = calloc(count ? count : 1, sizeof(*index->norms));
    if (!index->norms)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the names of %zu norms", count);
    for (int list = 0; list < 2; list++)
        for (size_t i = 0; i < lists[list]->resident_count; i++) {
            const struct named_resident *norm = &lists[list]->residents[i];
            struct named_weight *target = &index->norms[at++];
            *target = (struct named_weight){ .n = norm->weight.shape[0], .k = 1, .has_bias = true };
            memcpy(target->name, norm->name, sizeof(target->name));
        }
    return true;
}

/* Returns whether the entry is a norm, not an embedding's table. */
static bool is_norm(const struct named_resident *resident) {
    return resident->weight.rank == 1;
}

bool adapter_index_create(
    const struct adapter_targets *targets, struct adapter_index *out, struct error *err) {
    *out = (struct adapter_index){ 0 };
    const struct weight_list *unet = targets->unet, *text = targets->text_encoder;
    const int layers = layers_per_block(unet);
    bool ok = list_norms(out, targets, err);
    for (size_t i = 0; ok && i < unet->count; i++)
        ok = add_unet(out, unet, (struct layer){ &unet->items[i], NULL }, layers, err);
    for (size_t i = 0; ok && i < text->count; i++)
        ok = add_text(out, (struct layer){ &text->items[i], NULL }, err);
    for (size_t i = 0; ok && i < unet->resident_count; i++)
        ok = !is_norm(&unet->residents[i]) ||
             add_unet(
                 out, unet, (struct layer){ &out->norms[i], &unet->residents[i] }, layers, err);
    for (size_t i = 0; ok && i < text->resident_count; i++)
        ok = !is_norm(&text->residents[i]) ||
             add_text(out,
                 (struct layer){ &out->norms[unet->resident_count + i], &text->residents[i] }, err);
    if (!ok) {
        adapter_index_finish(out);
        return false;
    }
    if (out->count > 0)
        qsort(out->items, out->count, sizeof(*out->items), by_name);
    for (size_t i = 1; i < out->count; i++)
        if (strcmp(out->items[i].name, out->items[i - 1].name) == 0 &&
            out->items[i].target != out->items[i - 1].target)
            out->items[i].target = out->items[i - 1].target = NULL;
    return true;
}

void adapter_index_finish(struct adapter_index *index) {
    for (size_t i = 0; i < index->count; i++)
        free(index->items[i].name);
    free(index->items);
    free(index->norms);
    *index = (struct adapter_index){ 0 };
}

static const struct adapter_index_entry *find_key(
    const struct adapter_index *index, const char *component, const char *name) {
    char key[KEY_BYTES];
    snprintf(key, sizeof(key), "%s%s", component, name);
    flatten(key);
    const struct adapter_index_entry wanted = { .name = key };
    return index->count
               ? bsearch(&wanted, index->items, index->count, sizeof(*index->items), by_name)
               : NULL;
}

static void cut_out(char *text, const char *part) {
    char *at = strstr(text, part);
    if (at)
        memmove(at, at + strlen(part), strlen(at + strlen(part)) + 1);
}

const struct adapter_index_entry *adapter_index_find(
    const struct adapter_index *index, const char *module, size_t length) {
    static const struct {
        const char *prefix, *component;
    } prefixes[] = { { "lora_unet_", "unet_" }, { "lora_te_", "te_" }, { "lora_te1_", "te_" },
        { "unet.", "unet_" }, { "diffusion_model.", "unet_" }, { "text_encoder.", "te_" } };
    static const char *const wrappers[] = { "base_model.model.", "lycoris_" };
    char text[SAFETENSORS_MAX_NAME_BYTES + 1], *name = text;
    snprintf(text, sizeof(text), "%.*s", (int)length, module);
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++)
        if (strncmp(name, wrappers[i], strlen(wrappers[i])) == 0)
            name += strlen(wrappers[i]);
    cut_out(name, ".processor");
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++)
        if (strncmp(name, prefixes[i].prefix, strlen(prefixes[i].prefix)) == 0)
            return find_key(index, prefixes[i].component, name + strlen(prefixes[i].prefix));
    const struct adapter_index_entry *found = find_key(index, "unet_", name);
    return found ? found : find_key(index, "te_", name);
}
