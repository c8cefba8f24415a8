/* Encodes WebP with libwebp. A file with EXIF data needs the extended container, which is made
 * here: RIFF, VP8X (flags and size), the picture's own chunk, EXIF. */
#include "pictures/webp_encode.h"

#include <stdlib.h>
#include <string.h>
#include <webp/encode.h>

#define RIFF_BYTES 12 /* "RIFF", size, "WEBP" */
#define CHUNK_BYTES 8
#define VP8X_BYTES 10
#define FLAG_EXIF 0x08

static void put_32(uint8_t *out, size_t value) {
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

static void put_24(uint8_t *out, int value) {
    for (int i = 0; i < 3; i++)
        out[i] = (uint8_t)(value >> 8 * i);
}

/* Converts `plain`, a file with a simple container, to a new file with EXIF data, malloc'd. */
static uint8_t *extend(const uint8_t *plain, size_t plain_size, int width, int height,
    const uint8_t *exif, size_t exif_size, size_t *size) {
    const size_t picture = plain_size - RIFF_BYTES, padded = exif_size + exif_size % 2;
    *size = RIFF_BYTES + CHUNK_BYTES + VP8X_BYTES + picture + CHUNK_BYTES + padded;
    uint8_t *out = *size - CHUNK_BYTES <= UINT32_MAX ? calloc(*size, 1) : NULL, *at = out;
    if (!out)
        return NULL;
    memcpy(at, "RIFF", 4);
    put_32(at + 4, *size - CHUNK_BYTES);
    memcpy(at + 8, "WEBPVP8X", 8);
    put_32(at + 16, VP8X_BYTES);
    at += RIFF_BYTES + CHUNK_BYTES;
    at[0] = FLAG_EXIF;
    put_24(at + 4, width - 1);
    put_24(at + 7, height - 1);
    at += VP8X_BYTES;
    memcpy(at, plain + RIFF_BYTES, picture);
    at += picture;
    memcpy(at, "EXIF", 4);
    put_32(at + 4, exif_size);
    memcpy(at + CHUNK_BYTES, exif, exif_size);
    return out;
}

bool webp_encode(const uint8_t *rgb, int width, int height, int quality, const uint8_t *exif,
    size_t exif_size, uint8_t **out, size_t *out_size, struct error *err) {
    uint8_t *plain = NULL;
    if (width < 1 || height < 1 || width > WEBP_MAX_DIMENSION || height > WEBP_MAX_DIMENSION)
        return error_set(err, ERROR_INVALID, "a WebP picture of %dx%d px", width, height);
    size_t size = WebPEncodeRGB(rgb, width, height, width * 3, (float)quality, &plain);
    if (size > RIFF_BYTES && exif_size > 0)
        *out = extend(plain, size, width, height, exif, exif_size, &size);
    else if (size > 0 && (*out = malloc(size)))
        memcpy(*out, plain, size);
    const bool ok = size > 0 && *out;
    WebPFree(plain);
    *out_size = size;
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory to write a WebP picture");
}
