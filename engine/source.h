/* What an image begins with where its request brings a picture: image to image, and inpainting with
 * a mask, as diffusers' StableDiffusionImg2ImgPipeline and StableDiffusionInpaintPipeline do it.
 *
 * The picture is resized if the request says so, encoded by the VAE, and noised to the level of the
 * first step that strength leaves. With a mask (white is drawn anew) there are two ways, which the
 * UNet's channels decide: one of 4 channels draws all of the picture, and after each step what is
 * masked out is replaced by the picture at that step's noise; one of 9 is shown mask and masked
 * picture at every step.
 */
#ifndef ENGINE_SOURCE_H
#define ENGINE_SOURCE_H

#include "engine/request.h"
#include "kernels/noise.h"
#include "pictures/picture.h"

/* Read-only once it is made. Both pictures have the size that is drawn. */
struct source {
    struct picture init; /* RGB; owned */
    struct picture mask; /* one channel of 0 and 1, 1 is drawn anew; no pixels: none is given */
    bool inpaints;       /* by a UNet of 9 channels */
    bool from_noise;     /* at strength 1 inpainting begins with noise alone */
};

/* The size of a picture file in *width and *height; ERROR_INVALID for the field `param`, for what
 * is no picture, or has a side above `most_px`. */
bool source_examine(const struct picture_file *file, const char *param, int most_px, int *width,
    int *height, struct error *err) __attribute__((warn_unused_result));

/* Its pixels, RGB; ERROR_INVALID likewise, where the file is damaged. */
bool source_read(const struct picture_file *file, const char *param, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* The pictures of a request that has some, to the request's size. ERROR_INVALID names the field. */
bool source_create(const struct generate_request *request, bool inpaints, struct source **out,
    struct error *err) __attribute__((warn_unused_result));
void source_destroy(struct source *source); /* NULL is fine */

/* Which pictures the VAE encodes: the one given, and that one without what is drawn anew. */
enum source_picture { SOURCE_INIT, SOURCE_MASKED, SOURCE_PICTURES };
bool source_encodes(const struct source *source, enum source_picture picture);
int source_encode_count(const struct source *source);
/* [height][width][3] in -1..1. */
void source_fill(const struct source *source, enum source_picture picture, float *out);

/* Of latents of one picture. */
struct latent_shape {
    int64_t channels, height, width;
};

/* What one image starts from, in torch's order: [c][h][w], but for the mask's [h][w] of 0 and 1.
 * Owned. What its source has no use for holds anything. */
struct image_start {
    float *sample;       /* the first one */
    float *init, *noise; /* of the picture, and what noises it */
    float *masked;       /* of the masked picture */
    float *mask;
};

/* `moments`: of the pictures that are encoded, one after the other, [h][w][2 c] each: mean, then
 * log-variance. Draws from `generator` in diffusers' order. signal, noise: of the first evaluation;
 * init_noise_sigma: for a start from noise. ERROR_NO_MEMORY. */
struct image_start_options {
    const struct source *source;
    const float *moments;
    struct latent_shape shape;
    float scaling_factor, signal, noise, init_noise_sigma;
};
bool image_start_create(const struct image_start_options *options,
    struct noise_generator *generator, struct image_start *out, struct error *err)
    __attribute__((warn_unused_result));
void image_start_finish(struct image_start *start); /* zeroed is fine */

/* A grey picture and a white mask of that size, for a checkpoint that cannot draw without. */
bool source_fill_blank(struct generate_request *request, int width, int height, struct error *err)
    __attribute__((warn_unused_result));

#endif
