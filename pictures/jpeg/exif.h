/* Reads the orientation and a text from a picture's EXIF data, and writes texts into EXIF data. */
#ifndef PICTURES_JPEG_EXIF_H
#define PICTURES_JPEG_EXIF_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the orientation, 1 to 8, in EXIF data that begin with their TIFF header. Returns 1 if
 * there is none or the data are damaged. Many cameras write damaged data, and the picture is still
 * good. */
int exif_orientation(const uint8_t *tiff, size_t size);

/* Reads the user comment in EXIF data that begin with their TIFF header. *out is UTF-8, malloc'd;
 * NULL if there is none or the data are damaged. ERROR_NO_MEMORY. */
bool exif_user_comment(const uint8_t *tiff, size_t size, char **out, struct error *err)
    __attribute__((warn_unused_result));

/* Reads the image description (ASCII) in EXIF data that begin with their TIFF header. *out is
 * malloc'd; NULL if there is none or the data are damaged. ERROR_NO_MEMORY. */
bool exif_description(const uint8_t *tiff, size_t size, char **out, struct error *err)
    __attribute__((warn_unused_result));

/* Makes EXIF data that begin with their TIFF header. They hold an image description (ASCII) and a
 * user comment (UTF-8; written as UTF-16); either may be NULL. If the data would exceed
 * `most_bytes`, the description is left out. If the data are still too large without it, *out is
 * NULL with 0 bytes. *out is malloc'd. */
bool exif_create(const char *description, const char *comment, size_t most_bytes, uint8_t **out,
    size_t *out_size, struct error *err) __attribute__((warn_unused_result));

#endif
