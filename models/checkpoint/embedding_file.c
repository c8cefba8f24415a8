#include "models/checkpoint/embedding_file.h"

#include "base/limits.h"
#include "kernels/dtype.h"
#include "models/checkpoint/pickle.h"
#include "models/checkpoint/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void embedding_file_finish(struct embedding_file *file) {
    free(file->values);
    free(file->token);
    *file = (struct embedding_file){ 0 };
}

/* Names that are placeholders, not words. */
static bool is_unnamed(const char *name) {
    return strcmp(name, "emb_params") == 0 || strcmp(name, "*") == 0 ||
           strcmp(name, "string_to_param.*") == 0;
}

static bool check_header(const struct safetensors *file, struct error *err) {
    const struct safetensors_header *header = safetensors_get_header(file);
    if (safetensors_find(file, "clip_g") >= 0)
        return error_set(err, ERROR_UNSUPPORTED,
            "an embedding for Stable Diffusion XL, whose two text encoders have \"clip_l\" and "
            "\"clip_g\"");
    if (header->count != 1)
        return error_set(err, ERROR_INVALID,
            "%zu tensors; an embedding is one of [vectors][width], called emb_params or like its "
            "word",
            header->count);
    const struct safetensors_entry *entry = &header->entries[0];
    const int64_t vectors = entry->rank == 2 ? entry->shape[0] : 1;
    const bool is_float = entry->dtype == SAFETENSORS_F32 || entry->dtype == SAFETENSORS_F16 ||
                          entry->dtype == SAFETENSORS_BF16;
    if (is_float && (entry->rank == 1 || entry->rank == 2) && vectors >= 1 &&
        vectors <= EMBEDDING_VECTORS_MAX && entry->shape[entry->rank - 1] >= 1)
        return true;
    return error_set(err, ERROR_INVALID,
        "%s: floats [vectors][width] of 1 to %d vectors, or [width], are needed", entry->name,
        EMBEDDING_VECTORS_MAX);
}

static bool take(struct safetensors *file, struct embedding_file *out, struct error *err) {
    struct tensor t;
    const char *name;
    if (!check_header(file, err) || !safetensors_view(file, 0, &t, err))
        return false;
    const int64_t count = tensor_elements(&t);
    name = safetensors_get_header(file)->entries[0].name;
    out->values = malloc((size_t)count * sizeof(*out->values));
    out->token = is_unnamed(name) ? NULL : strdup(name);
    if (!out->values || (!is_unnamed(name) && !out->token))
        return error_set(err, ERROR_NO_MEMORY, "no memory for an embedding");
    out->format = out->token ? "diffusers" : "a1111";
    out->width = (int)t.shape[t.rank - 1];
    out->vectors = (int)(count / out->width);
    out->bytes = safetensors_file_bytes(file);
    convert_elements(out->values, DTYPE_F32, t.data, t.dtype, count);
    for (int64_t i = 0; i < count; i++)
        if (!isfinite(out->values[i]))
            return error_set(err, ERROR_INVALID, "%s: numbers that are not finite", name);
    return safetensors_intact(file, err);
}

bool embedding_file_read(int fd, const char *path, struct embedding_file *out, struct error *err) {
    struct safetensors *file;
    unsigned char head[512];
    const ssize_t size = pread(fd, head, sizeof(head), 0);
    *out = (struct embedding_file){ 0 };
    if (size > 0 && pickle_begins(head, (size_t)size)) {
        close(fd);
        return error_set(err, ERROR_UNSUPPORTED,
            "a pickle, which can run code when it is read; convert it to .safetensors");
    }
    if (!safetensors_open_fd(fd, path, &file, err))
        return false;
    const bool ok = take(file, out, err);
    safetensors_close(file);
    if (!ok)
        embedding_file_finish(out);
    return ok;
}
