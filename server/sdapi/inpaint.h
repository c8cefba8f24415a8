/* Inpainting as AUTOMATIC1111 does it, around the native inpainting. Before drawing, the mask is
 * inverted and blurred, the picture is cropped to the region to draw, and its masked part is
 * filled. After drawing, the result is pasted into the original picture through the blurred mask,
 * so the rest of the picture stays bit-exact. */
#ifndef SERVER_SDAPI_INPAINT_H
#define SERVER_SDAPI_INPAINT_H

#include "base/cancel.h"
#include "engine/request/request.h"
#include "pictures/picture.h"

/* What the masked part begins with, in the order of inpainting_fill. All but the second fill the
 * picture's masked part from its surroundings; the last two replace its latents too. */
enum sdapi_fill { SDAPI_FILL, SDAPI_ORIGINAL, SDAPI_LATENT_NOISE, SDAPI_LATENT_NOTHING };
#define SDAPI_FILLS 4
extern const char *const sdapi_fill_names[SDAPI_FILLS]; /* in infotexts */

/* The inpainting fields of a request. */
struct sdapi_inpainting {
    bool given;               /* the request has a mask */
    struct picture_file mask; /* owned; empty after the preparation */
    int blur_x, blur_y;       /* px, standard deviation of the Gaussian blur */
    bool invert;              /* white parts are kept, not drawn */
    enum sdapi_fill fill;
    bool full_res; /* draws only around the mask, at the full size */
    int padding;   /* px around that region */
};

/* The picture into which the drawn one is pasted. If it has no pixels, the drawn picture is the
 * whole answer. */
struct sdapi_canvas {
    struct picture picture;  /* RGB; owned */
    struct picture cover;    /* owned; same size, one channel: the drawn picture's opacity */
    int x, y, width, height; /* the region that is drawn */
};

/* Computes the largest size that the canvas may have, in bytes. It depends on the request's size
 * or, with full_res, on the size in the header of init_image. ERROR_INVALID names init_image. */
bool sdapi_canvas_measure(const struct sdapi_inpainting *inpainting,
    const struct generate_request *request, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Replaces init_image and mask_image of `request` by the pictures to draw from, and sets its
 * resize_mode and masked_content. If the mask is black everywhere after inversion and blur,
 * full_res draws as if there were no mask, as AUTOMATIC1111 does. Takes a while, because it decodes
 * pictures. ERROR_INVALID names init_image, mask_image or resize_mode; ERROR_CANCELLED if `cancel`
 * asks for it. The caller finishes *out on success. */
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
