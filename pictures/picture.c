#include "pictures/picture.h"

#include "base/limits.h"
#include "pictures/formats.h"

#include <stdlib.h>
#include <string.h>

bool picture_create(int width, int height, int channels, struct picture *out, struct error *err) {
    size_t bytes;
    *out = (struct picture){ width, height, channels, NULL };
    if (width <= 0 || height <= 0 || channels <= 0 ||
        __builtin_mul_overflow((size_t)width * (size_t)channels, (size_t)height, &bytes))
        return error_set(err, ERROR_INTERNAL, "a picture of %dx%dx%d", width, height, channels);
    out->pixels = calloc(bytes, 1);
    return out->pixels ||
           error_set(err, ERROR_NO_MEMORY, "no memory for a picture of %dx%d px", width, height);
}

void picture_finish(struct picture *picture) {
    free(picture->pixels);
    *picture = (struct picture){ 0 };
}

/* Describes a file by its first bytes, for a message. */
static const char *name_of(const uint8_t *file, size_t size) {
    static const struct {
        const char *magic, *name;
        size_t offset, length;
    } known[] = {
        { "GIF8", "a GIF", 0, 4 },
        { "BM", "a BMP picture", 0, 2 },
        { "II*\0", "a TIFF picture", 0, 4 },
        { "MM\0*", "a TIFF picture", 0, 4 },
        { "ftypavif", "an AVIF picture", 4, 8 },
        { "ftyphei", "a HEIC picture", 4, 7 },
        { "\xff\x0a", "a JPEG XL picture", 0, 2 },
        { "\0\0\0\x0cJXL ", "a JPEG XL picture", 0, 8 },
        { "8BPS", "a Photoshop file", 0, 4 },
        { "<svg", "an SVG drawing", 0, 4 },
    };
    if (size == 0)
        return "an empty file";
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (size >= known[i].offset + known[i].length &&
            memcmp(file + known[i].offset, known[i].magic, known[i].length) == 0)
            return known[i].name;
    return "something else";
}

static bool examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err) {
    static const uint8_t png[] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n' };
    *out = (struct picture_info){ .orientation = 1 };
    if (size >= sizeof(png) && memcmp(file, png, sizeof(png)) == 0) {
        out->format = PICTURE_PNG;
        if (!png_examine(file, size, out, err))
            return false;
    } else if (size >= 3 && file[0] == 0xff && file[1] == 0xd8 && file[2] == 0xff) {
        out->format = PICTURE_JPEG;
        if (!jpeg_examine(file, size, out, err))
            return false;
    } else if (size >= 12 && memcmp(file, "RIFF", 4) == 0 && memcmp(file + 8, "WEBP", 4) == 0) {
        out->format = PICTURE_WEBP;
        if (!webp_examine(file, size, out, err))
            return false;
    } else {
        return error_set(err, ERROR_INVALID, "this is %s; pictures are PNG, JPEG or WebP files",
            name_of(file, size));
    }
    if (out->width > PICTURE_SIDE_MAX_PX || out->height > PICTURE_SIDE_MAX_PX ||
        (int64_t)out->width * out->height > PICTURE_MAX_PIXELS)
        return error_set(err, ERROR_TOO_LARGE,
            "%dx%d px; at most %d px a side and %d million pixels", out->width, out->height,
            PICTURE_SIDE_MAX_PX, PICTURE_MAX_PIXELS / 1000000);
    return true;
}

static bool turns_sideways(int orientation) {
    return orientation >= 5;
}

bool picture_examine(const void *file, size_t size, struct picture_info *out, struct error *err) {
    if (!examine(file, size, out, err))
        return false;
    if (turns_sideways(out->orientation)) {
        const int width = out->width;
        out->width = out->height;
        out->height = width;
    }
    return true;
}

/* Turns the picture upright by mirroring it, exchanging rows and columns, or both. (sx, sy) is the
 * pixel in the file that is shown at (x, y). */
static bool set_upright(struct picture *picture, int orientation, struct error *err) {
    const bool sideways = turns_sideways(orientation);
    const bool mirror_x = orientation == 2 || orientation == 3 || orientation == 7 ||
                          orientation == 8;
    const bool mirror_y = orientation == 3 || orientation == 4 || orientation == 6 ||
                          orientation == 7;
    const int width = picture->width, height = picture->height;
    struct picture up;
    if (orientation == 1)
        return true;
    if (!picture_create(sideways ? height : width, sideways ? width : height, 3, &up, err))
        return false;
    for (int y = 0; y < up.height; y++)
        for (int x = 0; x < up.width; x++) {
            int sx = sideways ? y : x, sy = sideways ? x : y;
            sx = mirror_x ? width - 1 - sx : sx;
            sy = mirror_y ? height - 1 - sy : sy;
            memcpy(up.pixels + ((size_t)y * (size_t)up.width + (size_t)x) * 3,
                picture->pixels + ((size_t)sy * (size_t)width + (size_t)sx) * 3, 3);
        }
    picture_finish(picture);
    *picture = up;
    return true;
}

/* Decodes the pixels as they are stored. */
static bool decode(const void *file, size_t size, const struct picture_info *info,
    struct picture *out, struct error *err) {
    return info->format == PICTURE_PNG    ? png_decode(file, size, out, err)
           : info->format == PICTURE_JPEG ? jpeg_decode(file, size, info, out, err)
                                          : webp_decode(file, size, out, err);
}

bool picture_decode(const void *file, size_t size, struct picture *out, struct error *err) {
    struct picture_info info;
    *out = (struct picture){ 0 };
    if (!examine(file, size, &info, err))
        return false;
    if (picture_create(info.width, info.height, 3, out, err) &&
        decode(file, size, &info, out, err) && set_upright(out, info.orientation, err))
        return true;
    picture_finish(out);
    return false;
}

/* Draws the fully transparent pixels of `from` in white, the others in black. Returns false if
 * there are no transparent ones. */
static bool show_holes(const struct picture *from, struct picture *out) {
    const size_t count = (size_t)from->width * (size_t)from->height;
    size_t holes = 0;
    for (size_t i = 0; i < count; i++) {
        const bool hole = from->pixels[4 * i + 3] == 0;
        memset(out->pixels + 3 * i, hole ? 255 : 0, 3);
        holes += hole;
    }
    return holes > 0;
}

bool picture_decode_transparency(
    const void *file, size_t size, struct picture *out, struct error *err) {
    struct picture_info info;
    struct picture rgba = { 0 };
    *out = (struct picture){ 0 };
    if (!examine(file, size, &info, err))
        return false;
    if (info.format == PICTURE_JPEG)
        return error_set(err, ERROR_INVALID, "only a PNG or a WebP has transparent pixels");
    const bool ok = picture_create(info.width, info.height, 4, &rgba, err) &&
                    picture_create(info.width, info.height, 3, out, err) &&
                    decode(file, size, &info, &rgba, err) &&
                    (show_holes(&rgba, out) ||
                        error_set(err, ERROR_INVALID, "no pixel of it is fully transparent")) &&
                    set_upright(out, info.orientation, err);
    picture_finish(&rgba);
    if (!ok)
        picture_finish(out);
    return ok;
}

bool picture_to_grey(struct picture *picture, struct error *err) {
    struct picture grey;
    if (!picture_create(picture->width, picture->height, 1, &grey, err))
        return false;
    const size_t count = (size_t)grey.width * (size_t)grey.height;
    for (size_t i = 0; i < count; i++) {
        const uint8_t *p = picture->pixels + 3 * i;
        grey.pixels[i] = (uint8_t)((p[0] * 19595 + p[1] * 38470 + p[2] * 7471 + 0x8000) >> 16);
    }
    picture_finish(picture);
    *picture = grey;
    return true;
}
