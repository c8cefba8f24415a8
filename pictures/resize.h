/* Resizes pictures as Pillow's Image.resize does, which diffusers' training scripts use. */
#ifndef PICTURES_RESIZE_H
#define PICTURES_RESIZE_H

#include "pictures/picture.h"

enum resize_filter { RESIZE_LANCZOS, RESIZE_BILINEAR, RESIZE_BICUBIC };

/* Resizes a picture. The filter is widened when the picture becomes smaller, so that every pixel
 * counts. *out is a new picture with the same number of channels. ERROR_INVALID if it would have
 * more than PICTURE_MAX_PIXELS; ERROR_NO_MEMORY. */
bool picture_resize(const struct picture *in, int width, int height, enum resize_filter filter,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));

/* Resizes with Pillow's NEAREST: every pixel of the result is the pixel of the source under its
 * centre. *out is a new picture with the same number of channels. ERROR_NO_MEMORY. */
bool picture_resize_nearest(const struct picture *in, int width, int height, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* Resizes with RESIZE_LANCZOS so that the picture covers width x height, then crops it to the
 * middle. Works like diffusers' _resize_and_crop; sides are rounded down. What is cropped is not
 * made, so a thin picture takes no more memory than another. *out is a new picture with the same
 * number of channels. ERROR_INVALID if a side would have more than INT_MAX px before it is cropped;
 * ERROR_NO_MEMORY. */
bool picture_resize_to_cover(const struct picture *in, int width, int height, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* Resizes with RESIZE_LANCZOS so that the picture fits into width x height, puts it into the
 * middle, and fills the rest with its outermost rows or columns. Works like diffusers'
 * _resize_and_fill and AUTOMATIC1111's resize mode 2: if the rest is odd, one row or column at the
 * end stays black. *out is a new picture with the same number of channels. ERROR_NO_MEMORY. */
bool picture_resize_to_fill(const struct picture *in, int width, int height, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
