/* The texts of a request in the form that the text encoder takes: chunks of token ids, and a weight
 * for each encoded token. */
#ifndef ENGINE_PROMPTS_TEXTS_H
#define ENGINE_PROMPTS_TEXTS_H

#include "engine/prompts/embeddings.h"
#include "engine/request/request.h"
#include "kernels/dtype.h"
#include "models/tokenizer/tokenizer.h"

/* One text: chunks that are encoded one by one and concatenated. Zeroed is fine. */
struct text {
    /* owned: [chunks][tokens of a chunk]; ids from EMBEDDING_ID_FIRST on are vectors of the
     * request's embeddings. NULL: the text came encoded. */
    int32_t *ids;
    float *weights;       /* owned: like ids; NULL: all are 1 */
    const float *encoded; /* borrowed: [tokens][width], if the text came encoded, else NULL */
    int chunks, tokens;   /* tokens: of all chunks */
    int vectors;          /* how many of the ids are vectors */
    double guidance;      /* this text's factor for the request's guidance_scale */
};

void text_finish(struct text *text);

/* What is needed to make texts; borrowed. */
struct text_options {
    const struct tokenizer *tokenizer;
    const struct embedding_set *embeddings; /* NULL: none */
    int context_length;                     /* of a chunk, including its begin and end marks */
    enum prompt_syntax syntax;
    enum long_prompt long_prompt;
};

/* What a text contained besides its words. Zeroed before the call; the caller finishes it in any
 * case. */
struct text_extras {
    struct lora_choice *tags; /* owned, tag_count of them */
    int tag_count;
    char *warning; /* owned; NULL: none */
};

void text_extras_finish(struct text_extras *extras);

/* Makes a text of `string`, the value of the field `param`, which ERROR_INVALID names. */
bool text_create(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text *out, struct text_extras *extras, struct error *err)
    __attribute__((warn_unused_result));

/* Applies weights to an encoded text, [chunks][tokens][width]: multiplies each token by its weight,
 * then each chunk by the factor that restores its mean. `to` may be `from`. Fails if no factor
 * does. */
bool text_weigh(const float *weights, int64_t chunks, int64_t tokens, int64_t width,
    enum dtype dtype, const void *from, void *to, struct error *err)
    __attribute__((warn_unused_result));

#endif
