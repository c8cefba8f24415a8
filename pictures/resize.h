/* A picture in another size, as Pillow's Image.resize computes it: diffusers' training scripts
 * resize with that. */
#ifndef PICTURES_RESIZE_H
#define PICTURES_RESIZE_H

#include "pictures/picture.h"

enum resize_filter { RESIZE_LANCZOS, RESIZE_BILINEAR, RESIZE_BICUBIC };

/* Widens the filter where the picture gets smaller, so that no pixel is left out. *out is a new
 * picture of as many channels. ERROR_NO_MEMORY. */
bool picture_resize(const struct picture *in, int width, int height, enum resize_filter filter,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));

/* To cover that size, and the middle of it, by RESIZE_LANCZOS: as diffusers' _resize_and_crop, the
 * sides as they come out whole. *out is a new picture of as many channels. ERROR_NO_MEMORY. */
bool picture_resize_to_cover(const struct picture *in, int width, int height, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
