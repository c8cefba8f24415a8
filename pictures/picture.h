/* Pictures from files: PNG (libpng) and JPEG (libjpeg-turbo) to 8-bit RGB, the right way up.
 *
 * The files are anybody's. A picture's size is known and checked before anything is allocated, what
 * else is no PNG or JPEG, or is one that we cannot read right, is refused by name, and nothing in a
 * file ends the process. All functions may be called from any thread.
 */
#ifndef PICTURES_PICTURE_H
#define PICTURES_PICTURE_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct picture {
    int width, height, channels; /* 3: red, green, blue; 1: grey */
    uint8_t *pixels;             /* [height][width][channels]; owned */
};

enum picture_format { PICTURE_PNG, PICTURE_JPEG, PICTURE_WEBP /* only written */ };
#define PICTURE_FORMATS 3

struct picture_info {
    enum picture_format format;
    int width, height;   /* the right way up */
    int orientation;     /* EXIF's, 1 to 8; 1: the pixels lie as they are shown */
    size_t decode_bytes; /* the most that picture_decode allocates */
};

/* What a file's head says of it. ERROR_INVALID for what is no picture, and for one with more pixels
 * than PICTURE_MAX_PIXELS or a side above PICTURE_SIDE_MAX_PX. */
bool picture_examine(const void *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));

/* All of it, as Pillow's convert("RGB") after ImageOps.exif_transpose: alpha is dropped, grey is
 * repeated, of 16 bits the upper 8 stay (of grey too, which Pillow would make white). ERROR_INVALID
 * where the file is damaged or cut short; but a JPEG's pixels have no sums, and damage to them that
 * libjpeg can read over is taken as Pillow takes it. */
bool picture_decode(const void *file, size_t size, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));

/* Its transparency as a picture of its size: white where it is fully transparent, black elsewhere.
 * ERROR_INVALID also where nothing is, as in a JPEG. */
bool picture_decode_transparency(const void *file, size_t size, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* Of `bytes` zeroed pixels; ERROR_NO_MEMORY. */
bool picture_create(int width, int height, int channels, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));
/* Frees the pixels; a zeroed picture is fine. */
void picture_finish(struct picture *picture);

/* RGB to grey in place of *picture, by ITU-R 601 as Pillow's convert("L") rounds it. */
bool picture_to_grey(struct picture *picture, struct error *err)
    __attribute__((warn_unused_result));

#endif
