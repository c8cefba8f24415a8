/* The start of an image whose request brings a picture: image to image, and inpainting with a mask,
 * as in diffusers' StableDiffusionImg2ImgPipeline and StableDiffusionInpaintPipeline.
 *
 * The picture is resized if the request asks for it, encoded by the VAE, and noised to the level of
 * the first step that strength leaves. With a mask (white is drawn anew) the number of the UNet's
 * channels decides. With 4 channels it draws the whole picture, and after each step the masked-out
 * part is replaced by the picture at that step's noise level. With 9 channels it sees the mask and
 * the masked picture at every step. */
#ifndef ENGINE_RESOLVE_SOURCE_H
#define ENGINE_RESOLVE_SOURCE_H

#include "engine/request/request.h"
#include "kernels/random/noise.h"
#include "pictures/picture.h"

/* Read-only once it is made. Both pictures have the size to be drawn. */
struct source {
    struct picture init; /* RGB; owned */
    struct picture mask; /* one channel of 0 and 1, 1 is drawn anew; no pixels: no mask is given */
    bool inpaints;       /* the UNet has 9 channels */
    bool from_noise;     /* inpainting at strength 1: starts from noise alone */
};

/* Reads the size of a picture file. ERROR_INVALID for the field `param` if it is not a picture, or
 * a side is longer than `most_px`. */
bool source_examine(const struct picture_file *file, const char *param, int most_px, int *width,
    int *height, struct error *err) __attribute__((warn_unused_result));

/* Decodes it to RGB. ERROR_INVALID for the field `param` if the file is damaged. */
bool source_read(const struct picture_file *file, const char *param, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* Decodes the request's pictures and resizes them to its size. ERROR_INVALID names the field. */
bool source_create(const struct generate_request *request, bool inpaints, struct source **out,
    struct error *err) __attribute__((warn_unused_result));
void source_destroy(struct source *source); /* NULL is fine */

/* The pictures the VAE may encode: the one given, and the one with the part to be drawn anew greyed
 * out. */
enum source_picture { SOURCE_INIT, SOURCE_MASKED, SOURCE_PICTURES };
bool source_encodes(const struct source *source, enum source_picture picture);
int source_encode_count(const struct source *source);
/* [height][width][3] in -1..1. */
void source_fill(const struct source *source, enum source_picture picture, float *out);

/* Shape of the latents of one picture. */
struct latent_shape {
    int64_t channels, height, width;
};

/* What one image starts from, in torch's order: [c][h][w], except the mask's [h][w] of 0 and 1.
 * Owned. Members that the source does not use are undefined. */
struct image_start {
    float *sample;       /* the initial one */
    float *init, *noise; /* latents of the picture, and the noise added to them */
    float *masked;       /* latents of the masked picture */
    float *mask;
};

/* `moments`: one [h][w][2 c] per encoded picture: mean, then log-variance. signal, noise: of the
 * first evaluation. init_noise_sigma: for a start from noise. image_start_create draws from
 * `generator` in diffusers' order. ERROR_NO_MEMORY. */
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

/* Fills in a grey picture and a white mask of that size, for a checkpoint that cannot draw without
 * them. */
bool source_fill_blank(struct generate_request *request, int width, int height, struct error *err)
    __attribute__((warn_unused_result));

#endif
