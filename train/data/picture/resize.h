/* A picture in another size, as Pillow's Image.resize computes it: diffusers' training scripts
 * resize with that. */
#ifndef TRAIN_DATA_PICTURE_RESIZE_H
#define TRAIN_DATA_PICTURE_RESIZE_H

#include "train/data/picture/picture.h"

enum resize_filter { RESIZE_LANCZOS, RESIZE_BILINEAR, RESIZE_BICUBIC };

/* Widens the filter where the picture gets smaller, so that no pixel is left out. *out is a new
 * picture of as many channels. ERROR_NO_MEMORY. */
bool picture_resize(const struct picture *in, int width, int height, enum resize_filter filter,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));

#endif
