/* Inpainting as AUTOMATIC1111 has it, around ours: the mask is turned over and blurred, the picture
 * is cut to the part that is drawn and its masked part filled; and what was drawn is laid into the
 * picture as it came, through the blurred mask, so that the rest stays to the bit. */
#ifndef SERVER_SDAPI_INPAINT_H
#define SERVER_SDAPI_INPAINT_H

#include "base/cancel.h"
#include "engine/request.h"
#include "pictures/picture.h"

/* What a request says of it. */
struct sdapi_inpainting {
    bool given;               /* a mask is */
    struct picture_file mask; /* owned; until it is prepared */
    int blur_x, blur_y;       /* px, the standard deviation of a Gaussian */
    bool invert;              /* white is kept */
    bool fill;                /* the masked part begins as a smear of what is around it */
    bool full_res;            /* the part around the mask is drawn as large as the whole */
    int padding;              /* px around it */
};

/* Where the drawn picture belongs. No pixels: it is all there is. */
struct sdapi_canvas {
    struct picture picture; /* RGB; owned */
    struct picture cover; /* of its size, one channel: how much of what is drawn covers it; owned */
    int x, y, width, height; /* the part of it that is drawn */
};

/* What the canvas takes at most, by the pictures' heads. ERROR_INVALID names init_image. */
bool sdapi_canvas_measure(const struct sdapi_inpainting *inpainting,
    const struct generate_request *request, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Puts the pictures to draw from into `request`, in place of its init_image. With a mask in which
 * nothing is white it is as if there were none, as in AUTOMATIC1111. Decodes, so it takes a while.
 * ERROR_INVALID names init_image or mask_image; ERROR_CANCELLED once `cancel` says so. The caller
 * finishes *out on success. */
bool sdapi_inpaint_prepare(const struct sdapi_inpainting *inpainting,
    struct generate_request *request, struct cancel cancel, struct sdapi_canvas *out,
    struct error *err) __attribute__((warn_unused_result));
size_t sdapi_canvas_bytes(const struct sdapi_canvas *canvas);
void sdapi_canvas_finish(struct sdapi_canvas *canvas); /* zeroed is fine */

/* The canvas with a drawn picture [height][width][3] in it: RGB of the canvas's size, malloc'd. */
bool sdapi_canvas_paint(const struct sdapi_canvas *canvas, const uint8_t *rgb, int width,
    int height, uint8_t **out, struct error *err) __attribute__((warn_unused_result));

#endif
