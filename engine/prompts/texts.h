/* The texts of a request in the form that the text encoder takes: chunks of token ids, with a
 * weight for each token. */
#ifndef ENGINE_PROMPTS_TEXTS_H
#define ENGINE_PROMPTS_TEXTS_H

#include "engine/prompts/embeddings.h"
#include "engine/request/request.h"
#include "kernels/dtype.h"
#include "models/tokenizer/tokenizer.h"

/* One text, as chunks that are encoded separately and then concatenated. A zeroed struct is an
 * empty text, and text_finish accepts it. */
struct text {
    /* owned: [chunks][tokens of a chunk]. An id from EMBEDDING_ID_FIRST on is a vector of an
     * embedding. NULL: the client sent the text encoded. */
    int32_t *ids;
    float *weights;       /* owned: shaped like ids; NULL: all are 1 */
    const float *encoded; /* borrowed: [tokens][width], if the client sent it encoded, or NULL */
    int chunks, tokens;   /* tokens: in all chunks together */
    int vectors;          /* number of ids that are vectors */
    int counted;          /* tokens of the string itself: no marks, no padding; cut ones count */
    double guidance;      /* factor for the request's guidance_scale */
};

void text_finish(struct text *text);

/* Arguments that all texts of a request share. All borrowed. */
struct text_options {
    const struct tokenizer *tokenizer;
    const struct embedding_set *embeddings; /* NULL: none */
    int context_length;                     /* of a chunk, with its begin and end marks */
    enum prompt_syntax syntax;
    enum long_prompt long_prompt;
};

/* The parts of a text that are not words. The caller zeroes it before the call and finishes it in
 * any case. */
struct text_extras {
    struct lora_choice *tags; /* owned, [tag_count] */
    int tag_count;
    char *warning; /* owned; NULL: no warning */
    char *cut;     /* owned: the text that was cut off; NULL: none was */
};

void text_extras_finish(struct text_extras *extras);

/* Makes a text from `string`, the value of the field `param`. ERROR_INVALID names that field. */
bool text_create(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text *out, struct text_extras *extras, struct error *err)
    __attribute__((warn_unused_result));

/* How much of the text encoder's room a text takes. Zeroed is fine. */
struct text_count {
    int tokens;       /* of the string itself: no marks, no padding; those that are cut off count */
    int chunks;       /* that are encoded */
    int chunk_tokens; /* that a chunk has room for: 75 */
    char *cut;        /* owned: the text that is cut off; NULL: none */
};

void text_count_finish(struct text_count *count);

/* Counts the tokens of `string`, the value of the field `param`, as text_create takes it.
 * ERROR_INVALID where text_create refuses it. The caller finishes *out on success. */
bool text_count(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text_count *out, struct error *err) __attribute__((warn_unused_result));

/* Applies weights to an encoded text, [chunks][tokens][width]. Multiplies each token by its weight,
 * then each chunk by the factor that restores the chunk's mean. `to` may be `from`. Fails if no
 * finite factor exists. */
bool text_weigh(const float *weights, int64_t chunks, int64_t tokens, int64_t width,
    enum dtype dtype, const void *from, void *to, struct error *err)
    __attribute__((warn_unused_result));

#endif
