/* Encodes pictures as files in memory: PNG (libpng), JPEG (libjpeg-turbo) and WebP (libwebp). Any
 * thread may call all functions. */
#ifndef PICTURES_ENCODE_H
#define PICTURES_ENCODE_H

#include "pictures/picture.h"

#define PICTURE_QUALITY_MAX 100

/* Returns "png", "jpeg" or "webp". */
const char *picture_format_name(enum picture_format format);
bool picture_format_from_name(const char *name, enum picture_format *out);
/* Returns the format for a file name's ending, also for ".jpg"; PICTURE_PNG for any other
 * ending. */
enum picture_format picture_format_of_path(const char *path);
/* Returns the media type: "image/png" and so on. */
const char *picture_media_type(enum picture_format format);

/* The texts to write into a picture's file. Borrowed, UTF-8, or NULL. */
struct picture_texts {
    const char *parameters; /* AUTOMATIC1111's infotext; PNG: `parameters`, else user comment */
    const char *latentd;    /* JSON in ASCII; PNG: `latentd`, else image description */
};

struct picture_encoding {
    enum picture_format format;
    int quality; /* 1..PICTURE_QUALITY_MAX; unused for PNG */
    struct picture_texts texts;
};

/* Encodes rgb, [height][width][3], 8 bit. *out is malloc'd; the caller frees it. The texts of a
 * JPEG may take 64 KB; if they do not fit, the description is left out first. ERROR_INVALID if the
 * format does not allow the size. ERROR_NO_MEMORY. */
bool picture_encode(const uint8_t *rgb, int width, int height,
    const struct picture_encoding *encoding, uint8_t **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

#endif
