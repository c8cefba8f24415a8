/* Tokens that are found as whole strings in the text, before anything else cuts it: begin, end,
 * padding, and whatever a tokenizer.json adds. */
#ifndef MODELS_TOKENIZER_TOKENIZER_SPECIAL_H
#define MODELS_TOKENIZER_TOKENIZER_SPECIAL_H

#include "models/tokenizer/tokenizer_vocab.h"

struct special_token {
    char *content; /* owned; what is looked for: normalised itself if `normalized` */
    size_t length;
    int32_t id;
    /* Looked for after normalisation (so in any case), else in the text as typed. */
    bool normalized;
};

struct special_tokens {
    struct special_token *items; /* owned */
    size_t count;
    int32_t begin, end, pad, unknown; /* ids */
};

/* From tokenizer_config.json, special_tokens_map.json and tokenizer.json's added_tokens; each may
 * be NULL. Ids beyond the vocabulary join it. */
bool special_tokens_init(struct special_tokens *special, const json_t *config, const json_t *map,
    const json_t *added_tokens, struct vocab *vocab, struct error *err)
    __attribute__((warn_unused_result));
/* The same with the first two read from `dir`, as far as they exist. */
bool special_tokens_read(struct special_tokens *special, const char *dir,
    const json_t *added_tokens, struct vocab *vocab, struct error *err)
    __attribute__((warn_unused_result));
void special_tokens_finish(struct special_tokens *special); /* a zeroed one is fine */

/* The first token of this kind at or after text[0], the longest of those that start there; NULL if
 * there is none. *offset is where it starts. */
const struct special_token *special_tokens_find(const struct special_tokens *special,
    bool normalized, const char *text, size_t size, size_t *offset);

#endif
