/* Encodes a picture as a baseline JPEG in memory, with libjpeg-turbo. */
#ifndef PICTURES_JPEG_JPEG_ENCODE_H
#define PICTURES_JPEG_JPEG_ENCODE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JPEG_EXIF_MAX_BYTES (65533 - 6)

/* Encodes a picture like png_encode does. quality: 1 to 100. Colours are stored at half resolution,
 * as is usual. exif: EXIF data from their TIFF header on, at most JPEG_EXIF_MAX_BYTES; 0 bytes:
 * none. */
bool jpeg_encode(const uint8_t *rgb, int width, int height, int quality, const uint8_t *exif,
    size_t exif_size, uint8_t **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

#endif
