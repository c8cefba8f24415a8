/* Writes safetensors files: latents, adapters, test data. */
#include "models/checkpoint/safetensors.h"

#include "base/file.h"
#include "base/limits.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

static enum safetensors_dtype dtype_on_disk(enum dtype dtype) {
    switch (dtype) {
    case DTYPE_F32:
        return SAFETENSORS_F32;
    case DTYPE_F16:
        return SAFETENSORS_F16;
    case DTYPE_BF16:
        return SAFETENSORS_BF16;
    case DTYPE_I32:
        return SAFETENSORS_I32;
    case DTYPE_I64:
        return SAFETENSORS_I64;
    case DTYPE_F64: /* no reader has it */
        break;
    }
    return SAFETENSORS_DTYPE_COUNT;
}

/* Sorts by dtype, wide ones first, so that every tensor is aligned in the file, then by name. The
 * format's own writer uses the same order. */
static int item_order(const void *a, const void *b) {
    static const int rank[] = {
        [DTYPE_I64] = 0, [DTYPE_F32] = 1, [DTYPE_I32] = 2, [DTYPE_BF16] = 3, [DTYPE_F16] = 4
    };
    const struct safetensors_item *x = *(const struct safetensors_item *const *)a;
    const struct safetensors_item *y = *(const struct safetensors_item *const *)b;
    if (x->tensor.dtype != y->tensor.dtype)
        return rank[x->tensor.dtype] - rank[y->tensor.dtype];
    return strcmp(x->name, y->name);
}

static bool item_bytes(const struct safetensors_item *item, uint64_t *bytes, struct error *err) {
    const struct tensor *t = &item->tensor;
    if (t->device != DEVICE_CPU)
        return error_set(
            err, ERROR_INTERNAL, "tensor %s: only host memory can be written", item->name);
    if (dtype_on_disk(t->dtype) == SAFETENSORS_DTYPE_COUNT)
        return error_set(err, ERROR_INTERNAL, "tensor %s: %s cannot be written", item->name,
            dtype_name(t->dtype));
    *bytes = safetensors_dtype_size(dtype_on_disk(t->dtype));
    for (int i = 0; i < t->rank; i++)
        if (t->shape[i] < 1 || __builtin_mul_overflow(*bytes, (uint64_t)t->shape[i], bytes) ||
            *bytes > INT64_MAX)
            return error_set(err, ERROR_INTERNAL, "tensor %s: dimension %d is %lld", item->name, i,
                (long long)t->shape[i]);
    return true;
}

/* Adds the description of one tensor. *offset moves past its data. */
static bool header_add(
    json_t *header, const struct safetensors_item *item, uint64_t *offset, struct error *err) {
    uint64_t bytes = 0, end;
    if (!item_bytes(item, &bytes, err))
        return false;
    if (__builtin_add_overflow(*offset, bytes, &end) || end > INT64_MAX)
        return error_set(err, ERROR_TOO_LARGE, "the tensors are too large for one file");
    if (json_object_get(header, item->name))
        return error_set(err, ERROR_INVALID, "tensor %s is there twice", item->name);
    json_t *shape = json_array();
    for (int i = 0; i < item->tensor.rank; i++)
        json_array_append_new(shape, json_integer(item->tensor.shape[i]));
    json_t *entry = json_pack("{s:s, s:o, s:[I, I]}", "dtype",
        safetensors_dtype_name(dtype_on_disk(item->tensor.dtype)), "shape", shape, "data_offsets",
        (json_int_t)*offset, (json_int_t)end);
    if (json_object_set_new(header, item->name, entry) != 0)
        return error_set(
            err, ERROR_INVALID, "tensor %s: its name is not UTF-8, or no memory", item->name);
    *offset = end;
    return true;
}

/* Returns the header's text, malloc'd. It is padded with spaces so that the data begins at a
 * multiple of 8. */
static char *header_text(const json_t *header, size_t *size, struct error *err) {
    char *text = json_dumps(header, JSON_COMPACT);
    size_t length = text ? strlen(text) : 0;
    *size = (length + 7) / 8 * 8;
    char *padded = text ? realloc(text, *size + 1) : NULL;
    if (!padded) {
        free(text);
        error_set(err, ERROR_NO_MEMORY, "no memory for the header");
        return NULL;
    }
    memset(padded + length, ' ', *size - length);
    return padded;
}

static bool write_sorted(const char *path, const struct safetensors_item **items, size_t count,
    const json_t *metadata, struct error *err) {
    json_t *header = json_object();
    struct file_part *parts = calloc(count + 2, sizeof(*parts));
    char *text = NULL;
    bool ok = false;
    if (!header || !parts) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the header");
        goto out;
    }
    if (metadata && json_object_set(header, "__metadata__", (json_t *)metadata) != 0) {
        error_set(err, ERROR_NO_MEMORY, "no memory for the metadata");
        goto out;
    }
    uint64_t data_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = data_bytes;
        if (!header_add(header, items[i], &data_bytes, err))
            goto out;
        parts[i + 2] = (struct file_part){ items[i]->tensor.data, (size_t)(data_bytes - begin) };
    }
    size_t size;
    if (!(text = header_text(header, &size, err)))
        goto out;
    struct safetensors_header checked;
    if (!safetensors_header_parse(text, size, data_bytes, &checked, err))
        goto out;
    safetensors_header_finish(&checked);
    uint64_t prefix = htole64(size);
    parts[0] = (struct file_part){ &prefix, sizeof(prefix) };
    parts[1] = (struct file_part){ text, size };
    ok = file_write(path, parts, count + 2, err);
out:
    free(text);
    free(parts);
    json_decref(header);
    return ok;
}

bool safetensors_write(const char *path, const struct safetensors_item *items, size_t count,
    const json_t *metadata, struct error *err) {
    const struct safetensors_item **sorted = calloc(count ? count : 1, sizeof(*sorted));
    if (!sorted)
        return error_set(err, ERROR_NO_MEMORY, "no memory to write %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        sorted[i] = &items[i];
    qsort(sorted, count, sizeof(*sorted), item_order);
    bool ok = write_sorted(path, sorted, count, metadata, err);
    free(sorted);
    return ok || error_prefix(err, "%s", path);
}
