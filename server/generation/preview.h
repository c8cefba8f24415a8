/* A preview: what an image would look like if its drawing ended now. */
#ifndef SERVER_GENERATION_PREVIEW_H
#define SERVER_GENERATION_PREVIEW_H

#include "engine/drawing/studio.h"

#include <stddef.h>
#include <stdint.h>

/* PREVIEW_RGB maps latents to colours linearly, at the latents' size, and costs almost nothing.
 * PREVIEW_VAE decodes with the VAE, at the image's size, and takes as long as a decode. */
enum preview_kind { PREVIEW_RGB, PREVIEW_VAE };

/* A JPEG file. Immutable, shared by references. */
struct preview {
    int references;  /* atomic */
    int image;       /* index within its request */
    int step, steps; /* UNet evaluations of this image: done, and in total */
    int width, height;
    uint64_t number; /* from 1, in the order of being made */
    size_t size;
    uint8_t jpeg[];
};

/* Returns a preview with one reference; NULL if it cannot be encoded. */
struct preview *preview_create(const struct studio_preview *picture);
void preview_ref(struct preview *preview);
void preview_unref(struct preview *preview); /* NULL is fine */

#endif
