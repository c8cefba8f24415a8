/* Which region of a masked picture is drawn, and where the result is pasted. The regions follow
 * AUTOMATIC1111's rule: the mask's box with padding, widened to the aspect ratio of the drawing,
 * then moved and cut to stay inside the picture. */
#include "server/sdapi/inpaint.h"

#include "pictures/png_encode.h"
#include "tests/check.h"

#include <stdlib.h>

struct box {
    int x1, y1, x2, y2;
};

/* A grey picture whose box has another value. */
static struct picture_file make_file(
    int width, int height, const struct box *box, uint8_t inside, uint8_t outside) {
    struct picture_file file = { 0 };
    struct error err = { 0 };
    uint8_t *rgb = malloc(3 * (size_t)width * (size_t)height), *bytes = NULL;
    for (int y = 0; y < height; y++)
        for (int x = 0; x < width; x++) {
            const bool in = x >= box->x1 && x < box->x2 && y >= box->y1 && y < box->y2;
            memset(rgb + 3 * ((size_t)y * (size_t)width + (size_t)x), in ? inside : outside, 3);
        }
    CHECK(png_encode(rgb, width, height, NULL, 0, &bytes, &file.size, &err), "%s", err.message);
    file.bytes = bytes;
    free(rgb);
    return file;
}

static struct generate_request make_request(int width, int height, int drawn_w, int drawn_h) {
    struct generate_request request;
    generate_request_init(&request);
    request.init_image = make_file(width, height, &(struct box){ 0 }, 0, 90);
    request.width = drawn_w;
    request.height = drawn_h;
    request.resize_mode = RESIZE_MODE_DEFAULT;
    return request;
}

static void regions_are_theirs(void) {
    static const struct {
        struct box mask;
        int padding, width, height, drawn_w, drawn_h;
        int x, y, wide, high;
    } rows[] = {
        { { 10, 10, 30, 20 }, 0, 128, 128, 128, 128, 10, 5, 20, 20 },
        { { 10, 10, 30, 20 }, 8, 128, 128, 128, 128, 2, 0, 36, 36 },
        { { 0, 100, 128, 128 }, 0, 128, 128, 128, 128, 0, 0, 128, 128 },
        { { 100, 0, 128, 100 }, 0, 128, 128, 128, 128, 28, 0, 100, 100 },
        { { 5, 5, 20, 60 }, 3, 96, 64, 128, 64, 0, 2, 96, 61 },
        { { 0, 0, 96, 64 }, 10, 96, 64, 64, 64, 0, 0, 96, 64 },
        { { 90, 60, 96, 64 }, 0, 96, 64, 64, 128, 90, 52, 6, 12 },
        { { 40, 30, 45, 31 }, 0, 96, 64, 512, 512, 40, 28, 5, 5 },
        { { 1, 1, 2, 2 }, 32, 96, 64, 64, 64, 0, 0, 34, 34 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sdapi_inpainting in = {
            .mask = make_file(rows[i].width, rows[i].height, &rows[i].mask, 255, 0),
            .full_res = true,
            .padding = rows[i].padding,
        };
        struct generate_request request = make_request(
            rows[i].width, rows[i].height, rows[i].drawn_w, rows[i].drawn_h);
        struct sdapi_canvas c;
        struct picture_info info;
        struct error err = { 0 };
        if (!sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err)) {
            CHECK(false, "row %zu: %s", i, err.message);
            continue;
        }
        CHECK(c.x == rows[i].x && c.y == rows[i].y && c.width == rows[i].wide &&
                  c.height == rows[i].high,
            "row %zu: %d,%d %dx%d", i, c.x, c.y, c.width, c.height);
        CHECK(picture_examine(request.mask_image.bytes, request.mask_image.size, &info, &err) &&
                  info.width == rows[i].drawn_w && info.height == rows[i].drawn_h,
            "row %zu: a mask of %dx%d", i, info.width, info.height);
        CHECK(picture_examine(request.init_image.bytes, request.init_image.size, &info, &err) &&
                  info.width == rows[i].drawn_w && info.height == rows[i].drawn_h,
            "row %zu: a picture of %dx%d", i, info.width, info.height);
        CHECK(request.resize_mode == RESIZE_MODE_NONE, "%d", request.resize_mode);
        sdapi_canvas_finish(&c);
        generate_request_finish(&request);
        free(in.mask.bytes);
    }
}

static void what_is_not_masked_stays(void) {
    const struct box box = { 16, 16, 48, 40 };
    for (int full_res = 0; full_res < 2; full_res++)
        for (int invert = 0; invert < 2; invert++) {
            struct sdapi_inpainting in = {
                .mask = make_file(64, 64, &box, 255, 0),
                .full_res = full_res,
                .invert = invert,
                .fill = SDAPI_FILL,
            };
            struct generate_request request = make_request(64, 64, 64, 64);
            struct sdapi_canvas c;
            struct error err = { 0 };
            uint8_t *drawn = calloc(64 * 64, 3), *out = NULL;
            memset(drawn, 200, 64 * 64 * 3);
            CHECK(sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err) &&
                      sdapi_canvas_paint(&c, drawn, 64, 64, &out, &err),
                "%s", err.message);
            int wrong = 0;
            for (int y = 0; out && y < 64; y++)
                for (int x = 0; x < 64; x++) {
                    const bool inside = x >= box.x1 && x < box.x2 && y >= box.y1 && y < box.y2;
                    wrong += out[3 * (64 * y + x)] != (inside != invert ? 200 : 90);
                }
            CHECK(wrong == 0, "%d pixels, full_res %d, invert %d", wrong, full_res, invert);
            free(out);
            free(drawn);
            sdapi_canvas_finish(&c);
            generate_request_finish(&request);
            free(in.mask.bytes);
        }
}

/* The latents of the masked part, and the picture behind them, for each inpainting_fill. */
static void the_masked_part_is_filled(void) {
    static const struct {
        enum sdapi_fill fill;
        enum masked_content content;
        bool smears;
    } rows[] = { { SDAPI_FILL, MASKED_ORIGINAL, true }, { SDAPI_ORIGINAL, MASKED_ORIGINAL, false },
        { SDAPI_LATENT_NOISE, MASKED_NOISE, true },
        { SDAPI_LATENT_NOTHING, MASKED_NOTHING, true } };
    const struct box box = { 16, 16, 48, 40 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sdapi_inpainting in = { .mask = make_file(64, 64, &box, 255, 0),
            .fill = rows[i].fill };
        struct generate_request request = make_request(64, 64, 64, 64);
        struct picture filled = { 0 };
        struct sdapi_canvas c = { 0 };
        struct error err = { 0 };
        free(request.init_image.bytes);
        request.init_image = make_file(
            64, 64, &box, 200, 90); /* another colour where it is masked */
        CHECK(sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err) &&
                  picture_decode(request.init_image.bytes, request.init_image.size, &filled, &err),
            "%s", err.message);
        CHECK(request.masked_content == rows[i].content, "%s: %d", sdapi_fill_names[rows[i].fill],
            request.masked_content);
        CHECK(filled.pixels && (filled.pixels[3 * (28 * 64 + 32)] == 200) != rows[i].smears,
            "%s: %d in the middle", sdapi_fill_names[rows[i].fill],
            filled.pixels ? filled.pixels[3 * (28 * 64 + 32)] : -1);
        picture_finish(&filled);
        sdapi_canvas_finish(&c);
        generate_request_finish(&request);
        free(in.mask.bytes);
    }
}

/* Where the whole picture is drawn, AUTOMATIC1111 fails if resize_mode 3 leaves picture and mask of
 * different sizes. */
static void latents_are_not_resized_beside_a_mask(void) {
    const struct box box = { 16, 16, 48, 40 };
    for (int side = 64; side <= 80; side += 16) {
        struct sdapi_inpainting in = { .mask = make_file(64, 64, &box, 255, 0) };
        struct generate_request request = make_request(side, side, 64, 64);
        struct sdapi_canvas c = { 0 };
        struct error err = { 0 };
        request.resize_mode = RESIZE_MODE_LATENT;
        const bool ok = sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err);
        CHECK(ok == (side == 64), "%d: %s", side, err.message);
        CHECK_STRING(err.param, ok ? "" : "resize_mode");
        if (ok)
            sdapi_canvas_finish(&c);
        generate_request_finish(&request);
        free(in.mask.bytes);
    }
}

/* A region that cannot get the drawing's proportions keeps its own, as in AUTOMATIC1111: it is
 * filled at its edges before it is drawn, and cropped afterwards. A drawing that is what it was
 * given comes back as the picture that it was. */
static void proportions_are_kept(void) {
    struct sdapi_inpainting in = { .mask = make_file(
                                       128, 32, &(struct box){ 0, 0, 128, 32 }, 255, 0),
        .full_res = true,
        .fill = SDAPI_ORIGINAL };
    struct generate_request request = make_request(128, 32, 128, 128);
    struct picture shown = { 0 };
    struct sdapi_canvas c;
    struct error err = { 0 };
    uint8_t *out = NULL;
    int off = 0;
    free(request.init_image.bytes);
    request.init_image = make_file(128, 32, &(struct box){ 32, 8, 64, 24 }, 220, 40);
    CHECK(sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err) &&
              picture_decode(request.init_image.bytes, request.init_image.size, &shown, &err) &&
              sdapi_canvas_paint(&c, shown.pixels, 128, 128, &out, &err),
        "%s", err.message);
    for (int y = 0; out && y < 32; y++)
        for (int x = 0; x < 128; x++) {
            const bool inside = x >= 32 && x < 64 && y >= 8 && y < 24;
            off += out[3 * (128 * y + x)] != (inside ? 220 : 40);
        }
    CHECK(out && off == 0, "%d of 4096 pixels are others", off);
    CHECK(shown.pixels && shown.pixels[3 * (128 * 60 + 40)] == 220 &&
              shown.pixels[3 * (128 * 10 + 40)] == 40,
        "the picture is in the middle, its edges around it");
    free(out);
    picture_finish(&shown);
    sdapi_canvas_finish(&c);
    generate_request_finish(&request);
    free(in.mask.bytes);
}

/* A drawing of 64x2048 px that covered a region of 4096x8 px whole would have 131072 rows. */
static void thin_regions_are_painted(void) {
    struct sdapi_inpainting in = { .mask = make_file(
                                       4096, 8, &(struct box){ 0, 0, 4096, 8 }, 255, 0),
        .full_res = true,
        .fill = SDAPI_ORIGINAL };
    struct generate_request request = make_request(4096, 8, 64, 2048);
    struct sdapi_canvas c;
    struct error err = { 0 };
    uint8_t *drawn = malloc((size_t)64 * 2048 * 3), *out = NULL;
    memset(drawn, 200, (size_t)64 * 2048 * 3);
    CHECK(sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err) &&
              sdapi_canvas_paint(&c, drawn, 64, 2048, &out, &err),
        "%s", err.message);
    int off = 0;
    for (size_t i = 0; out && i < (size_t)4096 * 8 * 3; i++)
        off += out[i] != 200;
    CHECK(out && off == 0, "%d values are not the drawing's", off);
    free(out);
    free(drawn);
    sdapi_canvas_finish(&c);
    generate_request_finish(&request);
    free(in.mask.bytes);
}

/* With a blank mask AUTOMATIC1111 draws image to image. */
static void a_blank_mask_is_none(void) {
    struct sdapi_inpainting in = { .mask = make_file(64, 64, &(struct box){ 0 }, 255, 0),
        .full_res = true };
    struct generate_request request = make_request(100, 80, 64, 64);
    struct sdapi_canvas c;
    struct error err = { 0 };
    CHECK(sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err), "%s", err.message);
    CHECK(!request.mask_image.bytes && request.init_image.bytes && !c.picture.pixels,
        "a request without a mask is prepared for inpainting");
    sdapi_canvas_finish(&c);
    generate_request_finish(&request);
    free(in.mask.bytes);
}

/* A cancel callback: returns true once it has been called a given number of times. */
static bool runs_out(void *user) {
    int *left = user;
    return (*left)-- <= 0;
}

/* Cancels at each call of the callback in turn. The work must stop there and leave no pictures. */
static void it_ends_when_it_is_cancelled(void) {
    const struct box box = { 16, 16, 48, 40 };
    int asked = 0;
    bool ok = false;
    for (; !ok && asked < 1000; asked++) {
        struct sdapi_inpainting in = {
            .mask = make_file(64, 64, &box, 255, 0), .blur_x = 2, .blur_y = 2, .fill = SDAPI_FILL
        };
        struct generate_request request = make_request(64, 64, 64, 64);
        struct sdapi_canvas c;
        struct error err = { 0 };
        int left = asked;
        ok = sdapi_inpaint_prepare(&in, &request, (struct cancel){ runs_out, &left }, &c, &err);
        CHECK(ok || (err.code == ERROR_CANCELLED && !c.picture.pixels && !c.cover.pixels),
            "after %d: %d %s", asked, err.code, err.message);
        if (ok)
            sdapi_canvas_finish(&c);
        generate_request_finish(&request);
        free(in.mask.bytes);
    }
    printf("asked %d times\n", asked - 1);
    CHECK(asked - 1 == 2 + 64 + 64 + 6,
        "the work asked %d times whether it is cancelled, not once for each picture, row and layer",
        asked);
}

static void what_is_no_picture_is_refused(void) {
    struct sdapi_inpainting in = { .mask = { .bytes = strdup("GIF89a"), .size = 6 } };
    struct generate_request request = make_request(64, 64, 64, 64);
    struct sdapi_canvas c;
    struct error err = { 0 };
    CHECK(!sdapi_inpaint_prepare(&in, &request, (struct cancel){ 0 }, &c, &err), "a GIF");
    CHECK_STRING(err.param, "mask_image");
    generate_request_finish(&request);
    free(in.mask.bytes);
}

int main(void) {
    regions_are_theirs();
    what_is_not_masked_stays();
    the_masked_part_is_filled();
    latents_are_not_resized_beside_a_mask();
    proportions_are_kept();
    thin_regions_are_painted();
    a_blank_mask_is_none();
    it_ends_when_it_is_cancelled();
    what_is_no_picture_is_refused();
    return check_done();
}
