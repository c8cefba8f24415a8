/* Writes a single-file checkpoint with other numbers in it: every tensor keeps its name and its
 * shape. */
#include "models/checkpoint/checkpoint_internal.h"
#include "models/checkpoint/checkpoint_save.h"

#include <stdlib.h>
#include <string.h>

struct save_file {
    struct safetensors *file;
    const struct safetensors_header *header;
    struct safetensors_item *items; /* owned: [header->count]; no name: entry left out */
    void **joined;                  /* owned, with its elements: data of stacked entries */
};

static bool begins_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

/* Returns whether the entry no longer fits the new weights. This is so for the averages of the
 * earlier weights (model_ema), and for the mark "v_pred" if a prediction type is set. */
static bool is_outdated(const char *name, const struct checkpoint_changes *changes) {
    return begins_with(name, "model_ema.") ||
           (changes->prediction_type && strcmp(name, "v_pred") == 0);
}

/* Sets the items to write. An entry with a dtype that no weight has is left out. The checkpoint
 * does not need it, because checkpoint_open has found every tensor that is needed. An error here
 * would lose hours of training. */
static void fill_items(struct save_file *s, const struct checkpoint_changes *changes) {
    struct error unsupported;
    for (size_t i = 0; i < s->header->count; i++) {
        const struct safetensors_entry *entry = &s->header->entries[i];
        if (is_outdated(entry->name, changes) ||
            !safetensors_view(s->file, i, &s->items[i].tensor, &unsupported))
            continue;
        s->items[i].name = entry->name;
        s->items[i].tensor.rank = entry->rank;
    }
}

/* Writes a changed tensor into its part of an entry in which several tensors are stacked. The first
 * change copies the entry, converted to the dtype of the change. */
static bool join(struct save_file *s, const struct weight *weight, const struct tensor *change,
    struct error *err) {
    struct tensor *whole = &s->items[weight->entry].tensor;
    const int64_t count = tensor_elements(change);
    const size_t size = dtype_size(change->dtype);
    void **joined = &s->joined[weight->entry];
    if (!*joined) {
        *joined = calloc((size_t)count * (size_t)weight->parts, size);
        if (!*joined)
            return error_set(err, ERROR_NO_MEMORY, "no memory to save %s", weight->name);
        convert_elements(*joined, change->dtype, whole->data, whole->dtype, count * weight->parts);
        whole->data = *joined;
        whole->dtype = change->dtype;
    }
    memcpy((char *)*joined + (size_t)(count * weight->part) * size, change->data,
        (size_t)count * size);
    return true;
}

static bool change_item(struct save_file *s, const struct checkpoint *c,
    const struct checkpoint_change *change, struct error *err) {
    const struct weight *weight = checkpoint_find(c, change->component, change->name);
    const struct safetensors_entry *entry = weight ? &s->header->entries[weight->entry] : NULL;
    if (!entry ||
        (uint64_t)tensor_elements(&change->tensor) * (uint64_t)weight->parts != entry->elements)
        return error_set(
            err, ERROR_INTERNAL, "%s is not in the file as it is to be saved", change->name);
    if (weight->parts > 1)
        return join(s, weight, &change->tensor, err);
    s->items[weight->entry].tensor.data = change->tensor.data;
    s->items[weight->entry].tensor.dtype = change->tensor.dtype;
    return true;
}

/* Returns the metadata to write, without hashes of the old contents. Includes the prediction type
 * if it is set, because nothing else in a single file shows the type. */
static json_t *metadata_of(const struct save_file *s, const struct checkpoint_changes *changes) {
    json_t *metadata = s->header->metadata ? json_copy(s->header->metadata)
                                           : json_pack("{s:s}", "format", "pt");
    const char *type = changes->prediction_type;
    static const char *const outdated[] = { "modelspec.hash_sha256", "sshs_model_hash",
        "sshs_legacy_hash" };
    for (size_t i = 0; i < sizeof(outdated) / sizeof(outdated[0]); i++)
        json_object_del(metadata, outdated[i]);
    if (type)
        json_object_set_new(metadata, "modelspec.prediction_type",
            json_string(strcmp(type, "v_prediction") == 0 ? "v" : type));
    return metadata;
}

static bool write_items(struct save_file *s, const struct checkpoint_changes *changes,
    const char *out, struct error *err) {
    size_t count = 0;
    for (size_t i = 0; i < s->header->count; i++)
        if (s->items[i].name)
            s->items[count++] = s->items[i];
    json_t *metadata = metadata_of(s, changes);
    const bool ok = metadata ? safetensors_write(out, s->items, count, metadata, err)
                             : error_set(err, ERROR_NO_MEMORY, "no memory for %zu tensors", count);
    json_decref(metadata);
    return ok && safetensors_intact(s->file, err);
}

bool checkpoint_save_file(struct checkpoint *c, const struct checkpoint_changes *changes,
    const char *out, struct error *err) {
    struct save_file s = { .file = c->files[0] };
    s.header = safetensors_get_header(s.file);
    s.items = calloc(s.header->count + 1, sizeof(*s.items));
    s.joined = calloc(s.header->count + 1, sizeof(*s.joined));
    bool ok = s.items && s.joined;
    if (ok)
        fill_items(&s, changes);
    else
        error_set(err, ERROR_NO_MEMORY, "no memory for %zu tensors", s.header->count);
    for (size_t i = 0; ok && i < changes->count; i++)
        ok = change_item(&s, c, &changes->items[i], err);
    ok = ok && write_items(&s, changes, out, err);
    for (size_t i = 0; s.joined && i < s.header->count; i++)
        free(s.joined[i]);
    free(s.joined);
    free(s.items);
    return ok;
}
