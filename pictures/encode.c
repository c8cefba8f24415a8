#include "pictures/encode.h"

#include "pictures/jpeg/exif.h"
#include "pictures/jpeg/jpeg_encode.h"
#include "pictures/png_encode.h"
#include "pictures/webp_encode.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct {
    const char *name, *media_type;
} formats[] = {
    [PICTURE_PNG] = { "png", "image/png" },
    [PICTURE_JPEG] = { "jpeg", "image/jpeg" },
    [PICTURE_WEBP] = { "webp", "image/webp" },
};

const char *picture_format_name(enum picture_format format) {
    return formats[format].name;
}

bool picture_format_from_name(const char *name, enum picture_format *out) {
    for (size_t i = 0; i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(name, formats[i].name) == 0) {
            *out = (enum picture_format)i;
            return true;
        }
    return false;
}

enum picture_format picture_format_of_path(const char *path) {
    const char *dot = strrchr(path, '.');
    enum picture_format format = PICTURE_PNG;
    if (dot && strcasecmp(dot, ".jpg") == 0)
        return PICTURE_JPEG;
    for (size_t i = 0; dot && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcasecmp(dot + 1, formats[i].name) == 0)
            format = (enum picture_format)i;
    return format;
}

const char *picture_media_type(enum picture_format format) {
    return formats[format].media_type;
}

static bool encode_png(const uint8_t *rgb, int width, int height, const struct picture_texts *texts,
    uint8_t **out, size_t *out_size, struct error *err) {
    struct png_text_chunk chunks[2];
    int count = 0;
    if (texts->parameters)
        chunks[count++] = (struct png_text_chunk){ "parameters", texts->parameters };
    if (texts->latentd)
        chunks[count++] = (struct png_text_chunk){ "latentd", texts->latentd };
    return png_encode(rgb, width, height, chunks, count, out, out_size, err);
}

bool picture_encode(const uint8_t *rgb, int width, int height,
    const struct picture_encoding *encoding, uint8_t **out, size_t *out_size, struct error *err) {
    const struct picture_texts *texts = &encoding->texts;
    uint8_t *exif = NULL;
    size_t exif_size = 0;
    if (encoding->format == PICTURE_PNG)
        return encode_png(rgb, width, height, texts, out, out_size, err);
    if (!exif_create(texts->latentd, texts->parameters,
            encoding->format == PICTURE_JPEG ? JPEG_EXIF_MAX_BYTES : SIZE_MAX, &exif, &exif_size,
            err))
        return false;
    const bool ok = encoding->format == PICTURE_JPEG
                        ? jpeg_encode(rgb, width, height, encoding->quality, exif, exif_size, out,
                              out_size, err)
                        : webp_encode(rgb, width, height, encoding->quality, exif, exif_size, out,
                              out_size, err);
    free(exif);
    return ok;
}
