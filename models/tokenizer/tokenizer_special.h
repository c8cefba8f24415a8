/* Tokens that are found as whole strings in the text before it is split in other ways: begin, end,
 * padding, and the added tokens of a tokenizer.json. */
#ifndef MODELS_TOKENIZER_TOKENIZER_SPECIAL_H
#define MODELS_TOKENIZER_TOKENIZER_SPECIAL_H

#include "models/tokenizer/tokenizer_vocab.h"

struct special_token {
    char *content; /* owned; the string to search, normalised if `normalized` */
    size_t length;
    int32_t id;
    /* Search in the normalised text, so in any case; false: in the text as typed. */
    bool normalized;
};

struct special_tokens {
    struct special_token *items; /* owned */
    size_t count;
    int32_t begin, end, pad, unknown; /* ids */
};

/* Reads the tokens from tokenizer_config.json, special_tokens_map.json and tokenizer.json's
 * added_tokens; each may be NULL. Tokens with ids beyond the vocabulary are added to it. */
bool special_tokens_init(struct special_tokens *special, const json_t *config, const json_t *map,
    const json_t *added_tokens, struct vocab *vocab, struct error *err)
    __attribute__((warn_unused_result));
/* Does what special_tokens_init does, after reading `config` and `map` from the files in `dir`, if
 * they exist. */
bool special_tokens_read(struct special_tokens *special, const char *dir,
    const json_t *added_tokens, struct vocab *vocab, struct error *err)
    __attribute__((warn_unused_result));
void special_tokens_finish(struct special_tokens *special); /* a zeroed one is fine */

/* Finds the first token of this kind (`normalized` or not) in the text; if several start there, the
 * longest. Returns NULL if there is none. *offset is where it starts. */
const struct special_token *special_tokens_find(const struct special_tokens *special,
    bool normalized, const char *text, size_t size, size_t *offset);

#endif
