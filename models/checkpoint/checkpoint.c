#include "models/checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/list.h"
#include "models/checkpoint/checkpoint_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAMES_SHOWN 4 /* how many unused tensors an error lists */

static const char *const component_names[COMPONENTS_MAX] = {
    [COMPONENT_TEXT_ENCODER] = "text_encoder",
    [COMPONENT_UNET] = "unet",
    [COMPONENT_VAE] = "vae",
    [COMPONENT_SAFETY_CHECKER] = "safety_checker",
};

const char *component_name(enum component component) {
    return component_names[component];
}

struct safetensors *checkpoint_add_file(struct checkpoint *c, const char *path, struct error *err) {
    if (!LIST_ROOM(c->files, c->file_count, "a checkpoint's files", err) ||
        !safetensors_open(path, &c->files[c->file_count], err))
        return NULL;
    return c->files[c->file_count++];
}

static bool starts_with(const char *text, const char *prefix) {
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* Returns the current name of a VAE's attention tensor; the names were different before 2023. */
static char *modern_vae_name(const char *name) {
    static const char *const leafs[][2] = { { ".query.", ".to_q." }, { ".key.", ".to_k." },
        { ".value.", ".to_v." }, { ".proj_attn.", ".to_out.0." } };
    for (size_t i = 0; i < sizeof(leafs) / sizeof(leafs[0]); i++) {
        const char *at = strstr(name, leafs[i][0]);
        if (!at || !strstr(name, "mid_block.attentions."))
            continue;
        char *modern = NULL;
        int length = asprintf(
            &modern, "%.*s%s%s", (int)(at - name), name, leafs[i][1], at + strlen(leafs[i][0]));
        return length < 0 ? NULL : modern;
    }
    return strdup(name);
}

static char *modern_text_name(const char *name) {
    if (!starts_with(name, "embeddings.") && !starts_with(name, "encoder.") &&
        !starts_with(name, "final_layer_norm."))
        return strdup(name);
    char *full = NULL;
    return asprintf(&full, "text_model.%s", name) < 0 ? NULL : full;
}

/* Returns the current name of a safety checker's tensor: transformers before version 5 wrote the
 * tower's name twice. */
static char *modern_checker_name(const char *name) {
    const char *inner = starts_with(name, "vision_model.") ? strchr(name, '.') + 1 : "";
    return strdup(starts_with(inner, "vision_model.") ? inner : name);
}

bool checkpoint_add_weight(struct checkpoint *c, enum component component, const char *name,
    struct safetensors *file, size_t entry, int part, int parts, struct error *err) {
    struct weight_table *table = &c->tables[component];
    if (!LIST_ROOM(table->items, table->count, "the names of tensors", err))
        return false;
    char *modern = component == COMPONENT_VAE              ? modern_vae_name(name)
                   : component == COMPONENT_TEXT_ENCODER   ? modern_text_name(name)
                   : component == COMPONENT_SAFETY_CHECKER ? modern_checker_name(name)
                                                           : strdup(name);
    if (!modern)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a tensor name");
    table->items[table->count++] = (struct weight){ modern, file, entry, part, parts, false };
    return true;
}

static int weight_order(const void *a, const void *b) {
    return strcmp(((const struct weight *)a)->name, ((const struct weight *)b)->name);
}

bool checkpoint_seal(struct checkpoint *c, struct error *err) {
    for (int i = 0; i < COMPONENTS_MAX; i++) {
        struct weight_table *table = &c->tables[i];
        if (table->count == 0)
            continue;
        qsort(table->items, table->count, sizeof(*table->items), weight_order);
        for (size_t j = 1; j < table->count; j++)
            if (strcmp(table->items[j - 1].name, table->items[j].name) == 0)
                return error_set(err, ERROR_INVALID, "%s: tensor %s is there twice",
                    component_names[i], table->items[j].name);
    }
    return true;
}

struct weight *checkpoint_find(
    const struct checkpoint *c, enum component component, const char *name) {
    const struct weight_table *table = &c->tables[component];
    size_t low = 0, high = table->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(table->items[mid].name, name);
        if (order == 0)
            return &table->items[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

int weight_shape(const struct weight *weight, int64_t *shape) {
    const struct safetensors_entry *entry =
        &safetensors_get_header(weight->file)->entries[weight->entry];
    memcpy(shape, entry->shape, sizeof(entry->shape));
    if (weight->parts > 1)
        shape[0] /= weight->parts;
    return entry->rank;
}

bool checkpoint_open(
    const char *path, const char *tokenizer_dir, struct checkpoint **out, struct error *err) {
    struct checkpoint *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "no memory to open %s", path);
    c->single_file = !file_is_folder(path);
    bool ok = c->single_file ? checkpoint_open_ldm(c, path, err)
                             : checkpoint_open_folder(c, path, err);
    if (ok && tokenizer_dir) {
        free(c->tokenizer_dir);
        c->tokenizer_dir = strdup(tokenizer_dir);
        if (!c->tokenizer_dir)
            ok = error_set(err, ERROR_NO_MEMORY, "no memory to open %s", path);
        else if (!file_is_folder(tokenizer_dir))
            ok = error_set(err, ERROR_NOT_FOUND, "tokenizer: %s is not a folder", tokenizer_dir);
    }
    if (!ok) {
        checkpoint_close(c);
        return false;
    }
    *out = c;
    return true;
}

void checkpoint_close(struct checkpoint *c) {
    if (!c)
        return;
    for (int i = 0; i < COMPONENTS_MAX; i++) {
        for (size_t j = 0; j < c->tables[i].count; j++)
            free(c->tables[i].items[j].name);
        free(c->tables[i].items);
    }
    for (size_t i = 0; i < c->file_count; i++)
        safetensors_close(c->files[i]);
    free(c->files);
    json_decref(c->scheduler);
    free(c->tokenizer_dir);
    free(c->folder);
    free(c);
}

const struct text_encoder_config *checkpoint_text_encoder_config(const struct checkpoint *c) {
    return &c->text_encoder;
}

const struct unet_config *checkpoint_unet_config(const struct checkpoint *c) {
    return &c->unet;
}

const struct vae_config *checkpoint_vae_config(const struct checkpoint *c) {
    return &c->vae;
}

bool checkpoint_has_safety_checker(const struct checkpoint *c) {
    return c->has_safety_checker;
}

const struct safety_checker_config *checkpoint_safety_checker_config(const struct checkpoint *c) {
    return &c->safety_checker;
}

const json_t *checkpoint_scheduler_json(const struct checkpoint *c) {
    return c->scheduler;
}

const char *checkpoint_tokenizer_dir(const struct checkpoint *c) {
    return c->tokenizer_dir;
}

enum tokenizer_source checkpoint_tokenizer_source(const struct checkpoint *c) {
    if (c->tokenizer_dir)
        return TOKENIZER_FOLDER;
    return c->text_encoder.vocab_size == CLIP_VOCAB_SIZE ? TOKENIZER_CLIP : TOKENIZER_MISSING;
}

/* The text encoder of SD-2 is OpenCLIP's, which uses GELU. CLIP's own uses quick_gelu. */
enum clip_padding checkpoint_clip_padding(const struct checkpoint *c) {
    return c->text_encoder.hidden_act == ACTIVATION_GELU ? CLIP_PADS_WITH_0 : CLIP_PADS_WITH_END;
}

/* In an old config eos_token_id is always 2, whatever the tokenizer is. transformers then takes the
 * highest id as the end token. */
static bool check_end_mark(
    const struct checkpoint *c, const struct tokenizer *tokenizer, struct error *err) {
    const int said = c->text_encoder.eos_token_id, end = tokenizer_end_id(tokenizer);
    return said == -1 || said == 2 || said == end ||
           error_set(err, ERROR_INVALID,
               "text_encoder: eos_token_id is %d, but the tokenizer's end mark is %d; that or 2, "
               "as "
               "in old files, is needed",
               said, end);
}

static bool create_tokenizer(
    const struct checkpoint *c, struct tokenizer **out, struct error *err) {
    switch (checkpoint_tokenizer_source(c)) {
    case TOKENIZER_FOLDER:
        return tokenizer_create(c->tokenizer_dir, out, err);
    case TOKENIZER_CLIP:
        return tokenizer_create_clip(checkpoint_clip_padding(c), out, err);
    case TOKENIZER_MISSING:
        break;
    }
    return error_set(err, ERROR_INVALID,
        "tokenizer: the checkpoint brings none, and its text encoder has %d tokens where CLIP's "
        "own "
        "vocabulary has %d: name the folder of the right one with --tokenizer",
        c->text_encoder.vocab_size, CLIP_VOCAB_SIZE);
}

bool tokenizer_from_checkpoint(
    const struct checkpoint *c, struct tokenizer **out, struct error *err) {
    struct tokenizer *tokenizer;
    if (!create_tokenizer(c, &tokenizer, err))
        return false;
    if (!check_end_mark(c, tokenizer, err)) {
        tokenizer_destroy(tokenizer);
        return false;
    }
    *out = tokenizer;
    return true;
}

bool checkpoint_is_single_file(const struct checkpoint *c) {
    return c->single_file;
}

const char *checkpoint_note(const struct checkpoint *c) {
    return c->note;
}

const json_t *checkpoint_file_metadata(const struct checkpoint *c) {
    for (size_t i = 0; i < c->file_count; i++) {
        const json_t *metadata = safetensors_get_header(c->files[i])->metadata;
        if (json_object_size(metadata) > 0)
            return metadata;
    }
    return NULL;
}

bool checkpoint_has_tensor(const struct checkpoint *c, enum component component, const char *name) {
    return checkpoint_find(c, component, name) != NULL;
}

static const char *shape_text(int rank, const int64_t *shape, char *text, size_t size) {
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < rank && at < size; i++)
        at += (size_t)snprintf(text + at, size - at, "[%lld]", (long long)shape[i]);
    return rank == 0 ? "(a single number)" : text;
}

/* Returns whether the shapes are equal except for trailing dimensions of one: [n][k] and
 * [n][k][1][1] are the same matrix. */
static bool shape_fits(int rank, const int64_t *shape, int wanted_rank, const int64_t *wanted) {
    bool matrix_either_way = (rank == 2 && wanted_rank == 4) || (rank == 4 && wanted_rank == 2);
    if (rank != wanted_rank && !matrix_either_way)
        return false;
    for (int i = 0; i < TENSOR_MAX_RANK; i++)
        if ((i < rank ? shape[i] : 1) != (i < wanted_rank ? wanted[i] : 1))
            return false;
    return true;
}

static bool view_weight(struct weight *weight, struct tensor *out, struct error *err) {
    if (!safetensors_view(weight->file, weight->entry, out, err))
        return false;
    if (out->dtype != DTYPE_F32 && out->dtype != DTYPE_F16 && out->dtype != DTYPE_BF16)
        return error_set(err, ERROR_UNSUPPORTED, "its dtype is %s; F32, F16 or BF16 is needed",
            safetensors_dtype_name(
                safetensors_get_header(weight->file)->entries[weight->entry].dtype));
    if (weight->parts > 1) {
        const struct safetensors_entry *entry =
            &safetensors_get_header(weight->file)->entries[weight->entry];
        uint64_t bytes = (entry->end - entry->begin) / (uint64_t)weight->parts;
        out->data = (uint8_t *)out->data + bytes * (uint64_t)weight->part;
        out->shape[0] /= weight->parts;
    }
    return true;
}

void checkpoint_drop_pages(struct checkpoint *c) {
    for (size_t i = 0; i < c->file_count; i++)
        safetensors_drop_pages(c->files[i]);
    c->viewed_bytes = 0;
}

bool checkpoint_tensor(struct checkpoint *c, enum component component, const char *name, int rank,
    const int64_t *shape, struct tensor *out, struct error *err) {
    char wanted_text[96], found_text[96];
    struct weight *weight = checkpoint_find(c, component, name);
    shape_text(rank, shape, wanted_text, sizeof(wanted_text));
    if (!weight)
        return error_set(err, ERROR_INVALID, "tensor %s %s is missing", name, wanted_text);
    int64_t found[TENSOR_MAX_RANK];
    int found_rank = weight_shape(weight, found);
    if (!shape_fits(found_rank, found, rank, shape)) {
        const char *own_name = safetensors_get_header(weight->file)->entries[weight->entry].name;
        bool renamed = strcmp(own_name, name) != 0;
        return error_set(err, ERROR_INVALID,
            "tensor %s has the shape %s; the config asks for %s%s%s%s", name,
            shape_text(found_rank, found, found_text, sizeof(found_text)), wanted_text,
            renamed ? " (in the file: " : "", renamed ? own_name : "", renamed ? ")" : "");
    }
    /* Each weight is read once. Without this call the whole file would stay in memory beside its
     * copy. */
    if (c->viewed_bytes > CHECKPOINT_RESIDENT_BYTES)
        checkpoint_drop_pages(c);
    if (!view_weight(weight, out, err))
        return error_prefix(err, "tensor %s", name);
    c->viewed_bytes += tensor_bytes(out);
    weight->used = true;
    out->rank = rank;
    for (int i = 0; i < TENSOR_MAX_RANK; i++)
        out->shape[i] = i < rank ? shape[i] : 0;
    return true;
}

/* Tensors that files contain but that the arithmetic never reads. */
static bool known_leftover(enum component component, const char *name) {
    if (component == COMPONENT_SAFETY_CHECKER)
        return strstr(name, "position_ids");
    if (component != COMPONENT_TEXT_ENCODER)
        return false;
    return strstr(name, "position_ids") || strcmp(name, "text_projection.weight") == 0 ||
           strcmp(name, "logit_scale") == 0;
}

static bool check_intact(const struct checkpoint *c, struct error *err) {
    for (size_t i = 0; i < c->file_count; i++)
        if (!safetensors_intact(c->files[i], err))
            return false;
    return true;
}

static bool check_unused(const struct checkpoint *c, enum component component, struct error *err) {
    const struct weight_table *table = &c->tables[component];
    char names[384] = "";
    size_t unused = 0, at = 0;
    for (size_t i = 0; i < table->count; i++) {
        const struct weight *weight = &table->items[i];
        if (weight->used || known_leftover(component, weight->name))
            continue;
        if (unused++ < NAMES_SHOWN && at < sizeof(names))
            at += (size_t)snprintf(
                names + at, sizeof(names) - at, "%s%.80s", at ? ", " : "", weight->name);
    }
    if (unused == 0)
        return true;
    return error_set(err, ERROR_INVALID, "%zu tensor%s that the config has no place for: %s%s",
        unused, unused == 1 ? "" : "s", names, unused > NAMES_SHOWN ? ", ..." : "");
}

static bool source_get(void *user, const char *name, int rank, const int64_t *shape,
    struct tensor *out, struct error *err) {
    const struct component_source *source = user;
    return checkpoint_tensor(source->checkpoint, source->component, name, rank, shape, out, err);
}

static bool source_end(void *user, struct error *err) {
    const struct component_source *source = user;
    return check_unused(source->checkpoint, source->component, err) &&
           check_intact(source->checkpoint, err);
}

struct weights weights_from_checkpoint(struct checkpoint *c, enum component component,
    const struct kernels *kernels, enum dtype dtype) {
    c->sources[component] = (struct component_source){ c, component };
    return (struct weights){
        .get = source_get,
        .end = source_end,
        .user = &c->sources[component],
        .kernels = kernels,
        .dtype = dtype,
    };
}

void checkpoint_get_stats(
    const struct checkpoint *c, enum component component, struct checkpoint_stats *out) {
    const struct weight_table *table = &c->tables[component];
    memset(out, 0, sizeof(*out));
    for (size_t i = 0; i < table->count; i++) {
        const struct weight *weight = &table->items[i];
        const struct safetensors_entry *entry =
            &safetensors_get_header(weight->file)->entries[weight->entry];
        out->tensors++;
        out->parameters += entry->elements / (uint64_t)weight->parts;
        out->bytes += (entry->end - entry->begin) / (uint64_t)weight->parts;
        static const int dtypes[] = {
            [SAFETENSORS_F32] = DTYPE_F32,
            [SAFETENSORS_F16] = DTYPE_F16,
            [SAFETENSORS_BF16] = DTYPE_BF16,
            [SAFETENSORS_I32] = DTYPE_I32,
            [SAFETENSORS_I64] = DTYPE_I64,
        };
        if (entry->dtype <= SAFETENSORS_I64)
            out->by_dtype[dtypes[entry->dtype]]++;
    }
}
