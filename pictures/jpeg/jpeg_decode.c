/* Decodes JPEG with libjpeg-turbo and Pillow's settings, so that the pixels equal Pillow's. First
 * walks through the file marker by marker, which needs no memory. The walk refuses files that
 * cannot be read, and finds how much memory decoding may need. */
#include "pictures/formats.h"

#include "base/limits.h"
#include "pictures/jpeg/exif.h"
#include "pictures/jpeg/jpeg_failure.h"

#include <stdlib.h>
#include <string.h>

/* --- The markers --- */

enum {
    SOF0 = 0xc0, /* baseline; SOF0 to SOF15 are frames except DHT, JPG and DAC */
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
    TEM = 0x01,
};

struct walk {
    const uint8_t *file;
    size_t size, at;
    const uint8_t *data; /* the segment after its length */
    size_t length;
    bool has_frame, progressive;
    int components;
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

/* Reads the marker at w->at, and its segment. */
static bool next_marker(struct walk *w, int *marker, struct error *err) {
    if (w->at >= w->size)
        return cut_short(err);
    if (w->file[w->at] != 0xff)
        return error_set(err, ERROR_INVALID,
            "the JPEG is damaged: byte %zu is %02x and not the beginning of a marker", w->at,
            w->file[w->at]);
    while (w->at < w->size && w->file[w->at] == 0xff) /* any number of fill bytes is allowed */
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
    if (w->components != 1 && w->components != 3 && w->components != 4)
        return error_set(
            err, ERROR_INVALID, "a JPEG of %d colours; grey, RGB and CMYK are read", w->components);
    w->has_frame = true;
    w->progressive = marker == SOF2;
    if (out->width == 0 || out->height == 0)
        return error_set(
            err, ERROR_INVALID, "the JPEG says that it has %dx%d px", out->width, out->height);
    return true;
}

/* Walks up to the header of the first scan. By then the walk has seen everything except pixels. */
static bool walk_head(struct walk *w, struct picture_info *out, struct error *err) {
    for (w->at = 2;;) {
        int marker = 0;
        if (!next_marker(w, &marker, err))
            return false;
        if (is_frame(marker)) {
            if (!read_frame(w, marker, out, err))
                return false;
        } else if (marker == APP1 && w->length > 6 && memcmp(w->data, "Exif\0\0", 6) == 0) {
            out->orientation = exif_orientation(w->data + 6, w->length - 6);
        } else if (marker == EOI) {
            return error_set(err, ERROR_INVALID, "the JPEG is damaged: it has no pixels");
        } else if (marker == SOS) {
            break;
        }
    }
    return w->has_frame ||
           error_set(err, ERROR_INVALID, "the JPEG is damaged: its pixels have no frame");
}

bool jpeg_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err) {
    struct walk w = { .file = file, .size = size };
    if (!walk_head(&w, out, err))
        return false;
    /* Memory for: the picture and its turned copy; two bytes of coefficients per sample if the
     * picture has several scans; and two rows of blocks of up to 32x32 px in all stages of
     * decoding. */
    const size_t width = (size_t)out->width + 32, height = (size_t)out->height + 32;
    const size_t components = (size_t)w.components;
    const bool is_in_scans = w.progressive || (w.length > 0 && w.data[0] < w.components);
    out->decode_bytes = width * height * (6 + (is_in_scans ? 2 * components : 0)) +
                        width * components * 256 + (1 << 20);
    return true;
}

/* Walks from the first scan to the end. Limits the number of scans, because each one costs a
 * pass over the whole picture. Refuses a file that is cut short, which libjpeg would fill up
 * with grey. */
static bool walk_scans(struct walk *w, struct error *err) {
    for (int scans = 1, marker = SOS; marker != EOI;) {
        while (w->at < w->size) { /* coded pixels: FF 00 means FF; restart markers belong to them */
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
        } while (marker != SOS && marker != EOI);
        if (marker == SOS && ++scans > JPEG_SCANS_MAX)
            return error_set(err, ERROR_INVALID, "a JPEG of more than %d scans", JPEG_SCANS_MAX);
    }
    return true;
}

/* --- Decoding --- */

struct job {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_failure failure;
    const uint8_t *file;
    size_t size, memory_bytes; /* memory_bytes: limit for libjpeg */
    const struct picture *out; /* output */
};

/* Returns a * b / 255, rounded as in Pillow. */
static int multiply_255(int a, int b) {
    const int product = a * b + 128;
    return ((product >> 8) + product) >> 8;
}

/* Converts CMYK to RGB. ink: [width][4], inverted, as Adobe writes it and Pillow assumes for every
 * file. out: [width][3]. */
static void cmyk_to_rgb(const uint8_t *ink, int width, uint8_t *out) {
    for (int x = 0; x < width; x++, ink += 4, out += 3)
        for (int c = 0; c < 3; c++)
            out[c] = (uint8_t)(ink[3] - multiply_255(255 - ink[c], ink[3]));
}

/* Contains all calls from which libjpeg may jump out. No local variable is used across the jump. */
static bool decompress(struct job *job) {
    struct jpeg_decompress_struct *jpeg = &job->jpeg;
    const struct picture *out = job->out;
    if (setjmp(job->failure.jump))
        return false;
    jpeg_create_decompress(jpeg);
    jpeg->mem->max_memory_to_use = (long)job->memory_bytes;
    jpeg_mem_src(jpeg, job->file, job->size);
    jpeg_read_header(jpeg, TRUE);
    jpeg->out_color_space = jpeg->num_components == 4 ? JCS_CMYK : JCS_RGB;
    jpeg_start_decompress(jpeg);
    if ((int)jpeg->output_width != out->width || (int)jpeg->output_height != out->height) {
        snprintf(job->failure.message, sizeof(job->failure.message), "its size changes");
        return false;
    }
    JSAMPARRAY ink = jpeg->mem->alloc_sarray(
        (j_common_ptr)jpeg, JPOOL_IMAGE, jpeg->output_width * 4, 1);
    while (jpeg->output_scanline < jpeg->output_height) {
        JSAMPROW row = out->pixels + (size_t)jpeg->output_scanline * (size_t)out->width * 3;
        const bool is_cmyk = jpeg->out_color_space == JCS_CMYK;
        jpeg_read_scanlines(jpeg, is_cmyk ? ink : &row, 1);
        if (is_cmyk)
            cmyk_to_rgb(ink[0], out->width, row);
    }
    jpeg_finish_decompress(jpeg);
    return true;
}

bool jpeg_decode(const uint8_t *file, size_t size, const struct picture_info *info,
    struct picture *out, struct error *err) {
    struct walk w = { .file = file, .size = size };
    struct picture_info again;
    if (!walk_head(&w, &again, err) || !walk_scans(&w, err))
        return false;
    struct job *job = calloc(1, sizeof(*job));
    if (!job)
        return error_set(err, ERROR_NO_MEMORY, "no memory to read a JPEG");
    /* Hides any bytes after the end marker from libjpeg. */
    *job = (struct job){ .file = file, .size = w.at, .out = out };
    job->memory_bytes = info->decode_bytes - (size_t)out->width * (size_t)out->height * 3;
    job->jpeg.err = jpeg_failure_init(&job->failure);
    const bool ok = decompress(job) ||
                    error_set(err, job->failure.is_of_memory ? ERROR_NO_MEMORY : ERROR_INVALID,
                        job->failure.is_of_memory ? "no memory to read a JPEG (%s)"
                                                  : "the JPEG is damaged: %s",
                        job->failure.message);
    jpeg_destroy_decompress(&job->jpeg);
    free(job);
    return ok;
}
