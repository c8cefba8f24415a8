/* Tokens that are found as whole strings in the text, before it is cut in any other way: begin,
 * end, padding, and those that a tokenizer.json adds. */
#ifndef MODELS_TOKENIZER_TOKENIZER_SPECIAL_H
#define MODELS_TOKENIZER_TOKENIZER_SPECIAL_H

#include "models/tokenizer/tokenizer_vocab.h"

struct special_token {
    char *content; /* owned; the string searched for, normalised if `normalized` */
    size_t length;
    int32_t id;
    /* Search the normalised text (so in any case); else the text as typed. */
    bool normalized;
};

struct special_tokens {
    struct special_token *items; /* owned */
    size_t count;
    int32_t begin, end, pad, unknown; /* ids */
};

/* Reads them from tokenizer_config.json, special_tokens_map.json and tokenizer.json's added_tokens;
 * each may be NULL. Ids beyond the vocabulary are added to it. */
bool special_tokens_init(struct special_tokens *special, const json_t *config, const json_t *map,
    const json_t *added_tokens, struct vocab *vocab, struct error *err)
    __attribute__((warn_unused_result));
/* The same, reading the first two from `dir` if they exist. */
bool special_tokens_read(struct special_tokens *special, const char *dir,
    const json_t *added_tokens, struct vocab *vocab, struct error *err)
    __attribute__((warn_unused_result));
void special_tokens_finish(struct special_tokens *special); /* a zeroed one is fine */

/* Finds the first token of this kind (`normalized` or not) in the text, the longest of those that
 * start there, or NULL. *offset is where it starts. */
const struct special_token *special_tokens_find(const struct special_tokens *special,
    bool normalized, const char *text, size_t size, size_t *offset);

#endif
