#include "command/latents_file.h"

#include "models/checkpoint/safetensors.h"

#include <stdlib.h>

bool latents_save(const char *path, const struct generate_result *result, struct error *err) {
    const struct safetensors_item item = {
        .name = "latents",
        .tensor = tensor_4d(result->latents, DTYPE_F32, result->image_count,
            result->latent_channels, result->latent_height, result->latent_width),
    };
    return safetensors_write(path, &item, 1, NULL, err);
}

static bool take(struct safetensors *file, struct init_latents *out, struct error *err) {
    ptrdiff_t index = safetensors_find(file, "latents");
    if (index < 0)
        return error_set(err, ERROR_INVALID, "there is no tensor \"latents\"");
    struct tensor t;
    if (!safetensors_view(file, (size_t)index, &t, err))
        return false;
    char text[96];
    bool is_float = t.dtype == DTYPE_F32 || t.dtype == DTYPE_F16 || t.dtype == DTYPE_BF16;
    int64_t count = tensor_elements(&t);
    if (t.rank != 4 || !is_float || count < 1)
        return error_set(err, ERROR_INVALID,
            "latents: %s; floats of [images][channels][height][width] are needed",
            tensor_describe(&t, text, sizeof(text)));
    out->values = malloc((size_t)count * sizeof(float));
    if (!out->values)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the latents");
    out->images = t.shape[0];
    out->channels = t.shape[1];
    out->height = t.shape[2];
    out->width = t.shape[3];
    convert_elements(out->values, DTYPE_F32, t.data, t.dtype, count);
    return true;
}

static bool take_embeds(
    struct safetensors *file, const char *name, struct encoded_texts *out, struct error *err) {
    const ptrdiff_t index = safetensors_find(file, name);
    struct tensor t;
    char text[96];
    if (index < 0)
        return error_set(err, ERROR_INVALID, "there is no tensor \"%s\"", name);
    if (!safetensors_view(file, (size_t)index, &t, err))
        return false;
    const bool is_float = t.dtype == DTYPE_F32 || t.dtype == DTYPE_F16 || t.dtype == DTYPE_BF16;
    const int64_t count = tensor_elements(&t);
    if ((t.rank != 2 && t.rank != 3) || !is_float || count < 1)
        return error_set(err, ERROR_INVALID, "%s: %s; floats of [texts][tokens][width] are needed",
            name, tensor_describe(&t, text, sizeof(text)));
    out->values = malloc((size_t)count * sizeof(float));
    if (!out->values)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %s", name);
    out->texts = t.rank == 3 ? t.shape[0] : 1;
    out->tokens = t.shape[t.rank - 2];
    out->width = t.shape[t.rank - 1];
    convert_elements(out->values, DTYPE_F32, t.data, t.dtype, count);
    return true;
}

bool embeds_load(const char *path, struct encoded_texts *prompt, struct encoded_texts *negative,
    struct error *err) {
    struct safetensors *file;
    if (!safetensors_open(path, &file, err))
        return false;
    bool ok = take_embeds(file, "prompt_embeds", prompt, err) &&
              (safetensors_find(file, "negative_prompt_embeds") < 0 ||
                  take_embeds(file, "negative_prompt_embeds", negative, err));
    if (!ok)
        error_prefix(err, "%s", path);
    ok = ok && safetensors_intact(file, err);
    safetensors_close(file);
    return ok;
}

bool latents_load(const char *path, struct init_latents *out, struct error *err) {
    struct safetensors *file;
    if (!safetensors_open(path, &file, err))
        return false;
    bool ok = take(file, out, err) || error_prefix(err, "%s", path);
    ok = ok && safetensors_intact(file, err);
    safetensors_close(file);
    return ok;
}
