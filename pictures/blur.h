/* Soft edges for masks, and a fill for the masked part of a picture, as AUTOMATIC1111 makes both
 * before it inpaints. */
#ifndef PICTURES_BLUR_H
#define PICTURES_BLUR_H

#include "base/cancel.h"
#include "pictures/picture.h"

/* Blurs a picture of one channel in place by a Gaussian, as OpenCV's GaussianBlur does with kernels
 * of 2 int(2.5 sigma + 0.5) + 1 px: mirrored at the edges, rounded after each direction. A sigma of
 * 0 leaves its direction unchanged. Returns ERROR_NO_MEMORY, or ERROR_CANCELLED: `cancel` is asked
 * at every row. */
bool picture_blur(struct picture *picture, int sigma_x, int sigma_y, struct cancel cancel,
    struct error *err) __attribute__((warn_unused_result));

/* Fills the part of an RGB picture where `mask` (one channel, same size) is white with a smear of
 * its surroundings: layers of the rest of the picture, each less blurred than the one before, on
 * top of each other. Blurs and composes as Pillow does, but without its rounding to 8 bits. Returns
 * ERROR_NO_MEMORY, or ERROR_CANCELLED: `cancel` is asked at every layer. */
bool picture_smear(struct picture *picture, const struct picture *mask, struct cancel cancel,
    struct error *err) __attribute__((warn_unused_result));

#endif
