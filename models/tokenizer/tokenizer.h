/* CLIP's byte-pair encoding, as in transformers' fast CLIPTokenizer.
 *
 * Text -> NFC -> runs of white space to one space -> lower case -> pieces (PCRE2, Unicode
 * properties) -> byte symbols -> merges by rank -> ids. The vocabulary is the checkpoint's own
 * (vocab.json + merges.txt, or tokenizer.json), or CLIP's published one, which is built into the
 * program. Immutable after creation, safe from any thread.
 */
#ifndef MODELS_TOKENIZER_TOKENIZER_H
#define MODELS_TOKENIZER_TOKENIZER_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;

/* Reads the tokenizer in folder `dir`. */
bool tokenizer_create(const char *dir, struct tokenizer **out, struct error *err)
    __attribute__((warn_unused_result));
/* CLIP's own vocabulary of 49,408 tokens. */
#define CLIP_VOCAB_SIZE 49408
enum clip_padding {
    CLIP_PADS_WITH_END, /* SD-1.x, like CLIP itself */
    CLIP_PADS_WITH_0,   /* SD-2.x: "!", the token 0 */
};
bool tokenizer_create_clip(enum clip_padding padding, struct tokenizer **out, struct error *err)
    __attribute__((warn_unused_result));
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine */

/* Encodes `text` (UTF-8) without begin and end marks. *ids is malloc'd; the caller frees it.
 * ERROR_INVALID for text that is not UTF-8. */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, int32_t **ids,
    size_t *count, struct error *err) __attribute__((warn_unused_result));

/* Words that are searched for in the text before it is cut into pieces, anywhere and in any case.
 * Each has an id of its own beyond the vocabulary, as with transformers' add_tokens. Immutable, and
 * independent of the tokenizer that it was made for. */
struct tokenizer_words;
/* If two words are the same after normalisation the first is used; a word that becomes empty is
 * left out. */
bool tokenizer_words_create(const struct tokenizer *tokenizer, const char *const *words,
    const int32_t *ids, size_t count, struct tokenizer_words **out, struct error *err)
    __attribute__((warn_unused_result));
void tokenizer_words_destroy(struct tokenizer_words *words); /* NULL is fine */
/* Like tokenizer_encode, with these words, or without if `words` is NULL. */
bool tokenizer_encode_words(const struct tokenizer *tokenizer, const struct tokenizer_words *words,
    const char *text, int32_t **ids, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

/* The text of `count` ids, for the warning about a truncated prompt. malloc'd. */
char *tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count);

/* Writes exactly `length` ids: begin mark, at most length - 2 tokens of `text`, end mark, padding.
 * (`length` is 77 for SD-1.5, the text encoder's max_position_embeddings.) *cut_text is NULL, or
 * the malloc'd text that did not fit, for the warning. */
bool tokenizer_encode_padded(const struct tokenizer *tokenizer, const char *text, size_t length,
    int32_t *ids, char **cut_text, struct error *err) __attribute__((warn_unused_result));

/* The same for given tokens: begin mark, count <= length - 2 of them, end mark, padding. */
void tokenizer_mark(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t *ids);
/* The same in as many chunks as the tokens need, at least one. *ids is malloc'd,
 * [*chunks][length]. */
bool tokenizer_chunk(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t **ids, size_t *chunks, struct error *err)
    __attribute__((warn_unused_result));

/* The id of a vocabulary entry, with a word's end written as "</w>"; -1 if there is none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *entry);
/* The id of the end mark. */
int32_t tokenizer_end_id(const struct tokenizer *tokenizer);
/* Number of entries; every id is below it. */
size_t tokenizer_vocab_size(const struct tokenizer *tokenizer);

#endif
