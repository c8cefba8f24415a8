#include "engine/drawing/vae_stage.h"

#include "kernels/compute/recordings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum direction { DECODES = 1, ENCODES };

/* --- one call of the VAE --- */

/* Decodes `kept`, f32 [1][c][h][w], to `image`, f32 [1][height][width][3]. */
struct decoding {
    const struct vae *vae;
    struct tensor kept, latents, image;
};

static void run_decoder(struct compute *c, const void *user) {
    const struct decoding *v = user;
    struct tensor latents = v->latents, image = v->image;
    op_convert(
        c, &(struct convert_args){ .x = &v->kept, .layout = LAYOUT_NCHW_TO_NHWC, .y = &latents });
    vae_decode(v->vae, c, &latents, &image);
}

/* Rounds as diffusers does: clamp(x / 2 + 0.5, 0, 1) * 255, half to even. */
static void to_bytes(struct compute *c, const float *image, size_t count, uint8_t *out) {
    bool finite = true;
    for (size_t i = 0; i < count; i++) {
        finite = finite && isfinite(image[i]);
        out[i] = (uint8_t)lrintf(fminf(fmaxf(image[i] * 0.5f + 0.5f, 0), 1) * 255);
    }
    if (!finite)
        error_set(&c->error, ERROR_INTERNAL,
            "the decoded picture is not finite: the decoder's output overflowed or is damaged");
}

/* latents: [c][h][w]. Writes the picture to `out` as f32, or to `pixels` as 8-bit RGB if that is
 * not NULL. */
static void decode(struct compute *c, const struct vae *vae, int64_t h, int64_t w,
    const float *latents, float *out, uint8_t *pixels) {
    const size_t mark = arena_mark(c->arena);
    const int64_t channels = vae_get_config(vae)->latent_channels, scale = vae_scale(vae);
    const struct decoding v = {
        .vae = vae,
        .kept = compute_tensor_4d(c, DTYPE_F32, 1, channels, h, w),
        .latents = compute_tensor_4d(c, DTYPE_F32, 1, h, w, channels),
        .image = compute_tensor_4d(c, DTYPE_F32, 1, h * scale, w * scale, 3),
    };
    const uintptr_t key[] = { (uintptr_t)vae, (uintptr_t)v.kept.data, (uintptr_t)v.latents.data,
        (uintptr_t)v.image.data, (uintptr_t)h, (uintptr_t)w, DECODES };
    compute_upload(c, latents, &v.kept);
    compute_recorded(c, key, sizeof(key), run_decoder, &v);
    const float *image = compute_view(c, &v.image);
    if (image && pixels)
        to_bytes(c, image, (size_t)tensor_elements(&v.image), pixels);
    else if (image)
        memcpy(out, image, tensor_bytes(&v.image));
    arena_release(c->arena, mark);
}

/* Encodes `image`, f32 [1][height][width][3], to `moments`, f32 [1][h][w][2 c]. */
struct encoding {
    const struct vae *vae;
    struct tensor image, moments;
};

static void run_encoder(struct compute *c, const void *user) {
    const struct encoding *v = user;
    struct tensor moments = v->moments;
    vae_encode(v->vae, c, &v->image, &moments);
}

static void encode(struct compute *c, const struct vae *vae, int64_t height, int64_t width,
    const float *image, float *out) {
    const size_t mark = arena_mark(c->arena);
    const int64_t channels = 2 * vae_get_config(vae)->latent_channels, scale = vae_scale(vae);
    const struct encoding v = {
        .vae = vae,
        .image = compute_tensor_4d(c, DTYPE_F32, 1, height, width, 3),
        .moments = compute_tensor_4d(c, DTYPE_F32, 1, height / scale, width / scale, channels),
    };
    const uintptr_t key[] = { (uintptr_t)vae, (uintptr_t)v.image.data, (uintptr_t)v.moments.data,
        (uintptr_t)height, (uintptr_t)width, ENCODES };
    compute_upload(c, image, &v.image);
    compute_recorded(c, key, sizeof(key), run_encoder, &v);
    const float *moments = compute_view(c, &v.moments);
    if (moments)
        memcpy(out, moments, tensor_bytes(&v.moments));
    arena_release(c->arena, mark);
}

/* --- tiles --- */

/* Returns the side of a tile in latents. It is a multiple of 4, so that the overlap, a quarter of
 * it, is a whole number. */
static int64_t tile_latents(const struct vae *vae) {
    const int64_t side = vae_get_config(vae)->sample_size / vae_scale(vae) / 4 * 4;
    return side < 4 ? 4 : side;
}

bool vae_stage_has_tiles(const struct vae *vae, int64_t height, int64_t width) {
    const int64_t side = tile_latents(vae) * vae_scale(vae);
    return height > side || width > side;
}

/* Encoding or decoding by tiles. All sizes are in elements of the output: pixels or latents. */
struct tiling {
    struct compute *c;
    const struct vae *vae;
    enum direction direction;
    const float *from; /* the whole input */
    float *to;         /* the whole output [height][width][channels] */
    int64_t height, width, channels;
    int64_t side, step; /* side of a tile; distance between tiles */
    float *input;       /* scratch for the input of one tile */
    float **row,
        **above; /* tiles of this row and of the row above; all have room for the largest */
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Computes the tile of size `h` x `w` whose corner is at (y, x), in output units. */
static void make_tile(
    const struct tiling *t, int64_t y, int64_t x, int64_t h, int64_t w, float *out) {
    const int64_t scale = vae_scale(t->vae), latents = vae_get_config(t->vae)->latent_channels;
    if (t->direction == DECODES) {
        const int64_t rows = h / scale, columns = w / scale, whole = t->width / scale;
        for (int64_t k = 0; k < latents; k++)
            for (int64_t i = 0; i < rows; i++)
                memcpy(t->input + (k * rows + i) * columns,
                    t->from + (k * (t->height / scale) + y / scale + i) * whole + x / scale,
                    (size_t)columns * sizeof(float));
        decode(t->c, t->vae, rows, columns, t->input, out, NULL);
        return;
    }
    const int64_t columns = 3 * w * scale, whole = 3 * t->width * scale;
    for (int64_t i = 0; i < h * scale; i++)
        memcpy(t->input + i * columns, t->from + (y * scale + i) * whole + 3 * x * scale,
            (size_t)columns * sizeof(float));
    encode(t->c, t->vae, h * scale, w * scale, t->input, out);
}

/* Blends a's last rows (or columns) into b's first ones; b's share grows from row to row. Call it
 * after both tiles were blended with the neighbours before them. */
static void blend(const struct tiling *t, const float *a, int64_t a_height, int64_t a_width,
    float *b, int64_t b_height, int64_t b_width, bool rows) {
    const int64_t a_length = rows ? a_height : a_width, b_length = rows ? b_height : b_width;
    const int64_t extent = least(least(a_length, b_length), t->side - t->step);
    const int64_t height = rows ? extent : b_height, width = rows ? b_width : extent;
    for (int64_t y = 0; y < height; y++)
        for (int64_t x = 0; x < width; x++) {
            const double part = (double)(rows ? y : x) / (double)extent;
            const int64_t ay = rows ? a_height - extent + y : y,
                          ax = rows ? x : a_width - extent + x;
            const float *from = a + (ay * a_width + ax) * t->channels;
            float *to = b + (y * b_width + x) * t->channels;
            for (int64_t k = 0; k < t->channels; k++)
                to[k] = from[k] * (float)(1 - part) + to[k] * (float)part;
        }
}

/* Copies to the output the part of the tile that no later tile covers. */
static void put(
    const struct tiling *t, const float *tile, int64_t y, int64_t x, int64_t h, int64_t w) {
    const int64_t rows = least(h, t->step), columns = least(w, t->step);
    for (int64_t i = 0; i < rows; i++)
        memcpy(t->to + ((y + i) * t->width + x) * t->channels, tile + i * w * t->channels,
            (size_t)(columns * t->channels) * sizeof(float));
}

static void run_row(struct tiling *t, int64_t y) {
    const int64_t h = least(t->side, t->height - y);
    for (int64_t x = 0; x < t->width && compute_ok(t->c); x += t->step) {
        const int64_t i = x / t->step, w = least(t->side, t->width - x);
        make_tile(t, y, x, h, w, t->row[i]);
        if (!compute_ok(t->c))
            return;
        if (y > 0)
            blend(
                t, t->above[i], least(t->side, t->height - y + t->step), w, t->row[i], h, w, true);
        if (x > 0)
            blend(t, t->row[i - 1], h, least(t->side, t->width - x + t->step), t->row[i], h, w,
                false);
        put(t, t->row[i], y, x, h, w);
    }
}

/* Computes the tiles row by row, keeping two rows of tiles in memory. */
static bool run_tiles(struct tiling *t, struct error *err) {
    const int64_t count = (t->width + t->step - 1) / t->step;
    const size_t tile = (size_t)(t->side * t->side * t->channels);
    const int64_t scale = vae_scale(t->vae), latents = vae_get_config(t->vae)->latent_channels;
    const int64_t input = t->direction == DECODES ? t->side * t->side / (scale * scale) * latents
                                                  : t->side * t->side * scale * scale * 3;
    t->input = calloc((size_t)input, sizeof(*t->input));
    t->row = calloc((size_t)count, sizeof(*t->row));
    t->above = calloc((size_t)count, sizeof(*t->above));
    bool ok = t->input && t->row && t->above;
    for (int64_t i = 0; ok && i < count; i++) {
        t->row[i] = calloc(tile, sizeof(float));
        t->above[i] = calloc(tile, sizeof(float));
        ok = t->row[i] && t->above[i];
    }
    for (int64_t y = 0; ok && y < t->height && compute_ok(t->c); y += t->step) {
        run_row(t, y);
        float **row = t->row;
        t->row = t->above;
        t->above = row;
    }
    for (int64_t i = 0; t->row && t->above && i < count; i++) {
        free(t->row[i]);
        free(t->above[i]);
    }
    free(t->row);
    free(t->above);
    free(t->input);
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory for the tiles of a picture");
}

static bool uses_tiles(const struct vae_stage *stage) {
    return stage->tiled && vae_stage_has_tiles(stage->vae, stage->height, stage->width);
}

/* Encodes or decodes all tiles. A dry run does so only for the largest one. */
static void run_tiled(struct compute *c, const struct vae_stage *stage, enum direction direction,
    const float *from, float *to) {
    const int64_t scale = vae_scale(stage->vae), latents = tile_latents(stage->vae);
    const int64_t side = latents * scale;
    const int64_t h = least(stage->height, side), w = least(stage->width, side);
    const int64_t unit = direction == DECODES ? 1 : scale;
    if (c->dry_run && direction == DECODES)
        decode(c, stage->vae, h / scale, w / scale, NULL, NULL, NULL);
    else if (c->dry_run)
        encode(c, stage->vae, h, w, NULL, NULL);
    if (c->dry_run || !compute_ok(c))
        return;
    struct tiling t = {
        .c = c,
        .vae = stage->vae,
        .direction = direction,
        .from = from,
        .to = to,
        .height = stage->height / unit,
        .width = stage->width / unit,
        .channels = direction == DECODES ? 3 : 2 * vae_get_config(stage->vae)->latent_channels,
        .side = side / unit,
        .step = side / unit / 4 * 3,
    };
    struct error err = { 0 };
    if (!run_tiles(&t, &err))
        c->error = err;
}

void vae_stage_decode(
    struct compute *c, const struct vae_stage *stage, const float *latents, float *image) {
    const int64_t scale = vae_scale(stage->vae);
    if (uses_tiles(stage))
        run_tiled(c, stage, DECODES, latents, image);
    else
        decode(c, stage->vae, stage->height / scale, stage->width / scale, latents, image, NULL);
}

void vae_stage_draw(
    struct compute *c, const struct vae_stage *stage, const float *latents, uint8_t *pixels) {
    const int64_t scale = vae_scale(stage->vae);
    if (!uses_tiles(stage)) {
        decode(c, stage->vae, stage->height / scale, stage->width / scale, latents, NULL, pixels);
        return;
    }
    const size_t count = (size_t)(stage->height * stage->width) * 3;
    float *image = c->dry_run ? NULL : calloc(count, sizeof(*image));
    if (!image && !c->dry_run)
        error_set(&c->error, ERROR_NO_MEMORY, "no memory for a picture of tiles");
    run_tiled(c, stage, DECODES, latents, image);
    if (image && compute_ok(c))
        to_bytes(c, image, count, pixels);
    free(image);
}

void vae_stage_encode(
    struct compute *c, const struct vae_stage *stage, const float *image, float *moments) {
    if (uses_tiles(stage))
        run_tiled(c, stage, ENCODES, image, moments);
    else
        encode(c, stage->vae, stage->height, stage->width, image, moments);
}
