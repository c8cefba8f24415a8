/* Inpainting as AUTOMATIC1111 does it, wrapped around the native one. Before: the mask is inverted
 * and blurred, the picture is cropped to the part to be drawn, and its masked part is filled.
 * After: what was drawn is pasted into the original picture through the blurred mask, so that the
 * rest stays bit-exact. */
#ifndef SERVER_SDAPI_INPAINT_H
#define SERVER_SDAPI_INPAINT_H

#include "base/cancel.h"
#include "engine/request/request.h"
#include "pictures/picture.h"

/* The inpainting fields of a request. */
struct sdapi_inpainting {
    bool given;               /* a mask is given */
    struct picture_file mask; /* owned; valid until it is prepared */
    int blur_x, blur_y;       /* px, standard deviation of the Gaussian blur */
    bool invert;              /* white is kept instead of drawn */
    bool fill;                /* the masked part starts as a smear of its surroundings */
    bool full_res;            /* draws only the part around the mask, at the full size */
    int padding;              /* px around that part */
};

/* Where to paste the drawn picture. Without pixels: the drawn picture is the whole answer. */
struct sdapi_canvas {
    struct picture picture;  /* RGB; owned */
    struct picture cover;    /* same size, one channel: the opacity of the drawn picture; owned */
    int x, y, width, height; /* the part of the picture that is drawn */
};

/* Computes the canvas's maximum size in bytes, from the request's size or, with full_res, from the
 * header of init_image. ERROR_INVALID names init_image. */
bool sdapi_canvas_measure(const struct sdapi_inpainting *inpainting,
    const struct generate_request *request, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Replaces the init_image and mask_image of `request` by the pictures to draw from, and its
 * resize_mode by none. With full_res and a mask that is black everywhere after inversion and blur,
 * it proceeds as if there were no mask, as AUTOMATIC1111 does. Decodes pictures, so it takes a
 * while. ERROR_INVALID names init_image or mask_image; ERROR_CANCELLED once `cancel` asks for it.
 * The caller finishes *out on success. */
bool sdapi_inpaint_prepare(const struct sdapi_inpainting *inpainting,
    struct generate_request *request, struct cancel cancel, struct sdapi_canvas *out,
    struct error *err) __attribute__((warn_unused_result));
size_t sdapi_canvas_bytes(const struct sdapi_canvas *canvas);
void sdapi_canvas_finish(struct sdapi_canvas *canvas); /* zeroed is fine */

/* Pastes a drawn picture [height][width][3] into the canvas. *out is RGB of the canvas's size,
 * malloc'd. */
bool sdapi_canvas_paint(const struct sdapi_canvas *canvas, const uint8_t *rgb, int width,
    int height, uint8_t **out, struct error *err) __attribute__((warn_unused_result));

#endif
