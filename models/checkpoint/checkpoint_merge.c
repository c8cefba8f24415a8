#include "models/checkpoint/checkpoint_merge.h"

#include "base/list.h"
#include "models/checkpoint/checkpoint_internal.h"
#include "models/checkpoint/folder_copy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An entry of a file with its new contents. */
struct changed {
    struct safetensors *file; /* borrowed */
    size_t entry;
    struct tensor tensor; /* its data is owned */
};

struct merge {
    struct checkpoint *c;
    const struct merge_adapter *adapters;
    size_t count;
    const char *note;
    struct changed *changed; /* owned */
    size_t changed_count;
};

/* Returns the tensor to change: a copy of the file's tensor, which is made once. */
static struct tensor *changed_tensor(
    struct merge *m, struct safetensors *file, size_t entry, struct error *err) {
    for (size_t i = 0; i < m->changed_count; i++)
        if (m->changed[i].file == file && m->changed[i].entry == entry)
            return &m->changed[i].tensor;
    struct tensor view;
    if (!LIST_ROOM(m->changed, m->changed_count, "a list of merged weights", err) ||
        !safetensors_view(file, entry, &view, err))
        return NULL;
    void *data = malloc(tensor_bytes(&view));
    if (!data) {
        error_set(err, ERROR_NO_MEMORY, "no memory for another %zu bytes of merged weights",
            tensor_bytes(&view));
        return NULL;
    }
    memcpy(data, view.data, tensor_bytes(&view));
    view.data = data;
    m->changed[m->changed_count] = (struct changed){ file, entry, view };
    return &m->changed[m->changed_count++].tensor;
}

/* A layer that may be changed: a norm, or a weight. */
struct layer {
    enum component component;
    const char *name;
    const struct named_weight *target;
    const struct named_resident *norm;
};

static const struct adapter_module *find_module(
    const struct adapter *adapter, const struct layer *layer) {
    size_t count;
    const struct adapter_module *modules = adapter_modules(adapter, &count);
    for (size_t i = 0; i < count; i++)
        if (layer->norm ? modules[i].norm == layer->norm : modules[i].target == layer->target)
            return &modules[i];
    return NULL;
}

static float strength_of(const struct merge_adapter *a, enum component component) {
    return (float)(component == COMPONENT_UNET ? a->weight : a->text_encoder_weight);
}

/* Adds every adapter's change of the layer's weights, or bias, to `sum`. */
static bool add_changes(const struct merge *m, const struct layer *layer, bool bias,
    const float *pristine, float *sum, struct error *err) {
    for (size_t i = 0; i < m->count; i++) {
        const struct adapter_module *module = find_module(m->adapters[i].adapter, layer);
        const float strength = strength_of(&m->adapters[i], layer->component);
        if (!module || strength == 0)
            continue;
        if (bias && module->has_bias)
            adapter_module_add_bias(module, strength, sum);
        else if (!bias && module->has_weight &&
                 !adapter_module_add(module, pristine, strength, sum, err))
            return false;
    }
    return true;
}

/* Merges the layer's tensor LAYER.weight or LAYER.bias, which is a whole entry of a file or a part
 * of an entry. */
static bool merge_tensor(struct merge *m, const struct layer *layer, bool bias, struct error *err) {
    char name[SAFETENSORS_MAX_NAME_BYTES + 8];
    snprintf(name, sizeof(name), "%s.%s", layer->name, bias ? "bias" : "weight");
    const struct weight *weight = checkpoint_find(m->c, layer->component, name);
    struct tensor *whole = weight ? changed_tensor(m, weight->file, weight->entry, err) : NULL;
    if (!weight)
        return error_set(err, ERROR_INVALID, "tensor %s is missing", name);
    if (!whole)
        return false;
    const int64_t count = tensor_elements(whole) / weight->parts;
    char *part = (char *)whole->data + (size_t)(count * weight->part) * dtype_size(whole->dtype);
    float *pristine = reallocarray(NULL, (size_t)count, 2 * sizeof(float));
    if (!pristine)
        return error_set(err, ERROR_NO_MEMORY, "no memory to merge %s", name);
    float *sum = pristine + count;
    convert_elements(pristine, DTYPE_F32, part, whole->dtype, count);
    memcpy(sum, pristine, (size_t)count * sizeof(*sum));
    const bool ok = add_changes(m, layer, bias, pristine, sum, err);
    if (ok)
        convert_elements(part, whole->dtype, sum, DTYPE_F32, count);
    free(pristine);
    return ok;
}

static bool merge_layer(struct merge *m, const struct layer *layer, struct error *err) {
    bool weights = false, bias = false;
    for (size_t k = 0; k < m->count; k++) {
        const struct adapter_module *module = find_module(m->adapters[k].adapter, layer);
        const bool used = module && strength_of(&m->adapters[k], layer->component) != 0;
        weights |= used && module->has_weight;
        bias |= used && module->has_bias;
    }
    return ((!weights || merge_tensor(m, layer, false, err)) &&
               (!bias || merge_tensor(m, layer, true, err))) ||
           error_prefix(err, "%s", component_name(layer->component));
}

static bool merge_component(
    struct merge *m, enum component component, const struct weight_list *list, struct error *err) {
    bool ok = true;
    for (size_t i = 0; ok && i < list->count; i++) {
        const struct named_weight *target = &list->items[i];
        ok = merge_layer(m, &(struct layer){ component, target->name, target, NULL }, err);
    }
    for (size_t i = 0; ok && i < list->resident_count; i++) {
        const struct named_resident *norm = &list->residents[i];
        ok = merge_layer(m, &(struct layer){ component, norm->name, NULL, norm }, err);
    }
    return ok;
}

static bool fill_items(
    struct merge *m, struct safetensors *file, struct safetensors_item *items, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(file);
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        items[i].name = entry->name;
        if (!safetensors_view(file, i, &items[i].tensor, err))
            return false;
        for (size_t k = 0; k < m->changed_count; k++)
            if (m->changed[k].file == file && m->changed[k].entry == i)
                items[i].tensor = m->changed[k].tensor;
        items[i].tensor.rank = entry->rank;
    }
    return true;
}

/* Writes a file of the checkpoint with its changed tensors. */
static bool write_weights(
    struct merge *m, struct safetensors *file, const char *path, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(file);
    struct safetensors_item *items = calloc(header->count ? header->count : 1, sizeof(*items));
    /* Programs that read a file with metadata expect it to name the tensors' framework. */
    json_t *metadata = header->metadata ? json_copy(header->metadata)
                                        : json_pack("{s:s}", "format", "pt");
    bool ok = items && metadata &&
              json_object_set_new(metadata, "latentd.merged", json_string(m->note)) == 0;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu tensors", header->count);
    ok = ok && fill_items(m, file, items, err) &&
         safetensors_write(path, items, header->count, metadata, err);
    json_decref(metadata);
    free(items);
    return ok && safetensors_intact(file, err);
}

static struct safetensors *file_of(const struct merge *m, const char *path) {
    for (size_t i = 0; i < m->c->file_count; i++)
        if (strcmp(safetensors_path(m->c->files[i]), path) == 0)
            return m->c->files[i];
    return NULL;
}

/* Writes the weights that the checkpoint uses, and no others. */
static bool take_weights(
    void *user, const char *source, const char *target, bool *taken, struct error *err) {
    struct merge *m = user;
    struct safetensors *file = file_of(m, source);
    *taken = file != NULL;
    return !file || write_weights(m, file, target, err);
}

bool checkpoint_merge(struct checkpoint *c, const char *path, const struct adapter_targets *targets,
    const struct merge_adapter *adapters, size_t count, const char *note, const char *out,
    struct error *err) {
    struct merge m = { .c = c, .adapters = adapters, .count = count, .note = note };
    bool ok = merge_component(&m, COMPONENT_UNET, targets->unet, err) &&
              merge_component(&m, COMPONENT_TEXT_ENCODER, targets->text_encoder, err);
    for (size_t i = 0; ok && i < count; i++)
        ok = adapter_intact(adapters[i].adapter, err);
    const struct folder_copy copy = { take_weights, &m };
    if (ok)
        ok = checkpoint_is_single_file(c) ? write_weights(&m, c->files[0], out, err)
                                          : folder_copy(&copy, path, out, err);
    for (size_t i = 0; i < m.changed_count; i++)
        free(m.changed[i].tensor.data);
    free(m.changed);
    return ok;
}
