/* A PNG file's chunks, and what all readers of one share. Only this folder. */
#ifndef PICTURES_PNG_CHUNKS_H
#define PICTURES_PNG_CHUNKS_H

#include "base/error.h"

#include <png.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PNG_SIGNATURE_BYTES 8
#define PNG_CHUNK_BYTES 12 /* of a chunk's length, type and sum */

struct png_chunk {
    const uint8_t *start; /* of its length; PNG_CHUNK_BYTES + size bytes, all of them in the file */
    const uint8_t *type, *data;
    uint32_t size; /* of its data */
};

/* Big endian, as all numbers of a PNG. */
uint32_t png_number(const uint8_t *bytes);

/* Walks through a file that begins with the signature: *at is PNG_SIGNATURE_BYTES before the first
 * call. False when the last call gave IEND, and where the file is cut short. Sums are not checked.
 */
bool png_next_chunk(const uint8_t *file, size_t size, size_t *at, struct png_chunk *out);

/* Whether the walk, which is over, came to IEND: ERROR_INVALID otherwise. */
bool png_walk_ended(const struct png_chunk *last, struct error *err);

/* How many chunks libpng keeps, and how much memory one may take; set before anything is read. */
void png_set_chunk_limits(png_structp png);

/* Bytes that libpng reads; borrowed. */
struct png_bytes {
    const uint8_t *data;
    size_t size, at;
};

/* Gives libpng the next `size` of them; jumps out if there are fewer. */
void png_give_bytes(png_structp png, struct png_bytes *from, png_bytep out, size_t size);

#endif
