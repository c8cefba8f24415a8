#include "server/sdapi/inpaint.h"

#include "engine/resolve/source.h"
#include "pictures/blur.h"
#include "pictures/png_encode.h"
#include "pictures/resize.h"

#include <stdlib.h>
#include <string.h>

const char *const sdapi_fill_names[] = { "fill", "original", "latent noise", "latent nothing" };

struct region {
    int x1, y1, x2, y2; /* x2 and y2 are exclusive */
};

/* --- pictures --- */

static bool read_picture(const struct picture_file *file, const char *param, struct cancel cancel,
    struct picture *out, struct error *err) {
    int width, height;
    if (cancel_is_asked(cancel))
        return error_set(err, ERROR_CANCELLED, "%s is not read: nobody waits for it", param);
    return source_examine(file, param, INIT_IMAGE_MAX_PX, &width, &height, err) &&
           source_read(file, param, out, err);
}

/* In place. */
static bool resize(
    struct picture *picture, int width, int height, enum resize_mode mode, struct error *err) {
    struct picture out = { 0 };
    if (picture->width == width && picture->height == height)
        return true;
    if (!source_resize(picture, width, height, mode, &out, err))
        return false;
    picture_finish(picture);
    *picture = out;
    return true;
}

/* In place. */
static bool crop(struct picture *picture, const struct region *r, struct error *err) {
    struct picture out;
    const size_t channels = (size_t)picture->channels;
    const size_t row = (size_t)(r->x2 - r->x1) * channels;
    if (!picture_create(r->x2 - r->x1, r->y2 - r->y1, picture->channels, &out, err))
        return false;
    for (int y = r->y1; y < r->y2; y++)
        memcpy(out.pixels + (size_t)(y - r->y1) * row,
            picture->pixels + ((size_t)y * (size_t)picture->width + (size_t)r->x1) * channels, row);
    picture_finish(picture);
    *picture = out;
    return true;
}

static bool copy(const struct picture *picture, struct picture *out, struct error *err) {
    if (!picture_create(picture->width, picture->height, picture->channels, out, err))
        return false;
    memcpy(out->pixels, picture->pixels,
        (size_t)picture->width * (size_t)picture->height * (size_t)picture->channels);
    return true;
}

/* Encodes the picture as PNG, and replaces the contents of *file by it. */
static bool write_picture(
    const struct picture *picture, struct picture_file *file, struct error *err) {
    const size_t pixels = (size_t)picture->width * (size_t)picture->height;
    struct picture rgb = *picture;
    uint8_t *bytes = NULL;
    size_t size = 0;
    if (picture->channels == 1) {
        if (!picture_create(picture->width, picture->height, 3, &rgb, err))
            return false;
        for (size_t i = 0; i < pixels; i++)
            memset(rgb.pixels + 3 * i, picture->pixels[i], 3);
    }
    const bool ok = png_encode(rgb.pixels, rgb.width, rgb.height, NULL, 0, &bytes, &size, err);
    if (rgb.pixels != picture->pixels)
        picture_finish(&rgb);
    if (!ok)
        return false;
    free(file->bytes);
    *file = (struct picture_file){ bytes, size };
    return true;
}

/* --- the region that is drawn --- */

/* Finds the region of the mask that is not black, and adds `padding` on each side. Returns false if
 * the whole mask is black. */
static bool find_region(const struct picture *mask, int padding, struct region *out) {
    struct region r = { mask->width, mask->height, 0, 0 };
    for (int y = 0; y < mask->height; y++)
        for (int x = 0; x < mask->width; x++)
            if (mask->pixels[(size_t)y * (size_t)mask->width + (size_t)x]) {
                r.x1 = x < r.x1 ? x : r.x1;
                r.x2 = x + 1 > r.x2 ? x + 1 : r.x2;
                r.y1 = y < r.y1 ? y : r.y1;
                r.y2 = y + 1;
            }
    if (r.x2 == 0)
        return false;
    out->x1 = r.x1 > padding ? r.x1 - padding : 0;
    out->y1 = r.y1 > padding ? r.y1 - padding : 0;
    out->x2 = r.x2 + padding < mask->width ? r.x2 + padding : mask->width;
    out->y2 = r.y2 + padding < mask->height ? r.y2 + padding : mask->height;
    return true;
}

/* Widens a range to `length`, equally on both sides. Then moves it, and cuts it if needed, so that
 * it lies between 0 and `size`. */
static void widen(int *begin, int *end, int length, int size) {
    const int more = length - (*end - *begin);
    *begin -= more / 2;
    *end += more - more / 2;
    if (*end >= size) {
        *begin -= *end - size;
        *end = size;
    }
    if (*begin < 0) {
        *end -= *begin;
        *begin = 0;
    }
    if (*end > size)
        *end = size;
}

/* Widens the region to the proportions of the drawn picture, as far as the mask's size allows. */
static void fit_proportions(struct region *r, const struct picture *mask, int width, int height) {
    const double ratio = (double)width / height, wide = r->x2 - r->x1, high = r->y2 - r->y1;
    if (wide / high > ratio)
        widen(&r->y1, &r->y2, (int)(wide / ratio), mask->height);
    else
        widen(&r->x1, &r->x2, (int)(high * ratio), mask->width);
}

/* --- before drawing --- */

/* Returns the size of an RGB picture and its cover of one channel. */
static size_t bytes_of(int width, int height) {
    return (size_t)width * (size_t)height * (3 + 1);
}

bool sdapi_canvas_measure(const struct sdapi_inpainting *in, const struct generate_request *request,
    size_t *bytes, struct error *err) {
    int width = request->width, height = request->height;
    if (in->full_res && !source_examine(&request->init_image, "init_image", INIT_IMAGE_MAX_PX,
                            &width, &height, err))
        return false;
    *bytes = bytes_of(width, height);
    return true;
}

size_t sdapi_canvas_bytes(const struct sdapi_canvas *canvas) {
    return bytes_of(canvas->picture.width, canvas->picture.height);
}

static bool read_mask(const struct sdapi_inpainting *in, const struct picture *init,
    struct cancel cancel, struct picture *out, struct error *err) {
    if (!read_picture(&in->mask, "mask_image", cancel, out, err) || !picture_to_grey(out, err) ||
        !resize(out, init->width, init->height, RESIZE_MODE_DEFAULT, err))
        return false;
    const size_t pixels = (size_t)out->width * (size_t)out->height;
    for (size_t i = 0; in->invert && i < pixels; i++)
        out->pixels[i] = (uint8_t)(255 - out->pixels[i]);
    return picture_blur(out, in->blur_x, in->blur_y, cancel, err);
}

/* Prepares to draw only the region around the mask: the canvas keeps the whole picture, and `init`
 * and `mask` are cropped to the region. A region that cannot get the proportions of the drawn
 * picture is filled at its edges, which sdapi_canvas_paint crops again. */
static bool take_part(const struct sdapi_inpainting *in, struct picture *init, struct picture *mask,
    const struct generate_request *request, struct sdapi_canvas *canvas, struct error *err) {
    struct region r;
    if (!find_region(mask, in->padding, &r)) {
        picture_finish(mask);
        return true; /* the request's resize_mode resizes it */
    }
    fit_proportions(&r, mask, request->width, request->height);
    canvas->x = r.x1;
    canvas->y = r.y1;
    canvas->width = r.x2 - r.x1;
    canvas->height = r.y2 - r.y1;
    return copy(init, &canvas->picture, err) && copy(mask, &canvas->cover, err) &&
           crop(init, &r, err) && crop(mask, &r, err) &&
           resize(init, request->width, request->height, RESIZE_MODE_FILL, err) &&
           resize(mask, request->width, request->height, RESIZE_MODE_FILL, err);
}

/* Prepares to draw the whole picture. The cover is the blurred mask with doubled values, at most
 * 255. */
static bool take_whole(struct picture *init, struct picture *mask,
    const struct generate_request *request, struct sdapi_canvas *canvas, struct error *err) {
    const int width = request->width, height = request->height;
    if (request->resize_mode == RESIZE_MODE_LATENT &&
        (init->width != width || init->height != height))
        return error_field(err, "resize_mode", "3",
            "0, 1 or 2 with a mask and without inpaint_full_res, for a picture of another size");
    if (!resize(init, width, height, request->resize_mode, err) ||
        !resize(mask, width, height, request->resize_mode, err) ||
        !copy(init, &canvas->picture, err) || !copy(mask, &canvas->cover, err))
        return false;
    const size_t pixels = (size_t)width * (size_t)height;
    for (size_t i = 0; i < pixels; i++)
        canvas->cover.pixels[i] = mask->pixels[i] > 127 ? 255 : (uint8_t)(2 * mask->pixels[i]);
    canvas->width = width;
    canvas->height = height;
    return true;
}

bool sdapi_inpaint_prepare(const struct sdapi_inpainting *inpainting,
    struct generate_request *request, struct cancel cancel, struct sdapi_canvas *out,
    struct error *err) {
    struct picture init = { 0 }, mask = { 0 };
    *out = (struct sdapi_canvas){ 0 };
    bool ok = read_picture(&request->init_image, "init_image", cancel, &init, err) &&
              read_mask(inpainting, &init, cancel, &mask, err) &&
              (inpainting->full_res ? take_part(inpainting, &init, &mask, request, out, err)
                                    : take_whole(&init, &mask, request, out, err));
    if (ok && mask.pixels && inpainting->fill != SDAPI_ORIGINAL)
        ok = picture_smear(&init, &mask, cancel, err);
    if (ok && mask.pixels) {
        request->resize_mode = RESIZE_MODE_NONE;
        request->masked_content = inpainting->fill == SDAPI_LATENT_NOISE     ? MASKED_NOISE
                                  : inpainting->fill == SDAPI_LATENT_NOTHING ? MASKED_NOTHING
                                                                             : MASKED_ORIGINAL;
        ok = write_picture(&init, &request->init_image, err) &&
             write_picture(&mask, &request->mask_image, err);
    }
    picture_finish(&init);
    picture_finish(&mask);
    if (!ok)
        sdapi_canvas_finish(out);
    return ok;
}

void sdapi_canvas_finish(struct sdapi_canvas *canvas) {
    picture_finish(&canvas->picture);
    picture_finish(&canvas->cover);
}

/* --- after drawing --- */

bool sdapi_canvas_paint(const struct sdapi_canvas *canvas, const uint8_t *rgb, int width,
    int height, uint8_t **out, struct error *err) {
    const struct picture drawn = { width, height, 3, (uint8_t *)rgb };
    const size_t stride = (size_t)canvas->picture.width;
    struct picture part, whole;
    if (!source_resize(&drawn, canvas->width, canvas->height, RESIZE_MODE_CROP, &part, err))
        return false;
    if (!copy(&canvas->picture, &whole, err)) {
        picture_finish(&part);
        return false;
    }
    for (int y = 0; y < canvas->height; y++)
        for (int x = 0; x < canvas->width; x++) {
            const size_t at = (size_t)(canvas->y + y) * stride + (size_t)(canvas->x + x);
            const int cover = canvas->cover.pixels[at];
            const uint8_t *from = part.pixels + 3 * ((size_t)y * (size_t)canvas->width + (size_t)x);
            uint8_t *to = whole.pixels + 3 * at;
            for (int c = 0; c < 3; c++)
                to[c] = (uint8_t)((from[c] * cover + to[c] * (255 - cover) + 127) / 255);
        }
    picture_finish(&part);
    *out = whole.pixels;
    return true;
}
