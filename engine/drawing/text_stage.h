/* Gives images the texts that hold in their next evaluation. Prompt editing and alternation change
 * a text between evaluations; then its new variant is taken from the cache, or encoded. */
#ifndef ENGINE_DRAWING_TEXT_STAGE_H
#define ENGINE_DRAWING_TEXT_STAGE_H

#include "engine/drawing/sampler.h"
#include "engine/drawing/text_cache.h"
#include "engine/resolve/resolve.h"
#include "models/text_encoder.h"

/* All members are borrowed. */
struct text_stage {
    const struct text_encoder *encoder;
    const struct unet *unet;
    struct text_cache *cache; /* NULL: nothing is cached */
};

/* Returns text number `text` of image `index` of the request: 0 is the unconditional text (the
 * negative prompt or ""), then come the parts of its prompt. */
const struct text *text_stage_text(const struct resolved_request *r, int index, int text);

/* Whether the image's next evaluation has texts that text_stage_encode has not given it yet. */
bool text_stage_is_due(const struct resolved_request *r, int index, const struct image *image);

/* Computes the UNet's keys and values for the texts of the image's next evaluation, unless it has
 * them, and waits until they are computed. `like` is another image of the same request and prompt
 * in the same sampler, or NULL; keys and values that it has are copied. Takes the memory of one
 * text from c's arena. */
void text_stage_encode(struct compute *c, const struct text_stage *stage,
    const struct resolved_request *r, int index, struct image *image, const struct image *like);

#endif
