/* Masks for training inpainting: 1 is drawn anew, 0 is shown to the model. */
#ifndef TRAIN_DATA_MASK_H
#define TRAIN_DATA_MASK_H

#include "kernels/random/mt19937.h"

#include <stdbool.h>

/* A filled rectangle, or the ellipse in it. Both ends are included, and may lie outside the
 * picture. */
struct mask_shape {
    int left, top, right, bottom;
    bool is_ellipse;
};

/* Draws a random mask for a picture of this size as random_mask of diffusers'
 * train_dreambooth_inpaint.py does, in the order width, height, centre, kind. `mt` is Python's
 * generator (python_random.h). */
struct mask_shape mask_draw(struct mt19937 *mt, int width, int height);

/* Fills mask, [height][width] of 0 and 1, as Pillow's ImageDraw fills the shape. */
void mask_fill(const struct mask_shape *shape, int width, int height, float *mask);

#endif
