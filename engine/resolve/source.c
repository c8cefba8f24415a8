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

/* Cuts sides that are no multiples of `multiple`, as the VAE's encoder does. In place. */
static bool cut(struct picture *picture, int multiple, struct error *err) {
    const int width = picture->width / multiple * multiple;
    const int height = picture->height / multiple * multiple;
    struct picture out;
    if (width == picture->width && height == picture->height)
        return true;
    if (!picture_create(width, height, picture->channels, &out, err))
        return false;
    const size_t to = (size_t)width * (size_t)picture->channels;
    const size_t from = (size_t)picture->width * (size_t)picture->channels;
    for (size_t y = 0; y < (size_t)height; y++)
        memcpy(out.pixels + y * to, picture->pixels + y * from, to);
    picture_finish(picture);
    *picture = out;
    return true;
}

/* Resizes the picture to the request's size, in place. */
static bool fit(
    struct picture *picture, const struct generate_request *request, struct error *err) {
    struct picture out = { 0 };
    if (picture->width == request->width && picture->height == request->height)
        return true;
    if (!source_resize(picture, request->width, request->height, request->resize_mode, &out, err)) {
        picture_finish(&out);
        return false;
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

bool source_create(const struct generate_request *request, bool inpaints, int vae_scale,
    struct source **out, struct error *err) {
    struct source *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "no memory for init_image");
    s->inpaints = inpaints;
    s->content = request->masked_content;
    s->from_noise = request->mask_image.bytes && request->strength == 1 &&
                    s->content == MASKED_ORIGINAL;
    const bool has_mask = request->mask_image.bytes;
    const bool keeps_size = request->resize_mode == RESIZE_MODE_LATENT;
    if (source_read(&request->init_image, param_of(SOURCE_INIT), &s->init, err) &&
        (!has_mask || read_mask(request, &s->mask, err)) && check_sizes(s, request, err) &&
        (keeps_size ? cut(&s->init, vae_scale, err) : fit(&s->init, request, err)) &&
        (!has_mask || (fit(&s->mask, request, err) && make_mask(&s->mask, err)))) {
        s->latent_height = s->init.height / vae_scale;
        s->latent_width = s->init.width / vae_scale;
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

size_t source_moments(const struct source *source, int64_t channels) {
    return 2 * (size_t)(channels * source->latent_height * source->latent_width);
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
 * log-variance is limited to -30..20 as in diffusers. In place: `latents` holds the noise. */
static void sample_posterior(
    const struct image_start_options *o, const float *moments, float *latents) {
    const size_t channels = (size_t)o->shape.channels;
    const size_t pixels = (size_t)(o->source->latent_height * o->source->latent_width);
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < pixels; i++) {
            const float mean = moments[2 * channels * i + c];
            const float log_variance = moments[2 * channels * i + channels + c];
            const float std = expf(0.5f * fminf(fmaxf(log_variance, -30), 20));
            const size_t at = c * pixels + i;
            latents[at] = o->scaling_factor * (mean + std * latents[at]);
        }
}

/* A position between two values of a line, as torch's interpolate has it without align_corners. */
struct between {
    int64_t first, second;
    float share; /* of the second */
};

static struct between place_between(int64_t i, int64_t from, int64_t to) {
    const float at = fmaxf(((float)i + 0.5f) * ((float)from / (float)to) - 0.5f, 0);
    const int64_t first = (int64_t)at < from - 1 ? (int64_t)at : from - 1;
    return (struct between){ first, first + (first < from - 1), at - (float)first };
}

/* Resizes [c][h][w] bilinearly. */
static void resize_latents(const float *from, int64_t from_height, int64_t from_width,
    const struct latent_shape *to, float *out) {
    for (int64_t c = 0; c < to->channels; c++)
        for (int64_t i = 0; i < to->height; i++) {
            const struct between y = place_between(i, from_height, to->height);
            const float *above = from + (c * from_height + y.first) * from_width;
            const float *below = from + (c * from_height + y.second) * from_width;
            for (int64_t k = 0; k < to->width; k++) {
                const struct between x = place_between(k, from_width, to->width);
                const float a = (1 - x.share) * above[x.first] + x.share * above[x.second];
                const float b = (1 - x.share) * below[x.first] + x.share * below[x.second];
                *out++ = (1 - y.share) * a + y.share * b;
            }
        }
}

/* Samples the latents of init_image, in the size of those that are drawn. */
static bool draw_init(const struct image_start_options *o, struct noise_generator *generator,
    float *out, struct error *err) {
    const int64_t height = o->source->latent_height, width = o->source->latent_width;
    const size_t count = (size_t)(o->shape.channels * height * width);
    const bool resized = height != o->shape.height || width != o->shape.width;
    float *latents = resized ? malloc(count * sizeof(*latents)) : out;
    if (!latents)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the latents of init_image");
    noise_draw(generator, latents, (int64_t)count);
    sample_posterior(o, o->moments, latents);
    if (resized) {
        resize_latents(latents, height, width, &o->shape, out);
        free(latents);
    }
    return true;
}

/* Replaces the masked part of the picture's latents, as AUTOMATIC1111's inpainting_fill does. */
static void fill_masked(const struct image_start_options *o, struct image_start *s) {
    const size_t pixels = (size_t)(o->shape.height * o->shape.width);
    for (size_t i = 0; i < elements(&o->shape); i++)
        if (s->mask[i % pixels] != 0)
            s->init[i] = o->source->content == MASKED_NOISE ? s->noise[i] : 0;
}

/* Nearest-neighbour resize as torch's interpolate: takes the pixel at floor(i * scale). */
static void shrink_mask(const struct picture *mask, const struct latent_shape *shape, float *out) {
    const int64_t step_y = mask->height / shape->height, step_x = mask->width / shape->width;
    for (int64_t y = 0; y < shape->height; y++)
        for (int64_t x = 0; x < shape->width; x++)
            out[y * shape->width + x] = mask->pixels[y * step_y * mask->width + x * step_x];
}

static bool draw_start(const struct image_start_options *o, struct noise_generator *generator,
    struct image_start *s, struct error *err) {
    const struct source *source = o->source;
    const size_t count = elements(&o->shape);
    if (source_encodes(source, SOURCE_INIT) && !draw_init(o, generator, s->init, err))
        return false;
    noise_draw(generator, s->noise, (int64_t)count);
    if (source->mask.pixels)
        shrink_mask(&source->mask, &o->shape, s->mask);
    if (source->content != MASKED_ORIGINAL)
        fill_masked(o, s);
    if (!noise_vary(&o->variation, &o->shape, s->noise, err))
        return false;
    for (size_t i = 0; i < count; i++)
        s->sample[i] = source->from_noise ? o->init_noise_sigma * s->noise[i]
                                          : o->signal * s->init[i] + o->noise * s->noise[i];
    if (!source->mask.pixels)
        return true;
    /* diffusers encodes the masked picture even if the UNet does not take it. Drawing the same
     * numbers here leaves the generator in the same state. */
    noise_draw(generator, s->masked, (int64_t)count);
    if (source_encodes(source, SOURCE_MASKED))
        sample_posterior(
            o, o->moments + (source_encodes(source, SOURCE_INIT) ? 2 * count : 0), s->masked);
    return true;
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
    if (draw_start(options, generator, out, err))
        return true;
    image_start_finish(out);
    return false;
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
