#include "server/generation/preview.h"

#include "pictures/encode.h"

#include <stdlib.h>
#include <string.h>

/* Optimised for size, not quality: a preview is seen for a second. */
#define PREVIEW_QUALITY 80

struct preview *preview_create(const struct studio_preview *picture) {
    const struct picture_encoding encoding = { .format = PICTURE_JPEG, .quality = PREVIEW_QUALITY };
    struct error ignored;
    uint8_t *file;
    size_t size;
    if (!picture_encode(
            picture->pixels, picture->width, picture->height, &encoding, &file, &size, &ignored))
        return NULL;
    struct preview *preview = malloc(sizeof(*preview) + size);
    if (preview) {
        *preview = (struct preview){ .references = 1,
            .image = picture->image,
            .step = picture->step,
            .steps = picture->steps,
            .width = picture->width,
            .height = picture->height,
            .size = size };
        memcpy(preview->jpeg, file, size);
    }
    free(file);
    return preview;
}

void preview_ref(struct preview *preview) {
    __atomic_add_fetch(&preview->references, 1, __ATOMIC_RELAXED);
}

void preview_unref(struct preview *preview) {
    if (preview && __atomic_sub_fetch(&preview->references, 1, __ATOMIC_ACQ_REL) == 0)
        free(preview);
}
