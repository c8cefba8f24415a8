/* The texts of a request in the form that the text encoder takes: chunks of token ids, with a
 * weight for each token. */
#ifndef ENGINE_PROMPTS_TEXTS_H
#define ENGINE_PROMPTS_TEXTS_H

#include "engine/prompts/embeddings.h"
#include "engine/prompts/schedule.h"
#include "engine/request/request.h"
#include "kernels/dtype.h"
#include "models/tokenizer/tokenizer.h"

/* One text, as chunks that are encoded separately and then concatenated. Prompt editing and
 * alternation make several variants of it, of equal length. A zeroed struct is an empty text, and
 * text_finish accepts it. */
struct text {
    /* owned: [variants][chunks][tokens of a chunk]. An id from EMBEDDING_ID_FIRST on is a vector of
     * an embedding. NULL: the client sent the text encoded. */
    int32_t *ids;
    float *weights;       /* owned: shaped like ids; NULL: all are 1 */
    const float *encoded; /* borrowed: [tokens][width], if the client sent it encoded, or NULL */
    int chunks, tokens;   /* of a variant; tokens: in all its chunks together */
    int vectors;          /* number of ids that are vectors */
    int counted;          /* tokens of the longest variant: no marks, no padding; cut ones count */
    double guidance;      /* factor for the request's guidance_scale */
    int variants;         /* at least 1, unless the struct is zeroed */
    struct prompt_span *spans; /* owned, [span_count]: when each variant holds; NULL: always */
    int span_count;
};

void text_finish(struct text *text);

/* Returns the number of the variant that holds in an evaluation of the UNet. */
int text_variant_at(const struct text *text, int evaluation);
/* Returns variant number `variant` as a text of its own. Its members are borrowed. */
struct text text_variant(const struct text *text, int variant);

/* Arguments that all texts of a request share. All borrowed. */
struct text_options {
    const struct tokenizer *tokenizer;
    const struct embedding_set *embeddings; /* NULL: none */
    int context_length;                     /* of a chunk, with its begin and end marks */
    enum prompt_syntax syntax;
    enum long_prompt long_prompt;
    int evaluations; /* of the UNet in a full drawing, at least 1; edits of a prompt count them */
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

/* Makes the texts of `string`, the value of the field `param`, and appends them to the list *texts,
 * [*count]. There is one text, or one for each part that AND joins. ERROR_INVALID names the field;
 * the list may then have grown, and the caller finishes what is in it in any case. */
bool texts_append(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text **texts, int *count, struct text_extras *extras, struct error *err)
    __attribute__((warn_unused_result));

/* How much of the text encoder's room a text takes: the longest part that AND joins, in its longest
 * variant. Zeroed is fine. */
struct text_count {
    int tokens;       /* without marks and padding; those that are cut off count */
    int chunks;       /* that are encoded */
    int chunk_tokens; /* that a chunk has room for: 75 */
    char *cut;        /* owned: the text that is cut off; NULL: none */
};

void text_count_finish(struct text_count *count);

/* Counts the tokens of `string`, the value of the field `param`, as texts_append takes it.
 * ERROR_INVALID where texts_append refuses it. The caller finishes *out on success. */
bool text_count(const struct text_options *options, const char *param, const char *string,
    bool negative, struct text_count *out, struct error *err) __attribute__((warn_unused_result));

/* Applies weights to an encoded text, [chunks][tokens][width]. Multiplies each token by its weight,
 * then each chunk by the factor that restores the chunk's mean. `to` may be `from`. Fails if no
 * finite factor exists. */
bool text_weigh(const float *weights, int64_t chunks, int64_t tokens, int64_t width,
    enum dtype dtype, const void *from, void *to, struct error *err)
    __attribute__((warn_unused_result));

#endif
