/* The texts of a request as the text encoder takes them: chunks of token ids, and what multiplies
 * what it makes of each token. */
#ifndef ENGINE_PROMPTS_TEXTS_H
#define ENGINE_PROMPTS_TEXTS_H

#include "engine/prompts/embeddings.h"
#include "engine/request.h"
#include "kernels/dtype.h"
#include "models/tokenizer/tokenizer.h"

/* One text: chunks that are encoded one by one and lie behind each other. Zeroed is fine. */
struct text {
    /* owned: [chunks][tokens of a chunk]; those from EMBEDDING_ID_FIRST on are vectors of the
     * request's embeddings. NULL: it came encoded. */
    int32_t *ids;
    float *weights;       /* owned: like ids; NULL: all are 1 */
    const float *encoded; /* borrowed: [tokens][width], if it came so, else NULL */
    int chunks, tokens;   /* tokens: of all chunks */
    int vectors;          /* of the ids */
    double guidance;      /* what the request's guidance_scale is multiplied with for it */
};

void text_finish(struct text *text);

/* What texts are made of; borrowed. */
struct text_options {
    const struct tokenizer *tokenizer;
    const struct embedding_set *embeddings; /* NULL: none */
    int context_length;                     /* of a chunk, its begin and end marks included */
    enum prompt_syntax syntax;
    enum long_prompt long_prompt;
};

/* What there was beside the text. Zeroed before; the caller finishes it in any case. */
struct text_extras {
    struct lora_choice *tags; /* owned, tag_count of them */
    int tag_count;
    char *warning; /* owned; NULL: none */
};

void text_extras_finish(struct text_extras *extras);

/* `param` is the field that `string` comes from. ERROR_INVALID names it. */
bool text_create(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text *out, struct text_extras *extras, struct error *err)
    __attribute__((warn_unused_result));

/* What the text encoder made of a text, [chunks][tokens][width], with its weights: each token times
 * its own, then each chunk times what gives it the mean that it had. `to` may be `from`. False if
 * there is nothing that does. */
bool text_weigh(const float *weights, int64_t chunks, int64_t tokens, int64_t width,
    enum dtype dtype, const void *from, void *to, struct error *err)
    __attribute__((warn_unused_result));

#endif
