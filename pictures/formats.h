/* The readers of picture.c, one per format. They give the pixels as stored in the file, not
 * turned. */
#ifndef PICTURES_FORMATS_H
#define PICTURES_FORMATS_H

#include "pictures/picture.h"

/* Fill *out except for `format`; `width` and `height` are the file's own. Sizes are not checked. */
bool png_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));
bool jpeg_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));

/* Fill the pixels of *out, which must have the size found by the examine function. png_decode
 * writes alpha too if *out has 4 channels. */
bool png_decode(const uint8_t *file, size_t size, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));
bool jpeg_decode(const uint8_t *file, size_t size, const struct picture_info *info,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));

#endif
