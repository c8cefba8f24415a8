/* Softens the edges of masks, and fills the masked part of a picture, both as AUTOMATIC1111 does
 * before it inpaints. */
#ifndef PICTURES_BLUR_H
#define PICTURES_BLUR_H

#include "base/cancel.h"
#include "pictures/picture.h"

/* Blurs a picture of one channel in place by a Gaussian. Works like OpenCV's GaussianBlur with
 * kernels of 2 int(2.5 sigma + 0.5) + 1 px: mirrors at the edges, rounds after each direction. A
 * sigma of 0 leaves its direction unchanged. `cancel` is asked at every row. ERROR_NO_MEMORY,
 * ERROR_CANCELLED. */
bool picture_blur(struct picture *picture, int sigma_x, int sigma_y, struct cancel cancel,
    struct error *err) __attribute__((warn_unused_result));

/* Fills the part of an RGB picture where `mask` (one channel, same size) is white. The fill is a
 * smear of the surroundings: layers of the unmasked part on top of each other, each less blurred
 * than the one below. Blurs and composes as Pillow does, but without rounding to 8 bits. `cancel`
 * is asked at every layer. ERROR_NO_MEMORY, ERROR_CANCELLED. */
bool picture_smear(struct picture *picture, const struct picture *mask, struct cancel cancel,
    struct error *err) __attribute__((warn_unused_result));

#endif
