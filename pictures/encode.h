/* Pictures to files in memory: PNG (libpng), JPEG (libjpeg-turbo) and WebP (libwebp). All functions
 * may be called from any thread. */
#ifndef PICTURES_ENCODE_H
#define PICTURES_ENCODE_H

#include "pictures/picture.h"

#define PICTURE_QUALITY_MAX 100

/* "png", "jpeg", "webp". */
const char *picture_format_name(enum picture_format format);
bool picture_format_from_name(const char *name, enum picture_format *out);
/* By the end of a file's name, ".jpg" too; PICTURE_PNG for any other. */
enum picture_format picture_format_of_path(const char *path);
/* "image/png" and so on. */
const char *picture_media_type(enum picture_format format);

/* What a file says of the picture. Borrowed, UTF-8. */
struct picture_texts {
    const char
        *parameters;     /* AUTOMATIC1111's infotext: `parameters` of a PNG, else a user comment */
    const char *latentd; /* JSON in ASCII: `latentd` of a PNG, else an image description */
};

struct picture_encoding {
    enum picture_format format;
    int quality; /* 1..PICTURE_QUALITY_MAX; a PNG has none */
    struct picture_texts texts;
};

/* rgb: [height][width][3], 8 bit. *out is malloc'd, the caller frees it. A JPEG has 64 KB for its
 * texts: what is more is left out, the description first. ERROR_INVALID for a size past the
 * format's limit, ERROR_NO_MEMORY. */
bool picture_encode(const uint8_t *rgb, int width, int height,
    const struct picture_encoding *encoding, uint8_t **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

#endif
