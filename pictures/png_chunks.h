/* Walks through the chunks of a PNG file; shared by all code that reads PNG. Only this folder
 * includes this header. */
#ifndef PICTURES_PNG_CHUNKS_H
#define PICTURES_PNG_CHUNKS_H

#include "base/error.h"

#include <png.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PNG_SIGNATURE_BYTES 8
#define PNG_CHUNK_BYTES 12 /* length, type and checksum of a chunk */

struct png_chunk {
    const uint8_t *start; /* first byte; all PNG_CHUNK_BYTES + size bytes are in the file */
    const uint8_t *type, *data;
    uint32_t size; /* bytes of `data` */
};

/* Reads a 32-bit number. All numbers in a PNG are big-endian. */
uint32_t png_number(const uint8_t *bytes);

/* Reads the next chunk of a file that begins with the signature. Before the first call, set *at to
 * PNG_SIGNATURE_BYTES and zero *out. Returns false after IEND, or if the file is cut short. Does
 * not check the checksums. */
bool png_next_chunk(const uint8_t *file, size_t size, size_t *at, struct png_chunk *out);

/* Whether a finished walk has reached IEND; otherwise sets ERROR_INVALID. */
bool png_walk_ended(const struct png_chunk *last, struct error *err);

/* Limits how many chunks libpng keeps, and how much memory each may take. Call before libpng reads
 * anything. */
void png_set_chunk_limits(png_structp png);

/* A PNG file for libpng to read. Borrowed. */
struct png_bytes {
    const uint8_t *data;
    size_t size, at;
};

/* Copies the next `size` bytes for libpng. If there are fewer, jumps out through png_error. */
void png_give_bytes(png_structp png, struct png_bytes *from, png_bytep out, size_t size);

#endif
