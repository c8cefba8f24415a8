/* The texts that a picture's file carries: a PNG's text chunks, and the user comment in the EXIF
 * data of a JPEG or WebP file, where AUTOMATIC1111 and we say how the picture was drawn.
 *
 * The files are anybody's: what is damaged or too large is refused, and the pixels are not read.
 * Any thread. */
#ifndef PICTURES_TEXTS_H
#define PICTURES_TEXTS_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct picture_text {
    char *keyword, *text; /* UTF-8 as far as the file's are; owned */
};

/* In the file's order; a keyword may come twice. Of EXIF data "parameters", the user comment. */
struct picture_text_list {
    struct picture_text *items; /* owned */
    size_t count;
};

/* ERROR_INVALID for what is no PNG, JPEG or WebP file, and for a PNG that is damaged. The caller
 * finishes *out on success. */
bool picture_read_texts(const void *file, size_t size, struct picture_text_list *out,
    struct error *err) __attribute__((warn_unused_result));
void picture_text_list_finish(struct picture_text_list *list); /* zeroed is fine */
/* The last of that keyword, or NULL. */
const char *picture_text_list_find(const struct picture_text_list *list, const char *keyword);

#endif
