/* JPEG by stb_image, which nobody keeps secure. So it gets only files that were walked through here
 * first, marker by marker; its memory has a ceiling and is all freed here, whatever it forgets; and
 * an assertion of its that fails is an error of ours. */
#include "pictures/formats.h"

#include "base/limits.h"
#include "pictures/exif.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

/* --- The markers --- */

enum {
    SOF0 = 0xc0, /* baseline; the other kinds follow, but for: */
    SOF1 = 0xc1, /* extended */
    SOF2 = 0xc2, /* progressive */
    DHT = 0xc4,
    JPG = 0xc8,
    DAC = 0xcc,
    SOF15 = 0xcf,
    RST0 = 0xd0,
    RST7 = 0xd7,
    EOI = 0xd9,
    SOS = 0xda,
    APP1 = 0xe1,
    APP14 = 0xee,
    TEM = 0x01,
};

struct walk {
    const uint8_t *file;
    size_t size, at;
    const uint8_t *data; /* of the segment, without its length */
    size_t length;
    bool has_frame, progressive, has_adobe;
    int components, adobe_transform;
};

static bool is_frame(int marker) {
    return marker >= SOF0 && marker <= SOF15 && marker != DHT && marker != JPG && marker != DAC;
}

static uint32_t read_16(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 8 | bytes[1];
}

static bool cut_short(struct error *err) {
    return error_set(err, ERROR_INVALID, "the JPEG is cut short");
}

/* The next marker and its segment, from w->at. */
static bool next_marker(struct walk *w, int *marker, struct error *err) {
    if (w->at >= w->size)
        return cut_short(err);
    if (w->file[w->at] != 0xff)
        return error_set(err, ERROR_INVALID,
            "the JPEG is damaged: byte %zu is %02x and not the beginning of a marker", w->at,
            w->file[w->at]);
    while (w->at < w->size && w->file[w->at] == 0xff) /* any number of them may fill up */
        w->at++;
    if (w->at >= w->size)
        return cut_short(err);
    *marker = w->file[w->at++];
    w->length = 0;
    if (*marker == EOI || *marker == TEM || (*marker >= RST0 && *marker <= RST7))
        return true;
    if (w->size - w->at < 2 || read_16(w->file + w->at) < 2)
        return cut_short(err);
    w->length = read_16(w->file + w->at) - 2;
    w->data = w->file + w->at + 2;
    w->at += 2;
    if (w->length > w->size - w->at)
        return cut_short(err);
    w->at += w->length;
    return true;
}

static bool read_frame(struct walk *w, int marker, struct picture_info *out, struct error *err) {
    static const char *const kinds[] = { [3] = "lossless",
        [5] = "hierarchical",
        [6] = "hierarchical",
        [7] = "lossless",
        [9] = "arithmetic-coded",
        [10] = "arithmetic-coded",
        [11] = "lossless",
        [13] = "hierarchical",
        [14] = "hierarchical",
        [15] = "lossless" };
    if (marker > SOF2)
        return error_set(err, ERROR_INVALID,
            "a JPEG of a kind (%s) that is not read; baseline and progressive ones are",
            kinds[marker - SOF0] ? kinds[marker - SOF0] : "unknown");
    if (w->has_frame)
        return error_set(err, ERROR_INVALID, "the JPEG is damaged: it has two frames");
    if (w->length < 6)
        return cut_short(err);
    if (w->data[0] != 8)
        return error_set(
            err, ERROR_INVALID, "a JPEG of %d bits a colour; those of 8 bits are read", w->data[0]);
    out->height = (int)read_16(w->data + 1);
    out->width = (int)read_16(w->data + 3);
    w->components = w->data[5];
    w->has_frame = true;
    w->progressive = marker == SOF2;
    if (out->width == 0 || out->height == 0)
        return error_set(
            err, ERROR_INVALID, "the JPEG says that it has %dx%d px", out->width, out->height);
    return true;
}

/* Colours that stb would take for others. */
static bool colours_are_right(const struct walk *w, struct error *err) {
    if (w->components == 1 || w->components == 3)
        return true;
    if (w->components != 4)
        return error_set(
            err, ERROR_INVALID, "a JPEG of %d colours; grey, RGB and CMYK are read", w->components);
    if (w->has_adobe && (w->adobe_transform == 0 || w->adobe_transform == 2))
        return true;
    return error_set(err, ERROR_INVALID,
        "a JPEG of 4 colours that does not say which (Adobe's marker, transform 0 or 2)");
}

/* Huffman tables: stb writes past its own where one has more than 256 codes. */
static bool tables_are_right(const struct walk *w, struct error *err) {
    const uint8_t *data = w->data;
    size_t left = w->length;
    while (left > 0) {
        size_t codes = 0;
        for (size_t i = 1; i <= 16 && i < left; i++)
            codes += data[i];
        if (left < 17 || codes > 256 || codes > left - 17)
            return error_set(err, ERROR_INVALID,
                "the JPEG is damaged: a Huffman table of %zu codes in %zu bytes", codes, left);
        data += 17 + codes;
        left -= 17 + codes;
    }
    return true;
}

/* Up to the first scan's header: then all that is not pixels has been seen. */
static bool walk_head(struct walk *w, struct picture_info *out, struct error *err) {
    for (w->at = 2;;) {
        int marker = 0;
        if (!next_marker(w, &marker, err))
            return false;
        if (is_frame(marker)) {
            if (!read_frame(w, marker, out, err))
                return false;
        } else if (marker == DHT) {
            if (!tables_are_right(w, err))
                return false;
        } else if (marker == APP1 && w->length > 6 && memcmp(w->data, "Exif\0\0", 6) == 0) {
            out->orientation = exif_orientation(w->data + 6, w->length - 6);
        } else if (marker == APP14 && w->length >= 12 && memcmp(w->data, "Adobe", 5) == 0) {
            w->has_adobe = true;
            w->adobe_transform = w->data[11];
        } else if (marker == EOI) {
            return error_set(err, ERROR_INVALID, "the JPEG is damaged: it has no pixels");
        } else if (marker == SOS) {
            break;
        }
    }
    if (!w->has_frame)
        return error_set(err, ERROR_INVALID, "the JPEG is damaged: its pixels have no frame");
    return colours_are_right(w, err);
}

bool jpeg_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err) {
    struct walk w = { .file = file, .size = size };
    if (!walk_head(&w, out, err))
        return false;
    /* stb: a byte a sample, two more of a coefficient's if progressive, and the picture, which is
     * then copied; blocks of up to 32x32 px are filled up. */
    const size_t samples = ((size_t)out->width + 32) * ((size_t)out->height + 32);
    out->decode_bytes = samples * ((size_t)w.components * (w.progressive ? 3 : 1) + 6) + (1 << 20);
    return true;
}

/* On from the first scan to the end: each scan costs a pass over the whole picture, and stb takes
 * what is missing for grey. */
static bool walk_scans(struct walk *w, struct error *err) {
    for (int scans = 1, marker = SOS; marker != EOI;) {
        while (w->at < w->size) { /* coded pixels: FF 00 is FF, and restarts belong to them */
            const uint8_t *found = memchr(w->file + w->at, 0xff, w->size - w->at);
            w->at = found ? (size_t)(found - w->file) : w->size;
            if (w->size - w->at < 2)
                return cut_short(err);
            const int next = w->file[w->at + 1];
            if (next != 0 && (next < RST0 || next > RST7) && next != 0xff)
                break;
            w->at += next == 0xff ? 1 : 2;
        }
        do {
            if (!next_marker(w, &marker, err))
                return false;
            if (is_frame(marker))
                return error_set(err, ERROR_INVALID, "the JPEG is damaged: it has two frames");
            if (marker == DHT && !tables_are_right(w, err))
                return false;
        } while (marker != SOS && marker != EOI);
        if (marker == SOS && ++scans > JPEG_SCANS_MAX)
            return error_set(err, ERROR_INVALID, "a JPEG of more than %d scans", JPEG_SCANS_MAX);
    }
    return true;
}

/* --- stb's surroundings --- */

struct block {
    struct block *next, **link; /* link: what points here */
    size_t bytes;
    max_align_t data[];
};

/* Of the decoding under way on this thread. */
static _Thread_local struct {
    struct block *blocks;
    size_t bytes, max_bytes;
    jmp_buf out;
} decoding;

/* Zeros: of a component without a scan, stb would show what lay there. */
static void *give(size_t bytes) {
    struct block *block = NULL;
    if (bytes <= decoding.max_bytes - decoding.bytes)
        block = calloc(1, sizeof(*block) + bytes);
    if (!block)
        return NULL;
    *block = (struct block){ decoding.blocks, &decoding.blocks, bytes };
    if (block->next)
        block->next->link = &block->next;
    decoding.blocks = block;
    decoding.bytes += bytes;
    return block->data;
}

static void take_back(void *data) {
    if (!data)
        return;
    struct block *block = (struct block *)((char *)data - offsetof(struct block, data));
    *block->link = block->next;
    if (block->next)
        block->next->link = block->link;
    decoding.bytes -= block->bytes;
    free(block);
}

static _Noreturn void assertion_failed(void) {
    longjmp(decoding.out, 1);
}

#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STBI_ONLY_JPEG
#define STBI_NO_STDIO
#define STBI_NO_LINEAR
#define STBI_NO_HDR
#define STBI_MAX_DIMENSIONS PICTURE_SIDE_MAX_PX
#define STBI_MALLOC(bytes) give(bytes)
#define STBI_REALLOC(data, bytes) NULL /* not used for JPEG */
#define STBI_FREE(data) take_back(data)
#define STBI_ASSERT(x) ((x) ? (void)0 : assertion_failed())
#pragma GCC diagnostic ignored "-Wunused-function" /* of it, to this file's end */
/* Where codes end before a marker does, it shifts a 0 by more than 31 bits. */
#ifdef __clang__
#pragma clang attribute push(__attribute__((no_sanitize("shift"))), apply_to = function)
#endif
#include <stb/stb_image.h>
#ifdef __clang__
#pragma clang attribute pop
#endif

/* --- Decoding --- */

static const char *stb_reason(void) {
    const char *reason = stbi_failure_reason();
    return reason ? reason : "no reason given";
}

/* NULL, or what is wrong. May be jumped out of, so it is no part of run_stb, whose locals would
 * have to survive that. */
static __attribute__((noinline)) const char *load(
    const uint8_t *file, size_t size, struct picture *out) {
    int width = 0, height = 0, components = 0;
    if (!stbi_info_from_memory(file, (int)size, &width, &height, &components))
        return stb_reason();
    if (width != out->width || height != out->height)
        return "its size changes";
    const stbi_uc *pixels = stbi_load_from_memory(file, (int)size, &width, &height, &components, 3);
    if (!pixels)
        return stb_reason();
    if (width != out->width || height != out->height)
        return "its size changes";
    memcpy(out->pixels, pixels, (size_t)width * (size_t)height * 3);
    return NULL;
}

static const char *run_stb(const uint8_t *file, size_t size, struct picture *out) {
    return setjmp(decoding.out) ? "stb_image's assertion" : load(file, size, out);
}

bool jpeg_decode(const uint8_t *file, size_t size, const struct picture_info *info,
    struct picture *out, struct error *err) {
    struct walk w = { .file = file, .size = size };
    struct picture_info again;
    if (size > INT32_MAX)
        return error_set(err, ERROR_TOO_LARGE, "a JPEG of more than 2 GiB");
    if (!walk_head(&w, &again, err) || !walk_scans(&w, err))
        return false;
    decoding.max_bytes = info->decode_bytes;
    const char *why = run_stb(file, w.at, out); /* what follows the end is none of stb's business */
    while (decoding.blocks)
        take_back(decoding.blocks->data);
    if (!why)
        return true;
    const bool memory = strcmp(why, "outofmem") == 0;
    return error_set(err, memory ? ERROR_NO_MEMORY : ERROR_INVALID,
        memory ? "no memory to read a JPEG (%s)" : "the JPEG is damaged: %s", why);
}
