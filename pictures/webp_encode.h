/* Encodes a picture as a lossy WebP file in memory, with libwebp. */
#ifndef PICTURES_WEBP_ENCODE_H
#define PICTURES_WEBP_ENCODE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Encodes a picture like jpeg_encode does, with EXIF data of any size. */
bool webp_encode(const uint8_t *rgb, int width, int height, int quality, const uint8_t *exif,
    size_t exif_size, uint8_t **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

#endif
