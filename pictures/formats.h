/* The decoders that picture.c uses, one per format. They return the pixels as stored in the file,
 * without applying the orientation. */
#ifndef PICTURES_FORMATS_H
#define PICTURES_FORMATS_H

#include "pictures/picture.h"

/* Fill in *out except `format`. `width` and `height` are as stored in the file. Sizes are not
 * checked. */
bool png_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));
bool jpeg_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));
bool webp_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));

/* Fill in the pixels of *out, which must have the size that the examine function found. png_decode
 * and webp_decode also write alpha if *out has 4 channels. */
bool png_decode(const uint8_t *file, size_t size, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));
bool jpeg_decode(const uint8_t *file, size_t size, const struct picture_info *info,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));
bool webp_decode(const uint8_t *file, size_t size, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the EXIF data of a WebP file, borrowed from it; NULL if there are none. */
const uint8_t *webp_find_exif(const uint8_t *file, size_t size, size_t *exif_size);

#endif
