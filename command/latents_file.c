#include "command/latents_file.h"

#include "base/limits.h"
#include "models/checkpoint/safetensors.h"

#include <stdlib.h>

#define LATENT_CHANNELS 4
#define LATENT_PX 8 /* pixels that one latent covers, in each direction */

bool latents_save(const char *path, const struct generate_result *result, struct error *err) {
    const struct safetensors_item item = {
        .name = "latents",
        .tensor = tensor_4d(result->latents, DTYPE_F32, result->image_count,
            result->latent_channels, result->latent_height, result->latent_width),
    };
    return safetensors_write(path, &item, 1, NULL, err);
}

/* Sets an open size and checks a given one. */
static bool agree(int *size, int64_t latent_size, const char *what, struct error *err) {
    if (latent_size < 1 || latent_size > IMAGE_MAX_PX / LATENT_PX)
        return error_set(err, ERROR_INVALID, "latents: a %s of %lld is outside of 1 to %d", what,
            (long long)latent_size, IMAGE_MAX_PX / LATENT_PX);
    int px = (int)latent_size * LATENT_PX;
    if (*size != 0 && *size != px)
        return error_set(err, ERROR_INVALID,
            "latents: their %s of %lld is for %d pixels, but %d are asked for", what,
            (long long)latent_size, px, *size);
    *size = px;
    return true;
}

static bool take(struct safetensors *file, struct generate_request *request, struct error *err) {
    ptrdiff_t index = safetensors_find(file, "latents");
    if (index < 0)
        return error_set(err, ERROR_INVALID, "there is no tensor \"latents\"");
    struct tensor t;
    if (!safetensors_view(file, (size_t)index, &t, err))
        return false;
    char text[96];
    int64_t images = (int64_t)request->prompt_count * request->num_images;
    bool is_float = t.dtype == DTYPE_F32 || t.dtype == DTYPE_F16 || t.dtype == DTYPE_BF16;
    if (t.rank != 4 || !is_float || t.shape[0] != images || t.shape[1] != LATENT_CHANNELS)
        return error_set(err, ERROR_INVALID,
            "latents: %s; floats of [%lld][%d][height/%d][width/%d] are needed",
            tensor_describe(&t, text, sizeof(text)), (long long)images, LATENT_CHANNELS, LATENT_PX,
            LATENT_PX);
    if (!agree(&request->height, t.shape[2], "height", err) ||
        !agree(&request->width, t.shape[3], "width", err))
        return false;
    int64_t count = tensor_elements(&t);
    request->init_latents = malloc((size_t)count * sizeof(float));
    if (!request->init_latents)
        return error_set(err, ERROR_NO_MEMORY, "not enough memory for the latents");
    convert_elements(request->init_latents, DTYPE_F32, t.data, t.dtype, count);
    return true;
}

bool latents_load(const char *path, struct generate_request *request, struct error *err) {
    struct safetensors *file;
    if (!safetensors_open(path, &file, err))
        return false;
    bool ok = take(file, request, err) || error_prefix(err, "%s", path);
    ok = ok && safetensors_intact(file, err);
    safetensors_close(file);
    return ok;
}
