#include "engine/resolve/source.h"

#include "pictures/png_encode.h"
#include "pictures/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- pictures --- */

static const char *param_of(enum source_picture picture) {
    return picture == SOURCE_INIT ? "init_image" : "mask_image";
}

/* Turns an error of the file's decoder into an error of the request's field. */
static bool refuse_file(const char *param, const struct picture_file *file, const struct error *why,
    struct error *err) {
    char value[48];
    if (why->code != ERROR_INVALID && why->code != ERROR_TOO_LARGE) {
        *err = *why;
        return error_prefix(err, "%s", param);
    }
    snprintf(value, sizeof(value), "a file of %zu bytes", file->size);
    return error_field(err, param, value, "a PNG, JPEG or WebP picture; %.300s", why->message);
}

bool source_examine(const struct picture_file *file, const char *param, int most_px, int *width,
    int *height, struct error *err) {
    struct picture_info info;
    struct error why = { 0 };
    char value[48];
    if (!picture_examine(file->bytes, file->size, &info, &why))
        return refuse_file(param, file, &why, err);
    *width = info.width;
    *height = info.height;
    if (info.width <= most_px && info.height <= most_px)
        return true;
    snprintf(value, sizeof(value), "%dx%d px", info.width, info.height);
    return error_field(err, param, value, "sides of at most %d px", most_px);
}

bool source_read(
    const struct picture_file *file, const char *param, struct picture *out, struct error *err) {
    struct error why = { 0 };
    return picture_decode(file->bytes, file->size, out, &why) ||
           refuse_file(param, file, &why, err);
}

static bool read_mask(
    const struct generate_request *request, struct picture *out, struct error *err) {
    const struct picture_file *file = &request->mask_image;
    const char *param = param_of(SOURCE_MASKED);
    struct error why = { 0 };
    char value[48];
    if (!request->mask_is_transparent)
        return source_read(file, param, out, err);
    if (picture_decode_transparency(file->bytes, file->size, out, &why))
        return true;
    if (why.code != ERROR_INVALID)
        return refuse_file(param, file, &why, err);
    snprintf(value, sizeof(value), "a file of %zu bytes", file->size);
    return error_field(err, param, value,
        "a PNG or WebP that is transparent where the picture is to be drawn anew; %.300s",
        why.message);
}

bool source_resize(const struct picture *in, int width, int height, enum resize_mode mode,
    struct picture *out, struct error *err) {
    return mode == RESIZE_MODE_CROP   ? picture_resize_to_cover(in, width, height, out, err)
           : mode == RESIZE_MODE_FILL ? picture_resize_to_fill(in, width, height, out, err)
                                      : picture_resize(in, width, height, RESIZE_LANCZOS, out, err);
}

/* Resizes the picture to the request's size, in place. ERROR_INVALID names the field `param`. */
static bool fit(struct picture *picture, const struct generate_request *request, const char *param,
    struct error *err) {
    struct picture out = { 0 };
    struct error why = { 0 };
    if (picture->width == request->width && picture->height == request->height)
        return true;
    if (!source_resize(
            picture, request->width, request->height, request->resize_mode, &out, &why)) {
        char value[48];
        snprintf(value, sizeof(value), "%dx%d px", picture->width, picture->height);
        picture_finish(&out);
        if (why.code == ERROR_INVALID)
            return error_field(
                err, param, value, "a picture that is less thin: %.300s", why.message);
        return error_set(err, why.code, "%s", why.message);
    }
    picture_finish(picture);
    *picture = out;
    return true;
}

/* Converts the picture to a mask of 0 and 1: 1 where the grey value is 128 or more, as diffusers'
 * mask processor does. */
static bool make_mask(struct picture *mask, struct error *err) {
    if (!picture_to_grey(mask, err))
        return false;
    const size_t pixels = (size_t)mask->width * (size_t)mask->height;
    for (size_t i = 0; i < pixels; i++)
        mask->pixels[i] = mask->pixels[i] >= 128;
    return true;
}

static bool check_sizes(
    const struct source *s, const struct generate_request *request, struct error *err) {
    char value[48];
    if (s->mask.pixels && (s->mask.width != s->init.width || s->mask.height != s->init.height)) {
        snprintf(value, sizeof(value), "%dx%d px", s->mask.width, s->mask.height);
        return error_field(err, "mask_image", value, "%dx%d px, the size of init_image",
            s->init.width, s->init.height);
    }
    if (request->resize_mode != RESIZE_MODE_NONE ||
        (s->init.width == request->width && s->init.height == request->height))
        return true;
    snprintf(value, sizeof(value), "%dx%d px", s->init.width, s->init.height);
    return error_field(err, "init_image", value,
        "%dx%d px, which width and height ask for; or resize_mode " RESIZE_MODES_THAT_FIT,
        request->width, request->height);
}

bool source_create(
    const struct generate_request *request, bool inpaints, struct source **out, struct error *err) {
    struct source *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "no memory for init_image");
    s->inpaints = inpaints;
    s->from_noise = request->mask_image.bytes && request->strength == 1;
    const bool has_mask = request->mask_image.bytes;
    if (source_read(&request->init_image, param_of(SOURCE_INIT), &s->init, err) &&
        (!has_mask || read_mask(request, &s->mask, err)) && check_sizes(s, request, err) &&
        fit(&s->init, request, param_of(SOURCE_INIT), err) &&
        (!has_mask ||
            (fit(&s->mask, request, param_of(SOURCE_MASKED), err) && make_mask(&s->mask, err)))) {
        *out = s;
        return true;
    }
    source_destroy(s);
    return false;
}

void source_destroy(struct source *source) {
    if (!source)
        return;
    picture_finish(&source->init);
    picture_finish(&source->mask);
    free(source);
}

bool source_encodes(const struct source *source, enum source_picture picture) {
    return picture == SOURCE_MASKED ? source->inpaints : !source->inpaints || !source->from_noise;
}

int source_encode_count(const struct source *source) {
    return source_encodes(source, SOURCE_INIT) + source_encodes(source, SOURCE_MASKED);
}

void source_fill(const struct source *source, enum source_picture picture, float *out) {
    const size_t pixels = (size_t)source->init.width * (size_t)source->init.height;
    for (size_t i = 0; i < pixels; i++) {
        const bool hidden = picture == SOURCE_MASKED && source->mask.pixels[i];
        for (size_t c = 0; c < 3; c++)
            out[3 * i + c] = hidden ? 0 : 2 * ((float)source->init.pixels[3 * i + c] / 255) - 1;
    }
}

/* --- an image's start --- */

static size_t elements(const struct latent_shape *s) {
    return (size_t)(s->channels * s->height * s->width);
}

/* latents = scaling_factor (mean + std noise), from moments [h][w][2 c] and noise [c][h][w]. The
 * log-variance is limited to -30..20 as in diffusers. `latents` and `noise` may be the same. */
static void sample_posterior(
    const struct image_start_options *o, const float *moments, const float *noise, float *latents) {
    const size_t channels = (size_t)o->shape.channels;
    const size_t pixels = (size_t)(o->shape.height * o->shape.width);
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++) {
            const float mean = moments[2 * channels * i + c];
            const float log_variance = moments[2 * channels * i + channels + c];
            const float std = expf(0.5f * fminf(fmaxf(log_variance, -30), 20));
            const size_t at = c * pixels + i;
            latents[at] = o->scaling_factor * (mean + std * noise[at]);
        }
}

/* Nearest-neighbour resize as torch's interpolate: takes the pixel at floor(i * scale). */
static void shrink_mask(const struct picture *mask, const struct latent_shape *shape, float *out) {
    const int64_t step_y = mask->height / shape->height, step_x = mask->width / shape->width;
    for (int64_t y = 0; y < shape->height; y++)
        for (int64_t x = 0; x < shape->width; x++)
            out[y * shape->width + x] = mask->pixels[y * step_y * mask->width + x * step_x];
}

static void draw_start(
    const struct image_start_options *o, struct noise_generator *generator, struct image_start *s) {
    const struct source *source = o->source;
    const size_t count = elements(&o->shape);
    const float *moments = o->moments;
    if (source_encodes(source, SOURCE_INIT)) {
        noise_draw(generator, s->init, (int64_t)count);
        sample_posterior(o, moments, s->init, s->init);
        moments += 2 * count;
    }
    noise_draw(generator, s->noise, (int64_t)count);
    for (size_t i = 0; i < count; i++)
        s->sample[i] = source->from_noise ? o->init_noise_sigma * s->noise[i]
                                          : o->signal * s->init[i] + o->noise * s->noise[i];
    if (!source->mask.pixels)
        return;
    /* diffusers encodes the masked picture even if the UNet does not take it. Drawing the same
     * numbers here leaves the generator in the same state. */
    noise_draw(generator, s->masked, (int64_t)count);
    if (source_encodes(source, SOURCE_MASKED))
        sample_posterior(o, moments, s->masked, s->masked);
    shrink_mask(&source->mask, &o->shape, s->mask);
}

bool image_start_create(const struct image_start_options *options,
    struct noise_generator *generator, struct image_start *out, struct error *err) {
    const size_t count = elements(&options->shape);
    *out = (struct image_start){
        .sample = malloc(count * sizeof(float)),
        .init = malloc(count * sizeof(float)),
        .noise = malloc(count * sizeof(float)),
        .masked = malloc(count * sizeof(float)),
        .mask = malloc(count * sizeof(float)),
    };
    if (!out->sample || !out->init || !out->noise || !out->masked || !out->mask) {
        image_start_finish(out);
        return error_set(err, ERROR_NO_MEMORY, "no memory for an image's start");
    }
    draw_start(options, generator, out);
    return true;
}

void image_start_finish(struct image_start *start) {
    free(start->sample);
    free(start->init);
    free(start->noise);
    free(start->masked);
    free(start->mask);
    memset(start, 0, sizeof(*start));
}

/* --- blank pictures --- */

static bool blank_file(
    int width, int height, int value, struct picture_file *out, struct error *err) {
    struct picture picture = { 0 };
    uint8_t *bytes = NULL;
    bool ok = picture_create(width, height, 3, &picture, err);
    if (ok)
        memset(picture.pixels, value, (size_t)width * (size_t)height * 3);
    ok = ok && png_encode(picture.pixels, width, height, NULL, 0, &bytes, &out->size, err);
    if (ok)
        out->bytes = bytes;
    picture_finish(&picture);
    return ok;
}

bool source_fill_blank(struct generate_request *request, int width, int height, struct error *err) {
    return blank_file(width, height, 128, &request->init_image, err) &&
           blank_file(width, height, 255, &request->mask_image, err);
}
