/* Makes the start of an image from a picture in its request: image to image, and inpainting with a
 * mask. Works like diffusers' StableDiffusionImg2ImgPipeline and StableDiffusionInpaintPipeline.
 *
 * The picture is resized if the request asks for it, encoded by the VAE, and noised to the level of
 * the first step that is left after `strength` is applied. With a mask (white is drawn anew) there
 * are two ways. A UNet with 4 input channels draws the whole picture; after each step the part to
 * be kept is replaced by the given picture at that step's noise level. A UNet with 9 input channels
 * also takes the mask and the masked picture at every step. */
#ifndef ENGINE_RESOLVE_SOURCE_H
#define ENGINE_RESOLVE_SOURCE_H

#include "engine/request/request.h"
#include "engine/resolve/variation.h"
#include "pictures/picture.h"

/* The pictures of a request, in its size. Immutable. */
struct source {
    struct picture init; /* RGB; owned; with RESIZE_MODE_LATENT it has a size of its own */
    struct picture mask; /* one channel; 1: draw anew, 0: keep; no pixels: no mask was given */
    int64_t latent_height, latent_width; /* of the encoded pictures */
    enum masked_content content;         /* of the masked part's latents */
    bool inpaints;                       /* the UNet has 9 channels */
    bool from_noise; /* a mask with strength 1 and the picture's own latents: start from noise */
};

/* Reads the size of a picture file. ERROR_INVALID for the field `param` if it is not a picture, or
 * a side is longer than `most_px`. */
bool source_examine(const struct picture_file *file, const char *param, int most_px, int *width,
    int *height, struct error *err) __attribute__((warn_unused_result));

/* Decodes a picture file to RGB. ERROR_INVALID for the field `param` if the file is damaged. */
bool source_read(const struct picture_file *file, const char *param, struct picture *out,
    struct error *err) __attribute__((warn_unused_result));

/* Resizes a picture as the mode says; RESIZE_MODE_NONE resizes it as RESIZE_MODE_DEFAULT does. *out
 * is a new picture. */
bool source_resize(const struct picture *in, int width, int height, enum resize_mode mode,
    struct picture *out, struct error *err) __attribute__((warn_unused_result));

/* Decodes the request's pictures and resizes them to the request's size. With RESIZE_MODE_LATENT
 * the picture is only cut to multiples of `vae_scale`. ERROR_INVALID names the field. */
bool source_create(const struct generate_request *request, bool inpaints, int vae_scale,
    struct source **out, struct error *err) __attribute__((warn_unused_result));
void source_destroy(struct source *source); /* NULL is fine */

/* The pictures that the VAE may encode: init_image, and init_image with the part to be drawn anew
 * in grey. */
enum source_picture { SOURCE_INIT, SOURCE_MASKED, SOURCE_PICTURES };
bool source_encodes(const struct source *source, enum source_picture picture);
int source_encode_count(const struct source *source);
/* Returns the number of values of a picture's moments, for latents of `channels` channels. */
size_t source_moments(const struct source *source, int64_t channels);
/* Writes the picture as [height][width][3] of init_image's size, in -1..1. */
void source_fill(const struct source *source, enum source_picture picture, float *out);

/* The start of one image. All members are owned, [c][h][w] in torch's order, except mask: [h][w] of
 * 0 and 1. Members that the source does not need are undefined. */
struct image_start {
    float *sample;       /* the initial sample */
    float *init, *noise; /* latents of init_image; noise added to them */
    float *masked;       /* latents of the masked picture */
    float *mask;
};

/* moments: [h][w][2 c] per encoded picture, mean then log-variance, of source's latent size; shape:
 * of the latents that are drawn. If these differ, the latents of init_image are resized, as torch's
 * interpolate(mode="bilinear") and AUTOMATIC1111's "latent upscale" do. signal, noise: of the first
 * evaluation. init_noise_sigma: for a start from noise alone. image_start_create draws from
 * `generator` in diffusers' order. ERROR_NO_MEMORY. */
struct image_start_options {
    const struct source *source;
    const float *moments;
    struct latent_shape shape;
    struct noise_variation variation; /* of the noise that is added */
    float scaling_factor, signal, noise, init_noise_sigma;
};
bool image_start_create(const struct image_start_options *options,
    struct noise_generator *generator, struct image_start *out, struct error *err)
    __attribute__((warn_unused_result));
void image_start_finish(struct image_start *start); /* zeroed is fine */

/* Fills in a grey init_image and a white mask_image of the given size, for a checkpoint that needs
 * them. */
bool source_fill_blank(struct generate_request *request, int width, int height, struct error *err)
    __attribute__((warn_unused_result));

#endif
