#include "pictures/texts.h"

#include "base/limits.h"
#include "pictures/formats.h"
#include "base/list.h"
#include "pictures/jpeg/exif.h"
#include "pictures/png_chunks.h"
#include "pictures/png_message.h"

#include <malloc.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

/* --- the list --- */

void picture_text_list_finish(struct picture_text_list *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].keyword);
        free(list->items[i].text);
    }
    free(list->items);
    *list = (struct picture_text_list){ 0 };
}

const char *picture_text_list_find(const struct picture_text_list *list, const char *keyword) {
    for (size_t i = list->count; i > 0; i--)
        if (strcmp(list->items[i - 1].keyword, keyword) == 0)
            return list->items[i - 1].text;
    return NULL;
}

/* Adds a text and takes it over. Fails if `text` is NULL, because there was no memory for it. */
static bool add(struct picture_text_list *list, const char *keyword, char *text) {
    char *copy = text && LIST_ROOM(list->items, list->count, "a text", NULL) ? strdup(keyword)
                                                                             : NULL;
    if (!copy) {
        free(text);
        return false;
    }
    list->items[list->count++] = (struct picture_text){ copy, text };
    return true;
}

/* --- PNG: the text chunks are copied into a PNG of one pixel, and libpng reads that PNG up to its
 * pixel. So errors in other chunks of the file do not matter. --- */

static const uint8_t signature[PNG_SIGNATURE_BYTES] = { 0x89, 'P', 'N', 'G', '\r', '\n', 0x1a,
    '\n' };
static const uint8_t header[] = { 0, 0, 0, 13, 'I', 'H', 'D', 'R', 0, 0, 0, 1, 0, 0, 0, 1, 8, 0, 0,
    0, 0, 0x3a, 0x7e, 0x9b, 0x55 };
static const uint8_t pixels[] = { 0, 0, 0, 10, 'I', 'D', 'A', 'T' };

struct reading {
    struct png_bytes bytes;
    size_t held; /* bytes allocated for libpng */
    bool is_over;
};

static uint8_t *append(uint8_t *end, const uint8_t *data, size_t size) {
    memcpy(end, data, size);
    return end + size;
}

static bool is_text(const uint8_t *type) {
    return memcmp(type, "tEXt", 4) == 0 || memcmp(type, "zTXt", 4) == 0 ||
           memcmp(type, "iTXt", 4) == 0;
}

/* Copies the text chunks into a PNG of one pixel, malloc'd. Returns NULL and sets `err` on
 * failure. */
static uint8_t *collect(const uint8_t *file, size_t size, size_t *out_size, struct error *err) {
    struct png_chunk chunk = { 0 };
    uint8_t *out = malloc(size + sizeof(header) + sizeof(pixels)), *end;
    if (!out) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
        return NULL;
    }
    end = append(out, file, PNG_SIGNATURE_BYTES);
    end = append(end, header, sizeof(header));
    for (size_t at = PNG_SIGNATURE_BYTES; png_next_chunk(file, size, &at, &chunk);)
        if (is_text(chunk.type))
            end = append(end, chunk.start, chunk.size + PNG_CHUNK_BYTES);
    end = append(end, pixels, sizeof(pixels));
    *out_size = (size_t)(end - out);
    if (png_walk_ended(&chunk, err))
        return out;
    free(out);
    return NULL;
}

/* Limits the memory of all texts together; libpng itself only limits each. A text that does not fit
 * is left out, and on_read then ends the reading. */
static png_voidp on_malloc(png_structp png, png_alloc_size_t size) {
    struct reading *reading = png_get_mem_ptr(png);
    reading->is_over = reading->is_over || reading->held + size > PNG_TEXTS_MAX_BYTES;
    void *block = reading->is_over ? NULL : malloc(size);
    reading->held += block ? malloc_usable_size(block) : 0;
    return block;
}

static void on_free(png_structp png, png_voidp block) {
    struct reading *reading = png_get_mem_ptr(png);
    reading->held -= malloc_usable_size(block);
    free(block);
}

static void on_read(png_structp png, png_bytep out, size_t size) {
    struct reading *reading = png_get_io_ptr(png);
    if (reading->is_over)
        png_error(png, "its texts are too long");
    png_give_bytes(png, &reading->bytes, out, size);
}

/* Contains all calls from which libpng may jump out. libpng leaves out texts that it cannot
 * read. */
static bool read_chunks(png_structp png, png_infop info) {
    if (setjmp(png_jmpbuf(png)))
        return false;
    png_set_chunk_limits(png);
    png_read_info(png, info);
    return true;
}

/* Converts Latin-1 to UTF-8, malloc'd. */
static char *from_latin1(const char *text) {
    const size_t size = strlen(text);
    char *out = malloc(2 * size + 1), *at = out;
    for (size_t i = 0; out && i < size; i++) {
        const uint8_t c = (uint8_t)text[i];
        if (c >= 0x80)
            *at++ = (char)(0xc0 | c >> 6);
        *at++ = (char)(c >= 0x80 ? 0x80 | (c & 0x3f) : c);
    }
    if (out)
        *at = 0;
    return out;
}

static bool add_chunks(png_structp png, png_infop info, struct picture_text_list *out) {
    png_textp texts = NULL;
    int count = 0;
    png_get_text(png, info, &texts, &count);
    for (int i = 0; i < count; i++) {
        const bool international = texts[i].compression > PNG_TEXT_COMPRESSION_zTXt;
        const char *text = texts[i].text ? texts[i].text : "";
        if (!add(out, texts[i].key, international ? strdup(text) : from_latin1(text)))
            return false;
    }
    return true;
}

static bool read_png(
    const uint8_t *file, size_t size, struct picture_text_list *out, struct error *err) {
    size_t chunks_size = 0;
    uint8_t *chunks = collect(file, size, &chunks_size, err);
    if (!chunks)
        return false;
    struct reading reading = { .bytes = { chunks, chunks_size, 0 } };
    struct png_message message = { "" };
    png_structp png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &message, png_on_error,
        png_on_warning, &reading, on_malloc, on_free);
    png_infop info = png ? png_create_info_struct(png) : NULL;
    bool read = false, ok = false;
    if (info) {
        png_set_read_fn(png, &reading, on_read);
        read = read_chunks(png, info);
        ok = read && add_chunks(png, info, out);
    }
    const bool damaged = info && !read, is_over = reading.is_over;
    png_destroy_read_struct(&png, &info, NULL);
    free(chunks);
    if (is_over)
        return error_set(err, ERROR_TOO_LARGE, "a PNG whose texts take more than %u MiB",
            PNG_TEXTS_MAX_BYTES >> 20);
    if (damaged)
        return png_message_set(&message, "the PNG is damaged", err);
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
}

/* --- EXIF data, in a JPEG and in a WebP file --- */

enum { MARKER_SOS = 0xda, MARKER_APP1 = 0xe1 };

/* Finds the EXIF data of a JPEG, which are before the pixels. Returns NULL if there are none. */
static const uint8_t *find_in_jpeg(const uint8_t *file, size_t size, size_t *exif_size) {
    for (size_t at = 2; at + 4 <= size && file[at] == 0xff && file[at + 1] != MARKER_SOS;) {
        const size_t length = (size_t)file[at + 2] << 8 | file[at + 3];
        if (length < 2 || length > size - at - 2)
            return NULL;
        if (file[at + 1] == MARKER_APP1 && length > 8 && memcmp(file + at + 4, "Exif\0", 6) == 0) {
            *exif_size = length - 8;
            return file + at + 10;
        }
        at += 2 + length;
    }
    return NULL;
}

static bool read_exif(
    const uint8_t *exif, size_t size, struct picture_text_list *out, struct error *err) {
    char *comment = NULL, *description = NULL;
    if (exif && !exif_user_comment(exif, size, &comment, err))
        return false;
    if (comment && !add(out, "parameters", comment))
        return error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
    if (exif && !exif_description(exif, size, &description, err))
        return false;
    return !description || add(out, "ImageDescription", description) ||
           error_set(err, ERROR_NO_MEMORY, "no memory for a picture's texts");
}

bool picture_read_texts(
    const void *file, size_t size, struct picture_text_list *out, struct error *err) {
    const uint8_t *bytes = file, *exif = NULL;
    size_t exif_size = 0;
    bool ok;
    *out = (struct picture_text_list){ 0 };
    if (size >= PNG_SIGNATURE_BYTES && memcmp(bytes, signature, PNG_SIGNATURE_BYTES) == 0) {
        ok = read_png(bytes, size, out, err);
    } else if (size >= 3 && bytes[0] == 0xff && bytes[1] == 0xd8 && bytes[2] == 0xff) {
        exif = find_in_jpeg(bytes, size, &exif_size);
        ok = read_exif(exif, exif_size, out, err);
    } else if (size >= 12 && memcmp(bytes, "RIFF", 4) == 0 && memcmp(bytes + 8, "WEBP", 4) == 0) {
        exif = webp_find_exif(bytes, size, &exif_size);
        ok = read_exif(exif, exif_size, out, err);
    } else {
        ok = error_set(err, ERROR_INVALID, "it is no PNG, JPEG or WebP file");
    }
    if (!ok)
        picture_text_list_finish(out);
    return ok;
}
