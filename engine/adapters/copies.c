#include "engine/adapters/internal.h"

#include "kernels/pack.h"
#include "models/layers.h"
#include "models/repack.h"

#include <stdlib.h>
#include <string.h>

bool sources_equal(
    const struct adapter_source *a, int a_count, const struct adapter_source *b, int b_count) {
    if (a_count != b_count)
        return false;
    for (int i = 0; i < a_count; i++)
        if (a[i].id != b[i].id || a[i].weight != b[i].weight)
            return false;
    return true;
}

struct adapter_source *sources_copy(const struct adapter_source *sources, int count) {
    struct adapter_source *copy = calloc((size_t)count + 1, sizeof(*copy));
    for (int i = 0; copy && i < count; i++)
        copy[i] = (struct adapter_source){ .id = sources[i].id, .weight = sources[i].weight };
    return copy;
}

/* Whether a source changes this packed weight. */
static bool is_changed(const struct adapter_source *sources, int count, enum component component,
    const struct packed *packed) {
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sources[i].version->copied_count; k++) {
            const struct adapter_module *module = sources[i].version->copied[k];
            if (module->component == component && module->target->packed == packed)
                return true;
        }
    return false;
}

/* Whether a source changes the norm. */
static bool changes_norm(
    const struct adapter_source *sources, int count, const struct named_resident *norm) {
    for (int i = 0; i < count; i++)
        for (size_t k = 0; k < sources[i].version->copied_count; k++)
            if (sources[i].version->copied[k]->norm == norm)
                return true;
    return false;
}

static size_t norm_bytes(const struct named_resident *norm) {
    return 2 * (size_t)norm->weight.shape[0] * sizeof(float);
}

/* Lists the weights that the sources change, each once. `out` has room for list->count of them. */
static size_t changed_weights(const struct weight_list *list, const struct adapter_source *sources,
    int count, enum component component, const struct packed **out) {
    size_t found = 0;
    for (size_t i = 0; i < list->count; i++) {
        const struct packed *packed = list->items[i].packed;
        /* One weight may hold several layers; only the first has `first` 0, so each weight is
         * listed once. */
        if (list->items[i].first == 0 && is_changed(sources, count, component, packed))
            out[found++] = packed;
    }
    return found;
}

size_t copies_estimate(const struct adapters *adapters, enum component component,
    const struct adapter_source *sources, int count) {
    const struct weight_list *list = component_list(adapters, component);
    size_t bytes = 0;
    for (size_t i = 0; i < list->count; i++)
        if (list->items[i].first == 0 &&
            is_changed(sources, count, component, list->items[i].packed))
            bytes += list->items[i].packed->bytes;
    for (size_t i = 0; i < list->resident_count; i++)
        if (changes_norm(sources, count, &list->residents[i]))
            bytes += norm_bytes(&list->residents[i]);
    return bytes;
}

struct change {
    enum component component;
    const struct adapter_source *sources;
    int count;
};

static bool add_change(const struct adapter_source *source, const struct adapter_module *module,
    const float *pristine, float *weight, float *bias, struct error *err) {
    if (module->has_weight &&
        !adapter_module_add(module, pristine, (float)source->weight, weight, err))
        return false;
    if (module->has_bias)
        adapter_module_add_bias(module, (float)source->weight, bias);
    return true;
}

/* Returns the source's module for the layer, or NULL. */
static const struct adapter_module *module_of(const struct adapter_source *source,
    enum component component, const struct named_weight *layer) {
    for (size_t i = 0; i < source->version->copied_count; i++) {
        const struct adapter_module *module = source->version->copied[i];
        if (module->component == component && module->target == layer)
            return module;
    }
    return NULL;
}

/* A repack_change. Adds the changes of all sources to the layer in order. Each change is computed
 * from the pristine weights. */
static bool change_layer(
    void *user, const struct named_weight *layer, float *weight, float *bias, struct error *err) {
    const struct change *change = user;
    const size_t bytes = (size_t)(layer->n * layer->k * adapter_target_taps(layer)) * sizeof(float);
    float *pristine = NULL;
    bool ok = true;
    for (int i = 0; ok && i < change->count; i++) {
        const struct adapter_source *source = &change->sources[i];
        const struct adapter_module *module = module_of(source, change->component, layer);
        if (!module)
            continue;
        if (!pristine) {
            pristine = malloc(bytes);
            if (!pristine)
                return error_set(err, ERROR_NO_MEMORY, "%s: no memory to change it", layer->name);
            memcpy(pristine, weight, bytes);
        }
        ok = add_change(source, module, pristine, weight, bias, err);
    }
    free(pristine);
    return ok;
}

static bool make_one(
    struct adapters *adapters, const struct change *change, struct replaced *r, struct error *err) {
    const struct weights *pristine = &adapters->pristine[change->component];
    struct weight_numbers numbers;
    if (!weight_numbers_read(pristine, component_list(adapters, change->component), r->base,
            change_layer, (void *)(uintptr_t)change, &numbers, err))
        return false;
    adapters_device_take(adapters);
    const bool ok = weight_numbers_pack(pristine, &numbers, r->base, &r->copy, err);
    adapters_device_give(adapters);
    weight_numbers_finish(&numbers);
    return ok;
}

static bool read_pristine(const struct weights *pristine, const struct named_resident *norm,
    const char *leaf, float *to, struct error *err) {
    char name[SAFETENSORS_MAX_NAME_BYTES];
    struct tensor t;
    if (!layer_name(name, norm->name, leaf, err) ||
        !pristine->get(pristine->user, name, 1, norm->weight.shape, &t, err))
        return false;
    convert_elements(to, DTYPE_F32, t.data, t.dtype, tensor_elements(&t));
    return true;
}

/* numbers: [scale, shift, pristine scale], each with as many values as the norm has channels. */
static bool change_norm(const struct adapters *adapters, const struct change *change,
    const struct named_resident *norm, float *numbers, struct error *err) {
    const int64_t channels = norm->weight.shape[0];
    const struct weights *pristine = &adapters->pristine[change->component];
    float *own = numbers + 2 * channels;
    bool ok = read_pristine(pristine, norm, "weight", numbers, err) &&
              read_pristine(pristine, norm, "bias", numbers + channels, err);
    memcpy(own, numbers, (size_t)channels * sizeof(*own));
    for (int i = 0; ok && i < change->count; i++) {
        const struct adapter_source *source = &change->sources[i];
        for (size_t k = 0; ok && k < source->version->copied_count; k++)
            if (source->version->copied[k]->norm == norm)
                ok = add_change(
                    source, source->version->copied[k], own, numbers, numbers + channels, err);
    }
    return ok;
}

static bool make_norm(struct adapters *adapters, const struct change *change,
    struct replaced_norm *r, struct error *err) {
    const int64_t channels = r->base->weight.shape[0];
    const struct device_memory *memory = adapters->base.kernels->memory;
    float *numbers = calloc((size_t)channels, 3 * sizeof(*numbers));
    if (!numbers)
        return error_set(err, ERROR_NO_MEMORY, "%s: no memory to change it", r->base->name);
    bool ok = change_norm(adapters, change, r->base, numbers, err);
    if (ok) {
        r->bytes = norm_bytes(r->base);
        adapters_device_take(adapters);
        ok = memory->alloc(MEMORY_WEIGHTS, r->bytes, &r->memory, err) &&
             memory->upload(r->memory, numbers, r->bytes, err);
        adapters_device_give(adapters);
        r->scale = r->shift = r->base->weight;
        r->scale.data = r->memory;
        r->shift.data = (float *)r->memory + channels;
    }
    free(numbers);
    return ok;
}

static bool make_all(struct adapters *adapters, struct adapter_copies *copies,
    const struct change *change, struct error *err) {
    const struct weights *pristine = &adapters->pristine[change->component];
    for (size_t i = 0; i < copies->replaced_count; i++) {
        if (!make_one(adapters, change, &copies->replaced[i], err))
            return false;
        copies->bytes += copies->replaced[i].copy->bytes;
    }
    for (size_t i = 0; i < copies->norm_count; i++) {
        if (!make_norm(adapters, change, &copies->norms[i], err))
            return false;
        copies->bytes += copies->norms[i].bytes;
    }
    for (int i = 0; i < change->count; i++)
        if (!adapter_intact(change->sources[i].version->file, err))
            return false;
    return pristine->end(pristine->user, err);
}

/* Lists the weights and norms that the sources change, and allocates the lists of copies. */
static bool list_changed(
    struct adapters *adapters, struct adapter_copies *copies, const struct change *change) {
    const struct weight_list *list = component_list(adapters, copies->component);
    const struct packed **changed = calloc(list->count + 1, sizeof(*changed));
    if (!changed)
        return false;
    copies->replaced_count = changed_weights(
        list, change->sources, change->count, copies->component, changed);
    copies->replaced = calloc(copies->replaced_count + 1, sizeof(*copies->replaced));
    copies->norms = calloc(list->resident_count + 1, sizeof(*copies->norms));
    for (size_t i = 0; copies->replaced && i < copies->replaced_count; i++)
        copies->replaced[i].base = changed[i];
    for (size_t i = 0; copies->norms && i < list->resident_count; i++)
        if (changes_norm(change->sources, change->count, &list->residents[i]))
            copies->norms[copies->norm_count++].base = &list->residents[i];
    free(changed);
    return copies->replaced && copies->norms;
}

bool copies_create(struct adapters *adapters, enum component component,
    const struct adapter_source *sources, int count, struct adapter_copies **out,
    struct error *err) {
    const struct change change = { component, sources, count };
    struct adapter_copies *copies = calloc(1, sizeof(*copies));
    bool ok = copies != NULL;
    if (ok) {
        copies->component = component;
        copies->sources = sources_copy(sources, count);
        copies->source_count = count;
        ok = copies->sources && list_changed(adapters, copies, &change);
    }
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory for a list of weights");
    ok = ok && make_all(adapters, copies, &change, err);
    checkpoint_drop_pages(adapters->base.checkpoint);
    if (ok) {
        *out = copies;
        return true;
    }
    adapters_device_take(adapters);
    copies_destroy(adapters, copies);
    adapters_device_give(adapters);
    return false;
}

void copies_destroy(const struct adapters *adapters, struct adapter_copies *copies) {
    if (!copies)
        return;
    for (size_t i = 0; copies->replaced && i < copies->replaced_count; i++)
        packed_destroy(copies->replaced[i].copy);
    const struct device_memory *memory = adapters->base.kernels->memory;
    for (size_t i = 0; copies->norms && i < copies->norm_count; i++)
        memory->release(MEMORY_WEIGHTS, copies->norms[i].memory, copies->norms[i].bytes);
    free(copies->norms);
    free(copies->replaced);
    free(copies->sources);
    free(copies);
}
