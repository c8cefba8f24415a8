/* A byte-pair vocabulary: tokens with their ids, and the pairs that merge, in order. */
#ifndef MODELS_TOKENIZER_TOKENIZER_VOCAB_H
#define MODELS_TOKENIZER_TOKENIZER_VOCAB_H

#include "base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct vocab_merge {
    int32_t left, right, merged, rank; /* left is -1 in an empty slot */
};

#define VOCAB_WORD_END "</w>" /* suffix of every token that ends a word */

struct vocab {
    char **tokens;  /* owned: [count]; NULL: the id is not in use */
    size_t count;   /* highest id + 1 */
    int32_t *slots; /* owned: open addressing over tokens; -1: empty */
    size_t slot_count;
    struct vocab_merge *merges; /* owned: open addressing over (left, right) */
    size_t merge_slot_count;
};

/* Makes room for the ids 0 .. count - 1, none of them in use yet. */
bool vocab_alloc(struct vocab *vocab, size_t count, struct error *err)
    __attribute__((warn_unused_result));
/* Fills the vocabulary from tokens: {"token": id, ...} with ids below TOKENIZER_MAX_TOKENS, each
 * used once. */
bool vocab_init(struct vocab *vocab, const json_t *tokens, struct error *err)
    __attribute__((warn_unused_result));
void vocab_finish(struct vocab *vocab); /* a zeroed one is fine */

/* Adds a token with its own id (an added token beyond the vocabulary). */
bool vocab_add(struct vocab *vocab, const char *token, int32_t id, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the id of a token, or -1. */
int32_t vocab_find(const struct vocab *vocab, const char *bytes, size_t length);

/* Reads merges.txt: a "#version" line, then one "LEFT RIGHT" per line, best first. */
bool vocab_set_merges_text(struct vocab *vocab, const char *text, struct error *err)
    __attribute__((warn_unused_result));
/* Reads tokenizer.json's model.merges: ["LEFT RIGHT", ...] or [["LEFT", "RIGHT"], ...]. */
bool vocab_set_merges_json(struct vocab *vocab, const json_t *merges, struct error *err)
    __attribute__((warn_unused_result));

/* Writes GPT-2's printable symbols for bytes, as Unicode characters below VOCAB_BYTE_SYMBOLS_END:
 * the byte itself, or U+0100 and up for the 68 bytes that are not printable. */
#define VOCAB_BYTE_SYMBOLS_END 0x144
void vocab_byte_symbols(int32_t symbols[256]);

/* Returns the merge of a pair, or NULL if the pair does not merge. */
const struct vocab_merge *vocab_find_merge(const struct vocab *vocab, int32_t left, int32_t right);

#endif
