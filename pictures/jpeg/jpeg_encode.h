/* Encodes a picture as a baseline JPEG in memory, with libjpeg-turbo. */
#ifndef PICTURES_JPEG_JPEG_ENCODE_H
#define PICTURES_JPEG_JPEG_ENCODE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JPEG_EXIF_MAX_BYTES (65533 - 6)

/* Like png_encode. quality: 1 to 100. Colours have half the resolution, as is usual. exif: from its
 * TIFF header on, at most JPEG_EXIF_MAX_BYTES; 0 bytes for none. */
bool jpeg_encode(const uint8_t *rgb, int width, int height, int quality, const uint8_t *exif,
    size_t exif_size, uint8_t **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

#endif
