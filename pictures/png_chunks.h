/* A PNG file's chunks, and what all readers of PNG share. For this folder only. */
#ifndef PICTURES_PNG_CHUNKS_H
#define PICTURES_PNG_CHUNKS_H

#include "base/error.h"

#include <png.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PNG_SIGNATURE_BYTES 8
#define PNG_CHUNK_BYTES 12 /* a chunk's length, type and checksum */

struct png_chunk {
    const uint8_t *start; /* its first byte; PNG_CHUNK_BYTES + size bytes, all in the file */
    const uint8_t *type, *data;
    uint32_t size; /* bytes of its data */
};

/* Reads four bytes, big-endian like all numbers in a PNG. */
uint32_t png_number(const uint8_t *bytes);

/* Gives the next chunk of a file that begins with the signature. *at must be PNG_SIGNATURE_BYTES,
 * and *out zeroed, before the first call. Returns false after IEND, and where the file is cut
 * short. Checksums are not checked. */
bool png_next_chunk(const uint8_t *file, size_t size, size_t *at, struct png_chunk *out);

/* Whether a finished walk reached IEND; otherwise ERROR_INVALID. */
bool png_walk_ended(const struct png_chunk *last, struct error *err);

/* Limits how many chunks libpng keeps and how much memory one may take. Call before anything is
 * read. */
void png_set_chunk_limits(png_structp png);

/* The bytes that libpng reads; borrowed. */
struct png_bytes {
    const uint8_t *data;
    size_t size, at;
};

/* Gives libpng the next `size` bytes; jumps out through png_error if there are fewer. */
void png_give_bytes(png_structp png, struct png_bytes *from, png_bytep out, size_t size);

#endif
