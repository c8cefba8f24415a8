#include "pictures/exif.h"

#include <stdbool.h>

#define TAG_ORIENTATION 0x0112
#define TYPE_SHORT 3
#define ENTRY_BYTES 12

struct reader {
    const uint8_t *bytes;
    size_t size;
    bool little;
};

/* 0 past the end, which no tag, type or orientation is. */
static uint32_t read_16(const struct reader *r, size_t at) {
    if (r->size < 2 || at > r->size - 2)
        return 0;
    const uint32_t a = r->bytes[at], b = r->bytes[at + 1];
    return r->little ? b << 8 | a : a << 8 | b;
}

static uint32_t read_32(const struct reader *r, size_t at) {
    const uint32_t a = read_16(r, at), b = read_16(r, at + 2);
    return r->little ? b << 16 | a : a << 16 | b;
}

int exif_orientation(const uint8_t *tiff, size_t size) {
    struct reader r = { tiff, size, size >= 2 && tiff[0] == 'I' && tiff[1] == 'I' };
    const bool big = size >= 2 && tiff[0] == 'M' && tiff[1] == 'M';
    if ((!r.little && !big) || read_16(&r, 2) != 42)
        return 1;
    const size_t folder = read_32(&r, 4), entries = read_16(&r, folder);
    for (size_t i = 0; i < entries; i++) {
        const size_t entry = folder + 2 + i * ENTRY_BYTES;
        if (read_16(&r, entry) != TAG_ORIENTATION)
            continue;
        const uint32_t value = read_16(&r, entry + 8);
        const bool right = read_16(&r, entry + 2) == TYPE_SHORT && read_32(&r, entry + 4) == 1;
        return right && value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}
