/* Encodes a picture with text chunks as a PNG in memory, with libpng. */
#ifndef PICTURES_PNG_ENCODE_H
#define PICTURES_PNG_ENCODE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A text chunk. keyword: 1 to 79 printable Latin-1 bytes. text: UTF-8, written as tEXt if all
 * characters are in Latin-1, else as iTXt. Borrowed. */
struct png_text_chunk {
    const char *keyword, *text;
};

/* Encodes rgb, [height][width][3], 8 bit. *out is malloc'd; the caller frees it. ERROR_INVALID for
 * a side of 0 or beyond libpng's limit. ERROR_NO_MEMORY. */
bool png_encode(const uint8_t *rgb, int width, int height, const struct png_text_chunk *texts,
    int text_count, uint8_t **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

#endif
