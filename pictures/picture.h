/* Decodes PNG (libpng), JPEG (libjpeg-turbo) and WebP (libwebp) files to 8-bit RGB, the right way
 * up.
 *
 * Files are not trusted. A picture's size is read and checked before anything is allocated.
 * A file that is none of these, or is of a kind that cannot be decoded correctly, is refused
 * with an error that names the reason. No file can end the process. All functions may be called
 * from any thread.
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

enum picture_format { PICTURE_PNG, PICTURE_JPEG, PICTURE_WEBP };
#define PICTURE_FORMATS 3

struct picture_info {
    enum picture_format format;
    int width, height;   /* of the upright picture */
    int orientation;     /* as in EXIF, 1 to 8; 1: stored upright */
    size_t decode_bytes; /* most bytes that picture_decode allocates */
};

/* Reads the size and format of a picture file. ERROR_INVALID if the file is not a picture that can
 * be read. ERROR_TOO_LARGE if it has more than PICTURE_MAX_PIXELS pixels or a side above
 * PICTURE_SIDE_MAX_PX. */
bool picture_examine(const void *file, size_t size, struct picture_info *out, struct error *err)
    __attribute__((warn_unused_result));

/* Decodes a file like Pillow's convert("RGB") after ImageOps.exif_transpose: alpha is dropped, grey
 * is repeated. Samples of 16 bits keep their upper 8 bits, also in grey pictures, which Pillow
 * would make white. ERROR_INVALID if the file is damaged or cut short. But a JPEG's pixels have no
 * checksums: damage that libjpeg can skip is decoded as Pillow decodes it. */
bool picture_decode(const void *file, size_t size, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));

/* Decodes the transparency of a file as an RGB picture of the same size: white where the file is
 * fully transparent, black elsewhere. ERROR_INVALID also if no pixel is fully transparent, as in
 * every JPEG. */
bool picture_decode_transparency(const void *file, size_t size, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* Allocates zeroed pixels; ERROR_NO_MEMORY. The caller finishes the picture. */
bool picture_create(int width, int height, int channels, struct picture *out, struct error *err)
    __attribute__((warn_unused_result));
/* Frees the pixels; a zeroed picture is fine. */
void picture_finish(struct picture *picture);

/* Replaces *picture, which is RGB, by a grey one. Uses ITU-R 601, rounded like Pillow's
 * convert("L"). ERROR_NO_MEMORY. */
bool picture_to_grey(struct picture *picture, struct error *err)
    __attribute__((warn_unused_result));

#endif
