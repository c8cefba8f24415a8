/* Masks to train inpainting with: what is 1 is drawn anew, what is 0 is shown to the model. */
#ifndef TRAIN_DATA_MASK_H
#define TRAIN_DATA_MASK_H

#include "kernels/mt19937.h"

#include <stdbool.h>

/* A filled rectangle, or the ellipse in it. Both ends belong to it, and may lie outside. */
struct mask_shape {
    int left, top, right, bottom;
    bool is_ellipse;
};

/* As random_mask of diffusers' train_dreambooth_inpaint.py draws one of a picture's size: width,
 * height, centre, kind. `mt` is Python's (python_random.h). */
struct mask_shape mask_draw(struct mt19937 *mt, int width, int height);

/* mask: [height][width] of 0 and 1, all written, as Pillow's ImageDraw fills the shape. */
void mask_fill(const struct mask_shape *shape, int width, int height, float *mask);

#endif
