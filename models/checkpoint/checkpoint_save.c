#include "models/checkpoint/checkpoint_save.h"

#include "base/file.h"
#include "base/text/json.h"
#include "models/checkpoint/checkpoint_internal.h"
#include "models/checkpoint/folder_copy.h"

#include <stdlib.h>
#include <string.h>

/* The entries of model_index.json that are saved. */
static const char *const kept[] = { "unet", "text_encoder", "vae", "tokenizer", "scheduler",
    "feature_extractor" };

static bool is_kept(const char *name) {
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (strcmp(name, kept[i]) == 0)
            return true;
    return false;
}

struct save {
    struct checkpoint *c;
    const struct checkpoint_change *changes; /* sorted */
    size_t count;
    const char *path;
    json_t *index; /* owned: model_index.json of `path`, or NULL */
};

/* --- weights --- */

static int by_name(const void *a, const void *b) {
    const struct checkpoint_change *x = a, *y = b;
    return x->component != y->component ? (int)x->component - (int)y->component
                                        : strcmp(x->name, y->name);
}

static const struct checkpoint_change *find_change(
    const struct save *s, enum component component, const char *name) {
    const struct checkpoint_change key = { .component = component, .name = name };
    return bsearch(&key, s->changes, s->count, sizeof(key), by_name);
}

/* Sets one tensor as it will be written. */
static bool fill_item(struct save *s, enum component component, const struct weight *weight,
    struct safetensors_item *item, struct error *err) {
    int64_t shape[TENSOR_MAX_RANK];
    const int rank = weight_shape(weight, shape);
    const struct checkpoint_change *change = find_change(s, component, weight->name);
    item->name = weight->name;
    if (!safetensors_view(weight->file, weight->entry, &item->tensor, err))
        return false;
    const int64_t count = tensor_elements(&item->tensor) / weight->parts;
    if (change && tensor_elements(&change->tensor) != count)
        return error_set(
            err, ERROR_INTERNAL, "%s has %lld numbers in its file", weight->name, (long long)count);
    const size_t skipped = (size_t)(count * weight->part) * dtype_size(item->tensor.dtype);
    item->tensor.data = (char *)item->tensor.data + skipped;
    if (change)
        item->tensor = change->tensor;
    item->tensor.rank = rank;
    memcpy(item->tensor.shape, shape, sizeof(shape));
    return true;
}

static bool write_component(
    struct save *s, enum component component, const char *folder, struct error *err) {
    const struct weight_table *table = &s->c->tables[component];
    char *path = NULL;
    struct safetensors_item *items = calloc(table->count + 1, sizeof(*items));
    json_t *metadata = json_pack("{s:s}", "format", "pt");
    bool ok = asprintf(&path, "%s/%s.safetensors", folder, checkpoint_stem(component)) >= 0 &&
              items && metadata;
    if (!ok)
        error_set(err, ERROR_NO_MEMORY, "no memory to write %zu tensors", table->count);
    for (size_t i = 0; ok && i < table->count; i++)
        ok = fill_item(s, component, &table->items[i], &items[i], err);
    ok = ok && safetensors_write(path, items, table->count, metadata, err);
    for (size_t i = 0; ok && i < table->count; i++)
        ok = safetensors_intact(table->items[i].file, err);
    json_decref(metadata);
    free(items);
    free(path);
    return ok;
}

/* --- the rest --- */

/* Sets *taken for files that are not copied: they are written separately, or not at all. There is
 * one weight file per component, so an index of shards is left out. */
static bool take(
    void *user, const char *source, const char *target, bool *taken, struct error *err) {
    const struct save *s = user;
    const char *name = source + strlen(s->path);
    (void)target;
    (void)err;
    while (*name == '/')
        name++;
    const char *dot = strstr(name, ".safetensors.index");
    *taken = dot || strcmp(name, "model_index.json") == 0 ||
             (file_is_folder(source) && !strchr(name, '/') && !is_kept(name));
    return true;
}

static bool read_index(struct save *s, struct error *err) {
    char *path = file_join(s->path, "model_index.json");
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    const bool is_there = file_exists(path);
    s->index = is_there ? json_parse_python_file(path, CONFIG_MAX_BYTES, err) : NULL;
    free(path);
    return !is_there || s->index;
}

/* Returns the model_index.json of diffusers' own pipeline, for a checkpoint that has none. */
static json_t *plain_index(const struct checkpoint *c) {
    const bool inpaints = c->unet.in_channels == 2 * c->vae.latent_channels + 1;
    return json_pack("{s:s, s:[s, s], s:[s, s], s:[s, s], s:[s, s], s:[s, s], s:[n, n], s:[n, n]}",
        "_class_name", inpaints ? "StableDiffusionInpaintPipeline" : "StableDiffusionPipeline",
        "unet", "diffusers", "UNet2DConditionModel", "text_encoder", "transformers",
        "CLIPTextModel", "vae", "diffusers", "AutoencoderKL", "tokenizer", "transformers",
        "CLIPTokenizer", "scheduler", "diffusers",
        json_string_value(json_object_get(c->scheduler, "_class_name")), "safety_checker",
        "feature_extractor");
}

/* Writes a model_index.json that names only what is in the folder. */
static bool write_index(struct save *s, const char *folder, struct error *err) {
    if (!s->index)
        s->index = plain_index(s->c);
    const char *name;
    json_t *value;
    void *next;
    json_object_foreach_safe(s->index, next, name, value) {
        char *part = json_is_array(value) ? file_join(folder, name) : NULL;
        if (part && !file_is_folder(part))
            json_object_set_new(s->index, name, json_pack("[n, n]"));
        free(part);
    }
    return json_write_file(folder, "model_index.json", s->index, err);
}

static bool write_prediction_type(
    struct save *s, const char *folder, const char *type, struct error *err) {
    json_t *scheduler = json_copy(s->c->scheduler);
    if (scheduler)
        json_object_set_new(scheduler, "prediction_type", json_string(type));
    const bool ok = json_write_file(folder, "scheduler/scheduler_config.json", scheduler, err);
    json_decref(scheduler);
    return ok;
}

bool checkpoint_save(struct checkpoint *c, const char *path,
    const struct checkpoint_changes *changes, const char *out, struct error *err) {
    struct checkpoint_change *sorted = calloc(changes->count + 1, sizeof(*sorted));
    struct save s = { .c = c, .changes = sorted, .count = changes->count, .path = path };
    const struct folder_copy copy = { take, &s };
    bool ok = sorted ||
              error_set(err, ERROR_NO_MEMORY, "no memory for %zu tensors", changes->count);
    if (ok) {
        memcpy(sorted, changes->items, changes->count * sizeof(*sorted));
        qsort(sorted, changes->count, sizeof(*sorted), by_name);
    }
    ok = ok && read_index(&s, err) && folder_copy(&copy, path, out, err);
    for (int i = 0; ok && i < COMPONENT_COUNT; i++) {
        char *folder = file_join(out, component_name((enum component)i));
        ok = folder ? write_component(&s, (enum component)i, folder, err)
                    : error_set(err, ERROR_NO_MEMORY, "no memory for a path");
        free(folder);
    }
    ok = ok && write_index(&s, out, err) &&
         (!changes->prediction_type ||
             write_prediction_type(&s, out, changes->prediction_type, err));
    json_decref(s.index);
    free(sorted);
    return ok;
}
