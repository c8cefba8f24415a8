/* Reads the texts in a picture's file: a PNG's text chunks; the user comment and the image
 * description in the EXIF data of a JPEG or WebP file. AUTOMATIC1111 and latentd write there how
 * the picture was drawn.
 *
 * Files are not trusted: damaged or too large data are refused, and the pixels are not read. Any
 * thread.
 */
#ifndef PICTURES_TEXTS_H
#define PICTURES_TEXTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct picture_text {
    char *keyword, *text; /* UTF-8 if the file's texts are; owned */
};

/* The texts in the order of the file. A keyword may occur twice. In EXIF data the user comment has
 * the keyword "parameters", the image description "ImageDescription". */
struct picture_text_list {
    struct picture_text *items; /* owned */
    size_t count;
};

/* Reads the texts. ERROR_INVALID if the file is not a PNG, JPEG or WebP, or is a damaged PNG. On
 * success the caller finishes *out. */
bool picture_read_texts(const void *file, size_t size, struct picture_text_list *out,
    struct error *err) __attribute__((warn_unused_result));
void picture_text_list_finish(struct picture_text_list *list); /* zeroed is fine */
/* Returns the last text with this keyword, or NULL. */
const char *picture_text_list_find(const struct picture_text_list *list, const char *keyword);

#endif
