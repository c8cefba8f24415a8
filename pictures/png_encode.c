#include "pictures/png_encode.h"

#include "pictures/png_message.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXTS 4

struct sink {
    uint8_t *data;
    size_t size, capacity;
};

static void on_write(png_structp png, png_bytep data, size_t size) {
    struct sink *sink = png_get_io_ptr(png);
    if (size > SIZE_MAX / 2 - sink->size)
        png_error(png, "no memory for the file");
    if (sink->size + size > sink->capacity) {
        size_t capacity = (sink->size + size) * 2;
        uint8_t *grown = realloc(sink->data, capacity);
        if (!grown)
            png_error(png, "no memory for the file");
        sink->data = grown;
        sink->capacity = capacity;
    }
    memcpy(sink->data + sink->size, data, size);
    sink->size += size;
}

static void on_flush(png_structp png) {
    (void)png;
}

/* Converts UTF-8 to Latin-1, malloc'd. Returns NULL if a character is not in Latin-1, or if there
 * is no memory; the text is then written as iTXt. */
static char *to_latin1(const char *utf8) {
    char *latin1 = malloc(strlen(utf8) + 1), *out = latin1;
    if (!latin1)
        return NULL;
    for (const unsigned char *p = (const unsigned char *)utf8; *p; p++) {
        if (*p < 0x80) {
            *out++ = (char)*p;
        } else if ((*p == 0xc2 || *p == 0xc3) && (p[1] & 0xc0) == 0x80) {
            *out++ = (char)((*p & 0x03) << 6 | (p[1] & 0x3f));
            p++;
        } else {
            free(latin1);
            return NULL;
        }
    }
    *out = 0;
    return latin1;
}

/* Contains all calls from which libpng may jump out. No local variable is used across the jump. */
static bool write_picture(png_structp png, png_infop info, const uint8_t *rgb, int width,
    int height, png_textp texts, int text_count) {
    if (setjmp(png_jmpbuf(png)))
        return false;
    png_set_IHDR(png, info, (png_uint_32)width, (png_uint_32)height, 8, PNG_COLOR_TYPE_RGB,
        PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (text_count > 0)
        png_set_text(png, info, texts, text_count);
    png_write_info(png, info);
    for (int y = 0; y < height; y++)
        png_write_row(png, rgb + (size_t)y * (size_t)width * 3);
    png_write_end(png, NULL);
    return true;
}

bool png_encode(const uint8_t *rgb, int width, int height, const struct png_text_chunk *texts,
    int text_count, uint8_t **out, size_t *out_size, struct error *err) {
    struct sink sink = { 0 };
    png_text chunks[MAX_TEXTS] = { 0 };
    char *latin1[MAX_TEXTS] = { 0 };
    bool ok = false;
    if (text_count < 0 || text_count > MAX_TEXTS)
        return error_set(err, ERROR_INTERNAL, "png: %d text chunks", text_count);
    struct png_message message = { "" };
    png_structp png = png_create_write_struct(
        PNG_LIBPNG_VER_STRING, &message, png_on_error, png_on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    if (!info) {
        png_destroy_write_struct(&png, NULL);
        return error_set(err, ERROR_NO_MEMORY, "no memory to write a PNG");
    }
    png_set_write_fn(png, &sink, on_write, on_flush);
    for (int i = 0; i < text_count; i++) {
        latin1[i] = to_latin1(texts[i].text);
        chunks[i].compression = latin1[i] ? PNG_TEXT_COMPRESSION_NONE : PNG_ITXT_COMPRESSION_NONE;
        chunks[i].key = (char *)(uintptr_t)texts[i].keyword; /* libpng only reads it */
        chunks[i].text = latin1[i] ? latin1[i] : (char *)(uintptr_t)texts[i].text;
        chunks[i].text_length = latin1[i] ? strlen(latin1[i]) : 0;
        chunks[i].itxt_length = latin1[i] ? 0 : strlen(texts[i].text);
    }
    ok = write_picture(png, info, rgb, width, height, chunks, text_count);
    png_destroy_write_struct(&png, &info);
    for (int i = 0; i < text_count; i++)
        free(latin1[i]);
    if (!ok) {
        free(sink.data);
        return png_message_set(&message, "png", err);
    }
    *out = sink.data;
    *out_size = sink.size;
    return true;
}
