/* The safetensors file format: 8 bytes of header length, a JSON header, the tensors' bytes.
 *
 * Files are not trusted, so everything in the header is checked before it is used: known dtypes,
 * exact sizes, and data that begins at 0, has no holes or overlaps, and ends with the file. After
 * parsing, a tensor's shape and bytes agree, and views of it need no further checks.
 *
 * One thread at a time.
 */
#ifndef MODELS_CHECKPOINT_SAFETENSORS_H
#define MODELS_CHECKPOINT_SAFETENSORS_H

#include "base/error.h"
#include "kernels/tensor.h"

#include <jansson.h>

/* The dtypes that a file may contain. Weights and latents use the first five. Other tensors
 * (counters, masks) have the others, which can only be listed. */
enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_I32,
    SAFETENSORS_I64,
    SAFETENSORS_F64,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_DTYPE_COUNT
};

/* Return the format's name for a dtype ("F32"), and the size of an element in bytes. */
const char *safetensors_dtype_name(enum safetensors_dtype dtype);
size_t safetensors_dtype_size(enum safetensors_dtype dtype);

struct safetensors_entry {
    const char *name; /* owned by the header */
    enum safetensors_dtype dtype;
    int rank; /* 0 (one element) to TENSOR_MAX_RANK */
    int64_t shape[TENSOR_MAX_RANK];
    uint64_t elements;
    uint64_t begin, end; /* in bytes from the start of the data */
};

/* A checked header. `entries` are in the order of their data. */
struct safetensors_header {
    struct safetensors_entry *entries;
    size_t count;
    json_t *metadata; /* "__metadata__", an object of strings; or NULL */
    json_t *json;     /* owns the metadata and, without `names`, the names */
    char *names;      /* owned; or NULL */
};

/* Parses the JSON text of a header. `data_bytes` is the number of bytes that follow the header in
 * the file. On failure *out is empty. */
bool safetensors_header_parse(const char *text, size_t size, uint64_t data_bytes,
    struct safetensors_header *out, struct error *err) __attribute__((warn_unused_result));
void safetensors_header_finish(struct safetensors_header *header); /* a zeroed one is fine */

struct safetensors;

/* Maps a file and checks everything except the tensors' numbers. Errors begin with the path. */
bool safetensors_open(const char *path, struct safetensors **out, struct error *err)
    __attribute__((warn_unused_result));
/* Does what safetensors_open does, for an open file. Takes over `fd`, also on failure; `path` is
 * for messages. */
bool safetensors_open_fd(int fd, const char *path, struct safetensors **out, struct error *err)
    __attribute__((warn_unused_result));
void safetensors_close(struct safetensors *file); /* NULL is fine */
/* Returns true if the file is unchanged since it was opened; everything read through views was then
 * right. Otherwise fails with ERROR_IO, beginning with the path. Call it after reading weights,
 * because another process may have truncated or overwritten the file. */
bool safetensors_intact(const struct safetensors *file, struct error *err)
    __attribute__((warn_unused_result));
/* Gives the memory of the data read so far back to the system. Views stay valid. */
void safetensors_drop_pages(struct safetensors *file);

/* Returns the path with which the file was opened. Borrowed. */
const char *safetensors_path(const struct safetensors *file);
/* Returns the header. Borrowed from the file. */
const struct safetensors_header *safetensors_get_header(const struct safetensors *file);
uint64_t safetensors_file_bytes(const struct safetensors *file);
/* Returns the index of a tensor in the header's entries, or -1. */
ptrdiff_t safetensors_find(const struct safetensors *file, const char *name);

/* Returns entry `index` as a host tensor, valid until close. A scalar gets rank 1 and shape [1].
 * Data that is not aligned for its dtype is copied once. ERROR_UNSUPPORTED for dtypes that struct
 * tensor does not have. */
bool safetensors_view(struct safetensors *file, size_t index, struct tensor *out, struct error *err)
    __attribute__((warn_unused_result));

struct safetensors_item {
    const char *name;
    struct tensor tensor; /* host memory */
};
/* Writes a file under a temporary name and renames it. `metadata` is NULL or an object of strings.
 * Checks the rules of safetensors_open, so that safetensors_open can read the result. */
bool safetensors_write(const char *path, const struct safetensors_item *items, size_t count,
    const json_t *metadata, struct error *err) __attribute__((warn_unused_result));

#endif
