/* Encodes a text and applies its weights. */
#ifndef ENGINE_PROMPTS_ENCODE_H
#define ENGINE_PROMPTS_ENCODE_H

#include "engine/prompts/texts.h"
#include "kernels/compute/overlay.h"
#include "models/text_encoder.h"

/* All members are borrowed. */
struct text_encoding {
    const struct text_encoder *encoder;
    const struct text *text;
    const struct embedding_set *embeddings; /* for the vectors in the text; NULL: none */
    bool vectors;                           /* for a dry run: reserve memory for vectors */
    int length;                             /* of a chunk */
    int clip_skip;
    const struct row_overlay *overlay; /* of the text encoder; NULL: none */
};

/* context: [1][the text's tokens][hidden], in the text encoder's activation dtype. In a dry run it
 * may be longer than the text. */
void text_encode(
    struct compute *c, const struct text_encoding *encoding, const struct tensor *context);

#endif
