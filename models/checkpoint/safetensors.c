#include "models/checkpoint/safetensors.h"

#include "base/file_map.h"
#include "base/limits.h"
#include "base/text/json.h"
#include "models/checkpoint/pickle.h"
#include "models/checkpoint/safetensors_scan.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX_BYTES 8 /* the header's length, little-endian */

static const struct {
    const char *name;
    size_t size;
    int tensor_dtype; /* enum dtype, or -1 */
} dtypes[SAFETENSORS_DTYPE_COUNT] = {
    [SAFETENSORS_F32] = { "F32", 4, DTYPE_F32 },
    [SAFETENSORS_F16] = { "F16", 2, DTYPE_F16 },
    [SAFETENSORS_BF16] = { "BF16", 2, DTYPE_BF16 },
    [SAFETENSORS_I32] = { "I32", 4, DTYPE_I32 },
    [SAFETENSORS_I64] = { "I64", 8, DTYPE_I64 },
    [SAFETENSORS_F64] = { "F64", 8, -1 },
    [SAFETENSORS_I16] = { "I16", 2, -1 },
    [SAFETENSORS_I8] = { "I8", 1, -1 },
    [SAFETENSORS_U8] = { "U8", 1, -1 },
    [SAFETENSORS_BOOL] = { "BOOL", 1, -1 },
};

const char *safetensors_dtype_name(enum safetensors_dtype dtype) {
    return dtypes[dtype].name;
}

size_t safetensors_dtype_size(enum safetensors_dtype dtype) {
    return dtypes[dtype].size;
}

static bool entry_name_check(const char *name, struct error *err) {
    size_t length = strlen(name);
    if (length == 0 || length > SAFETENSORS_MAX_NAME_BYTES)
        return error_set(err, ERROR_INVALID,
            "a tensor's name has %zu bytes; 1 to %d are allowed (it begins \"%.40s\")", length,
            SAFETENSORS_MAX_NAME_BYTES, name);
    for (size_t i = 0; i < length; i++)
        if (name[i] < 0x20 || name[i] > 0x7e)
            return error_set(err, ERROR_INVALID,
                "a tensor's name has the byte 0x%02x at position %zu; names are printable ASCII",
                (unsigned char)name[i], i);
    return true;
}

static bool entry_parse_dtype(
    struct safetensors_entry *entry, const json_t *value, struct error *err) {
    const char *word = json_string_value(value);
    for (int i = 0; word && i < SAFETENSORS_DTYPE_COUNT; i++)
        if (strcmp(word, dtypes[i].name) == 0) {
            entry->dtype = (enum safetensors_dtype)i;
            return true;
        }
    char shown[64];
    return error_set(err, ERROR_INVALID,
        "tensor %s: dtype %s is not known; F64, F32, F16, BF16, I64, I32, I16, I8, U8 and BOOL are",
        entry->name, json_describe(value, shown, sizeof(shown)));
}

/* Sets rank, shape and elements. Refuses zero elements, and more than 2^31 - 1 in a dimension, so
 * that the product of two dimensions cannot overflow later. */
static bool entry_parse_shape(
    struct safetensors_entry *entry, const json_t *value, struct error *err) {
    char shown[128];
    if (!json_is_array(value))
        return error_set(err, ERROR_INVALID, "tensor %s: shape %s is not a list of sizes",
            entry->name, json_describe(value, shown, sizeof(shown)));
    size_t rank = json_array_size(value);
    if (rank > TENSOR_MAX_RANK)
        return error_set(err, ERROR_INVALID, "tensor %s: %zu dimensions; at most %d are supported",
            entry->name, rank, TENSOR_MAX_RANK);
    entry->rank = (int)rank;
    entry->elements = 1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *size = json_array_get(value, i);
        if (!json_is_integer(size) || json_integer_value(size) < 1 ||
            json_integer_value(size) > INT32_MAX)
            return error_set(err, ERROR_INVALID,
                "tensor %s: dimension %zu is %s; an integer from 1 to %d is needed", entry->name, i,
                json_describe(size, shown, sizeof(shown)), INT32_MAX);
        entry->shape[i] = json_integer_value(size);
        if (__builtin_mul_overflow(entry->elements, (uint64_t)entry->shape[i], &entry->elements))
            return error_set(err, ERROR_INVALID,
                "tensor %s: the product of its dimensions %s overflows", entry->name,
                json_describe(value, shown, sizeof(shown)));
    }
    return true;
}

static bool entry_parse_offsets(
    struct safetensors_entry *entry, const json_t *value, uint64_t data_bytes, struct error *err) {
    char shown[128];
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < 0)
        return error_set(err, ERROR_INVALID,
            "tensor %s: data_offsets %s are not two integers from 0 on", entry->name,
            json_describe(value, shown, sizeof(shown)));
    entry->begin = (uint64_t)json_integer_value(begin);
    entry->end = (uint64_t)json_integer_value(end);
    if (entry->begin > entry->end || entry->end > data_bytes)
        return error_set(err, ERROR_INVALID,
            "tensor %s: data_offsets %s lie outside of the file's %llu bytes of data", entry->name,
            json_describe(value, shown, sizeof(shown)), (unsigned long long)data_bytes);
    uint64_t bytes;
    if (__builtin_mul_overflow(entry->elements, (uint64_t)dtypes[entry->dtype].size, &bytes))
        return error_set(err, ERROR_INVALID, "tensor %s: its size in bytes overflows", entry->name);
    if (bytes != entry->end - entry->begin)
        return error_set(err, ERROR_INVALID,
            "tensor %s: its shape and dtype %s need %llu bytes, its data_offsets %s hold %llu",
            entry->name, dtypes[entry->dtype].name, (unsigned long long)bytes,
            json_describe(value, shown, sizeof(shown)),
            (unsigned long long)(entry->end - entry->begin));
    return true;
}

static bool entry_parse(struct safetensors_entry *entry, const char *name, const json_t *value,
    uint64_t data_bytes, struct error *err) {
    if (!entry_name_check(name, err))
        return false;
    entry->name = name;
    if (!json_is_object(value))
        return error_set(err, ERROR_INVALID, "tensor %s: its description is not an object", name);
    void *iter = json_object_iter((json_t *)value);
    for (; iter; iter = json_object_iter_next((json_t *)value, iter)) {
        const char *key = json_object_iter_key(iter);
        if (strcmp(key, "dtype") != 0 && strcmp(key, "shape") != 0 &&
            strcmp(key, "data_offsets") != 0)
            return error_set(err, ERROR_INVALID,
                "tensor %s: unknown key \"%.40s\"; dtype, shape and data_offsets are known", name,
                key);
    }
    return entry_parse_dtype(entry, json_object_get(value, "dtype"), err) &&
           entry_parse_shape(entry, json_object_get(value, "shape"), err) &&
           entry_parse_offsets(entry, json_object_get(value, "data_offsets"), data_bytes, err);
}

static bool metadata_check(const json_t *metadata, struct error *err) {
    if (!json_is_object(metadata))
        return error_set(err, ERROR_INVALID, "__metadata__ is not an object");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)metadata, key, value) {
        if (!json_is_string(value))
            return error_set(
                err, ERROR_INVALID, "__metadata__: the value of \"%.60s\" is not a string", key);
    }
    return true;
}

static int entry_by_begin(const void *a, const void *b) {
    const struct safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Checks that the sorted entries tile the data exactly: no overlap, no hole, nothing appended. */
static bool layout_check(
    const struct safetensors_header *header, uint64_t data_bytes, struct error *err) {
    uint64_t at = 0;
    for (size_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->begin != at)
            return error_set(err, ERROR_INVALID,
                "tensor %s begins at byte %llu of the data, but %s ends at %llu: %s", entry->name,
                (unsigned long long)entry->begin, i ? header->entries[i - 1].name : "nothing",
                (unsigned long long)at, entry->begin < at ? "they overlap" : "there is a hole");
        at = entry->end;
    }
    if (at != data_bytes)
        return error_set(err, ERROR_INVALID,
            "the tensors end at byte %llu of the data, but the file holds %llu bytes of it",
            (unsigned long long)at, (unsigned long long)data_bytes);
    return true;
}

static bool arrange(struct safetensors_header *header, uint64_t data_bytes, struct error *err) {
    if (header->count > 0)
        qsort(header->entries, header->count, sizeof(*header->entries), entry_by_begin);
    return layout_check(header, data_bytes, err);
}

static bool header_fill(struct safetensors_header *header, uint64_t data_bytes, struct error *err) {
    if (!json_is_object(header->json))
        return error_set(err, ERROR_INVALID, "the header is not a JSON object");
    header->metadata = json_object_get(header->json, "__metadata__");
    if (header->metadata && !metadata_check(header->metadata, err))
        return false;
    size_t tensors = json_object_size(header->json) - (header->metadata ? 1 : 0);
    if (tensors > SAFETENSORS_MAX_TENSORS)
        return error_set(err, ERROR_INVALID, "%zu tensors; at most %d are supported", tensors,
            SAFETENSORS_MAX_TENSORS);
    header->entries = calloc(tensors ? tensors : 1, sizeof(*header->entries));
    if (!header->entries)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %zu tensor entries", tensors);
    const char *name;
    json_t *value;
    json_object_foreach(header->json, name, value) {
        if (value == header->metadata)
            continue;
        if (!entry_parse(&header->entries[header->count], name, value, data_bytes, err))
            return false;
        header->count++;
    }
    return arrange(header, data_bytes, err);
}

bool safetensors_header_parse(const char *text, size_t size, uint64_t data_bytes,
    struct safetensors_header *out, struct error *err) {
    if (safetensors_scan(text, size, data_bytes, out) &&
        (!out->metadata || metadata_check(out->metadata, NULL)) && arrange(out, data_bytes, NULL))
        return true;
    safetensors_header_finish(out); /* the JSON parser says what is wrong, if anything is */
    out->json = json_parse(text, size, err);
    if (!out->json)
        return error_prefix(err, "header");
    if (header_fill(out, data_bytes, err))
        return true;
    safetensors_header_finish(out);
    return false;
}

void safetensors_header_finish(struct safetensors_header *header) {
    free(header->entries);
    json_decref(header->json);
    free(header->names);
    memset(header, 0, sizeof(*header));
}

struct safetensors {
    char *path; /* owned */
    struct file_map map;
    const uint8_t *data;
    struct safetensors_header header;
    size_t *by_name;       /* indices of entries, sorted by name */
    void **aligned_copies; /* owned: per entry a copy of unaligned data, or NULL */
};

static int index_by_name(const void *a, const void *b, void *entries) {
    const struct safetensors_entry *e = entries;
    return strcmp(e[*(const size_t *)a].name, e[*(const size_t *)b].name);
}

static bool open_mapped(struct safetensors *file, struct error *err) {
    size_t size = file->map.size;
    if (pickle_begins(file->map.bytes, size))
        return error_set(err, ERROR_UNSUPPORTED,
            "this is a pickle, which can run code; only safetensors is read: convert it first");
    if (size < PREFIX_BYTES)
        return error_set(err, ERROR_INVALID,
            "the file has %zu bytes; a safetensors file has at least %d", size, PREFIX_BYTES);
    uint64_t header_bytes;
    memcpy(&header_bytes, file->map.bytes, PREFIX_BYTES);
    header_bytes = le64toh(header_bytes);
    if (header_bytes > size - PREFIX_BYTES)
        return error_set(err, ERROR_INVALID,
            "the header claims %llu bytes, but the file has only %zu: not a safetensors file, or "
            "cut short",
            (unsigned long long)header_bytes, size);
    if (header_bytes > SAFETENSORS_MAX_HEADER_BYTES)
        return error_set(err, ERROR_TOO_LARGE, "the header claims %llu bytes; at most %u are read",
            (unsigned long long)header_bytes, SAFETENSORS_MAX_HEADER_BYTES);
    file->data = file->map.bytes + PREFIX_BYTES + header_bytes;
    if (!safetensors_header_parse((const char *)file->map.bytes + PREFIX_BYTES,
            (size_t)header_bytes, size - PREFIX_BYTES - header_bytes, &file->header, err))
        return false;
    size_t count = file->header.count ? file->header.count : 1;
    file->by_name = calloc(count, sizeof(*file->by_name));
    file->aligned_copies = calloc(count, sizeof(*file->aligned_copies));
    if (!file->by_name || !file->aligned_copies)
        return error_set(err, ERROR_NO_MEMORY, "no memory for an index of %zu tensors", count);
    for (size_t i = 0; i < file->header.count; i++)
        file->by_name[i] = i;
    qsort_r(file->by_name, file->header.count, sizeof(*file->by_name), index_by_name,
        file->header.entries);
    return true;
}

/* Explains in `err` that an existing path cannot be opened because it is not a file. */
static void explain_path(const char *path, struct error *err) {
    struct stat st;
    char target[256];
    if (lstat(path, &st) != 0)
        return;
    const ssize_t length = S_ISLNK(st.st_mode) ? readlink(path, target, sizeof(target)) : -1;
    if (length >= 0 && stat(path, &st) != 0)
        error_set(err, ERROR_NOT_FOUND, "%s is a link to %.*s, which is not there", path,
            (int)length, target);
    else if (!S_ISREG(st.st_mode))
        error_set(err, ERROR_INVALID, "%s is a %s, where a safetensors file is needed", path,
            S_ISDIR(st.st_mode)    ? "folder"
            : S_ISFIFO(st.st_mode) ? "pipe"
            : S_ISSOCK(st.st_mode) ? "socket"
                                   : "device");
}

/* Takes over `map`, also on failure. */
static bool open_map(
    struct file_map *map, const char *path, struct safetensors **out, struct error *err) {
    struct safetensors *file = calloc(1, sizeof(*file));
    if (!file) {
        file_map_close(map);
        return error_set(err, ERROR_NO_MEMORY, "no memory to open %s", path);
    }
    file->map = *map;
    file->path = strdup(path);
    if (!file->path || !open_mapped(file, err) || !file_map_intact(&file->map, err)) {
        if (!file->path)
            error_set(err, ERROR_NO_MEMORY, "no memory for a path");
        error_prefix(err, "%s", path);
        safetensors_close(file);
        return false;
    }
    *out = file;
    return true;
}

bool safetensors_open(const char *path, struct safetensors **out, struct error *err) {
    struct file_map map;
    if (file_map_open(path, &map, err))
        return open_map(&map, path, out, err);
    explain_path(path, err);
    return false;
}

bool safetensors_open_fd(int fd, const char *path, struct safetensors **out, struct error *err) {
    struct file_map map;
    return file_map_open_fd(fd, path, &map, err) && open_map(&map, path, out, err);
}

bool safetensors_intact(const struct safetensors *file, struct error *err) {
    return file_map_intact(&file->map, err) || error_prefix(err, "%s", file->path);
}

void safetensors_drop_pages(struct safetensors *file) {
    file_map_drop_pages(&file->map);
}

void safetensors_close(struct safetensors *file) {
    if (!file)
        return;
    for (size_t i = 0; file->aligned_copies && i < file->header.count; i++)
        free(file->aligned_copies[i]);
    free(file->aligned_copies);
    free(file->by_name);
    safetensors_header_finish(&file->header);
    file_map_close(&file->map);
    free(file->path);
    free(file);
}

const char *safetensors_path(const struct safetensors *file) {
    return file->path;
}

const struct safetensors_header *safetensors_get_header(const struct safetensors *file) {
    return &file->header;
}

uint64_t safetensors_file_bytes(const struct safetensors *file) {
    return file->map.size;
}

ptrdiff_t safetensors_find(const struct safetensors *file, const char *name) {
    size_t low = 0, high = file->header.count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int order = strcmp(file->header.entries[file->by_name[mid]].name, name);
        if (order == 0)
            return (ptrdiff_t)file->by_name[mid];
        if (order < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return -1;
}

bool safetensors_view(
    struct safetensors *file, size_t index, struct tensor *out, struct error *err) {
    const struct safetensors_entry *entry = &file->header.entries[index];
    if (dtypes[entry->dtype].tensor_dtype < 0)
        return error_set(err, ERROR_UNSUPPORTED,
            "tensor %s: its dtype is %s; F32, F16, BF16, I32 and I64 can be used", entry->name,
            dtypes[entry->dtype].name);
    const uint8_t *bytes = file->data + entry->begin;
    size_t size = (size_t)(entry->end - entry->begin);
    if ((uintptr_t)bytes % dtypes[entry->dtype].size != 0) {
        if (!file->aligned_copies[index]) {
            void *copy = malloc(size);
            if (!copy)
                return error_set(err, ERROR_NO_MEMORY,
                    "tensor %s: no memory to align its %zu bytes", entry->name, size);
            file->aligned_copies[index] = memcpy(copy, bytes, size);
        }
        bytes = file->aligned_copies[index];
    }
    memset(out, 0, sizeof(*out));
    out->data = (void *)(uintptr_t)bytes; /* an input: it is never written to */
    out->dtype = (enum dtype)dtypes[entry->dtype].tensor_dtype;
    out->device = DEVICE_CPU;
    out->rank = entry->rank ? entry->rank : 1;
    out->shape[0] = 1;
    for (int i = 0; i < entry->rank; i++)
        out->shape[i] = entry->shape[i];
    return true;
}
