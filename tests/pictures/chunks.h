/* PNG files of one small picture in which a chunk is repeated many times, as an attacker might send
 * them. */
#ifndef TESTS_PICTURES_CHUNKS_H
#define TESTS_PICTURES_CHUNKS_H

#include <png.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

struct png_file {
    uint8_t *bytes; /* owned */
    size_t size;
};

static inline void png_file_write(png_structp png, png_bytep bytes, size_t size) {
    struct png_file *file = png_get_io_ptr(png);
    file->bytes = realloc(file->bytes, file->size + size);
    memcpy(file->bytes + file->size, bytes, size);
    file->size += size;
}

/* Makes a file 8 px wide, of noise, with a compressed text of `text_bytes`. */
static inline struct png_file png_file_create(int height, size_t text_bytes) {
    uint8_t *pixels = malloc(24 * (size_t)height), **rows = calloc((size_t)height, sizeof(*rows));
    uint32_t state = 1;
    struct png_file file = { 0 };
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_text text = { .compression = PNG_TEXT_COMPRESSION_zTXt, .key = (char[]){ "Comment" } };
    text.text = calloc(text_bytes + 1, 1);
    memset(text.text, 'a', text_bytes);
    for (int i = 0; i < 24 * height; i++)
        pixels[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
    for (int y = 0; y < height; y++)
        rows[y] = pixels + 24 * y;
    png_set_write_fn(png, &file, png_file_write, NULL);
    png_set_IHDR(png, info, 8, (png_uint_32)height, 8, PNG_COLOR_TYPE_RGB, PNG_INTERLACE_NONE,
        PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_set_text(png, info, &text, 1);
    png_set_rows(png, info, rows);
    png_write_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
    png_destroy_write_struct(&png, &info);
    free(text.text);
    free(pixels);
    free(rows);
    return file;
}

/* Returns a copy with `chunk`, checksum included, inserted `copies` times after the header. */
static inline struct png_file png_file_repeat(
    const struct png_file *from, const void *chunk, size_t chunk_bytes, size_t copies) {
    const size_t head = 8 + 25;
    struct png_file file = { malloc(from->size + chunk_bytes * copies), head };
    memcpy(file.bytes, from->bytes, head);
    for (size_t i = 0; i < copies; i++, file.size += chunk_bytes)
        memcpy(file.bytes + file.size, chunk, chunk_bytes);
    memcpy(file.bytes + file.size, from->bytes + head, from->size - head);
    file.size += from->size - head;
    return file;
}

/* Makes a file with its text repeated `copies` more times. */
static inline struct png_file png_file_with_texts(size_t text_bytes, size_t copies) {
    struct png_file one = png_file_create(8, text_bytes);
    const uint8_t *chunk = one.bytes + 8 + 25;
    while (memcmp(chunk + 4, "zTXt", 4) != 0)
        chunk += 12 + ((size_t)chunk[0] << 24 | chunk[1] << 16 | chunk[2] << 8 | chunk[3]);
    const size_t size = 12 + ((size_t)chunk[0] << 24 | chunk[1] << 16 | chunk[2] << 8 | chunk[3]);
    const struct png_file file = png_file_repeat(&one, chunk, size, copies);
    free(one.bytes);
    return file;
}

static inline void png_file_put_32(uint8_t *out, uint32_t value) {
    for (int i = 0; i < 4; i++)
        out[i] = (uint8_t)(value >> 8 * (3 - i));
}

/* Changes the height in the file's header. */
static inline void png_file_claim(struct png_file *file, uint32_t height) {
    uint8_t *head = file->bytes + 8;
    uint32_t sum = 0xffffffff;
    png_file_put_32(head + 8 + 4, height);
    for (int i = 4; i < 8 + 13; i++) {
        sum ^= head[i];
        for (int k = 0; k < 8; k++)
            sum = sum >> 1 ^ (sum & 1 ? 0xedb88320 : 0);
    }
    png_file_put_32(head + 8 + 13, ~sum);
}

/* Returns this process's peak memory. */
static inline size_t memory_peak_bytes(void) {
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (size_t)usage.ru_maxrss << 10;
}

#endif
