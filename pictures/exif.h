/* What a picture's EXIF data are read for: which way is up, and a text; and what is written there:
 * texts. */
#ifndef PICTURES_EXIF_H
#define PICTURES_EXIF_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The orientation, 1 to 8, in EXIF data as they begin at their TIFF header. 1 where there is none,
 * or the data are damaged: cameras write much of that, and the picture is none the worse. */
int exif_orientation(const uint8_t *tiff, size_t size);

/* The user comment in such data as UTF-8, malloc'd; NULL where there is none, or the data are
 * damaged. ERROR_NO_MEMORY. */
bool exif_user_comment(const uint8_t *tiff, size_t size, char **out, struct error *err)
    __attribute__((warn_unused_result));

/* EXIF data from their TIFF header on, with an image description (ASCII) and a user comment (UTF-8;
 * written as UTF-16), where they are not NULL. Where it takes more than `most_bytes` the
 * description is left out, and then all. *out is malloc'd, NULL with 0 bytes if nothing is left. */
bool exif_create(const char *description, const char *comment, size_t most_bytes, uint8_t **out,
    size_t *out_size, struct error *err) __attribute__((warn_unused_result));

#endif
