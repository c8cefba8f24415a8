#include "server/sdapi/upscale.h"

#include "base/limits.h"
#include "pictures/resize.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const sdapi_upscaler_names[] = { "None", "Lanczos", "Nearest" };

static double factor_of(const struct sdapi_upscale *u, const struct picture *in) {
    return u->to_size ? fmax((double)u->width / in->width, (double)u->height / in->height)
                      : u->factor;
}

static bool is_cropped(const struct sdapi_upscale *u) {
    return u->to_size && u->crop;
}

/* The size that every upscaler makes before the picture is cropped. */
static double covering_side(const struct sdapi_upscale *u, const struct picture *in, int side) {
    return floor(side * factor_of(u, in) / 8) * 8;
}

bool sdapi_upscale_size(const struct sdapi_upscale *u, const struct picture *in, int *width,
    int *height, struct error *err) {
    *width = in->width;
    *height = in->height;
    if (u->upscaler == SDAPI_UPSCALER_NONE)
        return true;
    const double wide = covering_side(u, in, in->width), high = covering_side(u, in, in->height);
    const bool fits = wide >= 8 && high >= 8 && wide <= INIT_IMAGE_MAX_PX &&
                      high <= INIT_IMAGE_MAX_PX && u->width <= INIT_IMAGE_MAX_PX &&
                      u->height <= INIT_IMAGE_MAX_PX;
    if (!fits) {
        char value[64];
        snprintf(value, sizeof(value), "%gx%g px of %dx%d", wide, high, in->width, in->height);
        return error_field(err, u->to_size ? "upscaling_resize_w" : "upscaling_resize", value,
            "a size that gives sides of 8 to %d px", INIT_IMAGE_MAX_PX);
    }
    *width = is_cropped(u) ? u->width : (int)wide;
    *height = is_cropped(u) ? u->height : (int)high;
    return true;
}

int64_t sdapi_upscale_pixels(const struct sdapi_upscale *u, const struct picture *in) {
    if (u->upscaler == SDAPI_UPSCALER_NONE)
        return (int64_t)in->width * in->height;
    const int64_t covering = (int64_t)(covering_side(u, in, in->width) *
                                       covering_side(u, in, in->height));
    const int64_t cropped = is_cropped(u) ? (int64_t)u->width * u->height : 0;
    return covering > cropped ? covering : cropped;
}

/* Puts the middle of the picture onto a black one of width x height. In place. */
static bool crop(struct picture *picture, int width, int height, struct error *err) {
    const int left = width / 2 - picture->width / 2, top = height / 2 - picture->height / 2;
    const int begin = left > 0 ? left : 0;
    const int end = left + picture->width < width ? left + picture->width : width;
    struct picture out;
    if (!picture_create(width, height, 3, &out, err))
        return false;
    for (int y = 0; y < height; y++) {
        const int from = y - top;
        if (from >= 0 && from < picture->height)
            memcpy(out.pixels + 3 * ((size_t)y * (size_t)width + (size_t)begin),
                picture->pixels +
                    3 * ((size_t)from * (size_t)picture->width + (size_t)(begin - left)),
                3 * (size_t)(end - begin));
    }
    picture_finish(picture);
    *picture = out;
    return true;
}

static bool upscale_once(const struct sdapi_upscale *u, enum sdapi_upscaler upscaler,
    const struct picture *in, struct picture *out, struct error *err) {
    const double factor = factor_of(u, in);
    const int width = (int)(in->width * factor), height = (int)(in->height * factor);
    const int wide = (int)covering_side(u, in, in->width);
    const int high = (int)covering_side(u, in, in->height);
    const bool ok = upscaler == SDAPI_UPSCALER_NEAREST
                        ? picture_resize_nearest(in, width, height, out, err)
                        : picture_resize(in, width, height, RESIZE_LANCZOS, out, err);
    if (!ok)
        return false;
    if (width != wide || height != high) {
        struct picture rounded;
        const bool resized = picture_resize(out, wide, high, RESIZE_LANCZOS, &rounded, err);
        picture_finish(out);
        if (!resized)
            return false;
        *out = rounded;
    }
    if (!is_cropped(u) || crop(out, u->width, u->height, err))
        return true;
    picture_finish(out);
    return false;
}

/* Draws `over` onto the picture, as Pillow's Image.blend does. */
static void blend(struct picture *picture, const struct picture *over, double visibility) {
    const size_t count = 3 * (size_t)picture->width * (size_t)picture->height;
    const float share = (float)visibility;
    for (size_t i = 0; i < count; i++) {
        const int below = picture->pixels[i], above = over->pixels[i];
        picture->pixels[i] = (uint8_t)((float)below + share * (float)(above - below));
    }
}

bool sdapi_upscale_picture(const struct sdapi_upscale *u, const struct picture *in,
    struct picture *out, struct error *err) {
    int width, height;
    struct picture second;
    if (!sdapi_upscale_size(u, in, &width, &height, err))
        return false;
    if (u->upscaler == SDAPI_UPSCALER_NONE) {
        if (!picture_create(in->width, in->height, 3, out, err))
            return false;
        memcpy(out->pixels, in->pixels, 3 * (size_t)in->width * (size_t)in->height);
        return true;
    }
    if (!upscale_once(u, u->upscaler, in, out, err))
        return false;
    if (u->second == SDAPI_UPSCALER_NONE || u->visibility <= 0)
        return true;
    if (!upscale_once(u, u->second, in, &second, err)) {
        picture_finish(out);
        return false;
    }
    blend(out, &second, u->visibility);
    picture_finish(&second);
    return true;
}

/* Writes a number as Python does: 2.0, 1.5. */
static void write_number(FILE *out, double value) {
    json_t *number = json_real(value);
    char *text = number ? json_dumps(number, JSON_ENCODE_ANY) : NULL;
    fputs(text ? text : "", out);
    free(text);
    json_decref(number);
}

char *sdapi_upscale_text(const struct sdapi_upscale *u) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out)
        return NULL;
    if (u->upscaler != SDAPI_UPSCALER_NONE) {
        if (u->to_size) {
            fprintf(out, "Postprocess upscale to: %dx%d", u->width, u->height);
        } else {
            fputs("Postprocess upscale by: ", out);
            write_number(out, u->factor);
        }
        if (is_cropped(u))
            fprintf(out, ", Postprocess crop to: %dx%d", u->width, u->height);
        fprintf(out, ", Postprocess upscaler: %s", sdapi_upscaler_names[u->upscaler]);
        if (u->second != SDAPI_UPSCALER_NONE && u->visibility > 0)
            fprintf(out, ", Postprocess upscaler 2: %s", sdapi_upscaler_names[u->second]);
    }
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}
