/* A picture on the way to its picture: what an image's latents would look like if it ended now. */
#ifndef SERVER_GENERATION_PREVIEW_H
#define SERVER_GENERATION_PREVIEW_H

#include "engine/studio.h"

#include <stddef.h>
#include <stdint.h>

/* By a linear map from latents to colours, at the latents' size, which costs next to nothing; or by
 * the VAE, at the picture's, which takes as long as a decode. */
enum preview_kind { PREVIEW_RGB, PREVIEW_VAE };

/* A JPEG file. Constant, and shared by references. */
struct preview {
    int references;  /* atomic */
    int image;       /* of its request */
    int step, steps; /* evaluations of this image, done and in all */
    int width, height;
    uint64_t number; /* of the generation's previews, from 1 */
    size_t size;
    uint8_t jpeg[];
};

/* With one reference; NULL if it cannot be encoded. */
struct preview *preview_create(const struct studio_preview *picture);
void preview_ref(struct preview *preview);
void preview_unref(struct preview *preview); /* NULL is fine */

#endif
