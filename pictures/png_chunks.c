#include "pictures/png_chunks.h"

#include "base/limits.h"

#include <string.h>

uint32_t png_number(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

static bool is_end(const struct png_chunk *chunk) {
    return chunk->type && memcmp(chunk->type, "IEND", 4) == 0;
}

bool png_next_chunk(const uint8_t *file, size_t size, size_t *at, struct png_chunk *out) {
    if (is_end(out) || size - *at < PNG_CHUNK_BYTES)
        return false;
    const uint8_t *start = file + *at;
    const uint32_t length = png_number(start);
    if (length > size - *at - PNG_CHUNK_BYTES)
        return false;
    *out = (struct png_chunk){ start, start + 4, start + 8, length };
    *at += PNG_CHUNK_BYTES + length;
    return true;
}

bool png_walk_ended(const struct png_chunk *last, struct error *err) {
    return is_end(last) ||
           error_set(err, ERROR_INVALID, "the PNG is cut short: it has no IEND chunk");
}

void png_set_chunk_limits(png_structp png) {
    png_set_chunk_cache_max(png, PNG_CHUNKS_MAX);
    png_set_chunk_malloc_max(png, PNG_MEMORY_MAX_BYTES / 2);
}

void png_give_bytes(png_structp png, struct png_bytes *from, png_bytep out, size_t size) {
    if (size > from->size - from->at)
        png_error(png, "the file is cut short");
    memcpy(out, from->data + from->at, size);
    from->at += size;
}
