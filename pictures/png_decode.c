/* Decodes PNG with libpng, which may jump out of any of its calls (see read_pixels). */
#include "pictures/formats.h"

#include "base/limits.h"
#include "pictures/jpeg/exif.h"
#include "pictures/png_chunks.h"
#include "pictures/png_message.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define IHDR_BYTES 13
#define LAST_ROW_MORE_BYTES 65536

/* Reads IHDR and eXIf; eXIf may come after the pixels. Leaves the checksums to libpng. */
bool png_examine(const uint8_t *file, size_t size, struct picture_info *out, struct error *err) {
    size_t at = PNG_SIGNATURE_BYTES;
    struct png_chunk chunk = { 0 };
    bool is_first = true;
    while (png_next_chunk(file, size, &at, &chunk)) {
        if (is_first != (memcmp(chunk.type, "IHDR", 4) == 0) ||
            (is_first && chunk.size != IHDR_BYTES))
            return error_set(err, ERROR_INVALID, "the PNG does not begin with one IHDR chunk");
        if (is_first) {
            const uint32_t width = png_number(chunk.data), height = png_number(chunk.data + 4);
            if (width == 0 || height == 0 || width > INT32_MAX || height > INT32_MAX)
                return error_set(
                    err, ERROR_INVALID, "the PNG says that it has %ux%u px", width, height);
            out->width = (int)width;
            out->height = (int)height;
        } else if (memcmp(chunk.type, "eXIf", 4) == 0) {
            out->orientation = exif_orientation(chunk.data, chunk.size);
        }
        is_first = false;
    }
    if (!png_walk_ended(&chunk, err))
        return false;
    /* Memory for the picture and its turned copy, and two rows of 64 bits per pixel. An interlaced
     * picture needs no more: its passes write to the picture's pixels. */
    out->decode_bytes = (size_t)out->width * (size_t)out->height * 6 + (size_t)out->width * 32 +
                        PNG_MEMORY_MAX_BYTES;
    return true;
}

struct source {
    struct png_bytes file;
    size_t most; /* limit for the bytes that libpng may still read */
};

static void on_read(png_structp png, png_bytep out, size_t size) {
    struct source *source = png_get_io_ptr(png);
    if (size > source->most)
        png_error(png, "its pixels go on behind its last row");
    source->most -= size;
    png_give_bytes(png, &source->file, out, size);
}

/* While reading the last row, libpng unpacks everything that follows it, which may be a thousand
 * times the size of the file. So for that row it gets as many bytes as a row can need, and little
 * more. */
static void read_rows(png_structp png, const struct picture *out, int passes, size_t row) {
    struct source *source = png_get_io_ptr(png);
    for (int pass = 0; pass < passes; pass++)
        for (int y = 0; y < out->height; y++) {
            if (pass == passes - 1 && y == out->height - 1)
                source->most = (size_t)out->width * 16 + LAST_ROW_MORE_BYTES;
            png_read_row(png, out->pixels + (size_t)y * row, NULL);
        }
    source->most = SIZE_MAX;
}

/* Contains all calls from which libpng may jump out. No local variable is used across the jump. */
static bool read_pixels(png_structp png, png_infop info, struct picture *out) {
    if (setjmp(png_jmpbuf(png)))
        return false;
    png_set_user_limits(png, PICTURE_SIDE_MAX_PX, PICTURE_SIDE_MAX_PX);
    png_set_chunk_limits(png);
    /* Does not unpack texts, profiles and similar chunks, which may be compressed a
     * thousandfold. */
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(png, info);
    if ((int)png_get_image_width(png, info) != out->width ||
        (int)png_get_image_height(png, info) != out->height)
        png_error(png, "its size changes");
    png_set_expand(png);
    png_set_strip_16(png);
    if (out->channels == 4)
        png_set_add_alpha(png, 255, PNG_FILLER_AFTER); /* opaque, if the file has no alpha */
    else
        png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    const int passes = png_set_interlace_handling(png);
    png_read_update_info(png, info);
    const size_t row = (size_t)out->width * (size_t)out->channels;
    if (png_get_rowbytes(png, info) != row)
        png_error(png, "it does not become 8-bit RGB");
    read_rows(png, out, passes, row);
    png_read_end(png, NULL);
    return true;
}

bool png_decode(const uint8_t *file, size_t size, struct picture *out, struct error *err) {
    struct source source = { .file = { file, size, 0 }, .most = SIZE_MAX };
    struct png_message message = { "" };
    png_structp png = png_create_read_struct(
        PNG_LIBPNG_VER_STRING, &message, png_on_error, png_on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_read_struct(&png, NULL, NULL);
        return error_set(err, ERROR_NO_MEMORY, "no memory to read a PNG");
    }
    png_set_read_fn(png, &source, on_read);
    const bool ok = read_pixels(png, info, out);
    png_destroy_read_struct(&png, &info, NULL);
    return ok || png_message_set(&message, "the PNG is damaged", err);
}
