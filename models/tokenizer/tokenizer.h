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
    CLIP_PADS_WITH_END, /* as in SD-1.x and CLIP itself */
    CLIP_PADS_WITH_0,   /* as in SD-2.x: "!", the token 0 */
};
bool tokenizer_create_clip(enum clip_padding padding, struct tokenizer **out, struct error *err)
    __attribute__((warn_unused_result));
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine */

/* Encodes `text` (UTF-8) without begin and end marks. *ids is malloc'd; the caller frees it.
 * ERROR_INVALID for text that is not UTF-8. */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, int32_t **ids,
    size_t *count, struct error *err) __attribute__((warn_unused_result));

/* Words that are searched for in the text before it is split, anywhere and in any case. Each has
 * its own id beyond the vocabulary, as with transformers' add_tokens. Immutable; does not borrow
 * the tokenizer it was made for. */
struct tokenizer_words;
/* If two words are the same after normalisation, the first is used. A word that becomes empty is
 * left out. */
bool tokenizer_words_create(const struct tokenizer *tokenizer, const char *const *words,
    const int32_t *ids, size_t count, struct tokenizer_words **out, struct error *err)
    __attribute__((warn_unused_result));
void tokenizer_words_destroy(struct tokenizer_words *words); /* NULL is fine */
/* Does what tokenizer_encode does, with these words; NULL: none. */
bool tokenizer_encode_words(const struct tokenizer *tokenizer, const struct tokenizer_words *words,
    const char *text, int32_t **ids, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the text of `count` ids, malloc'd. It is used in the warning about a truncated prompt. */
char *tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count);

/* Writes exactly `length` ids: begin mark, at most length - 2 tokens of `text`, end mark, padding.
 * `length` is 77 for SD-1.5 (max_position_embeddings of the text encoder). *cut_text is the text
 * that did not fit, malloc'd, for a warning; or NULL. */
bool tokenizer_encode_padded(const struct tokenizer *tokenizer, const char *text, size_t length,
    int32_t *ids, char **cut_text, struct error *err) __attribute__((warn_unused_result));

/* Does what tokenizer_encode_padded does, for given tokens: begin mark, count <= length - 2 tokens,
 * end mark, padding. */
void tokenizer_mark(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t *ids);
/* Does what tokenizer_mark does, in as many chunks as the tokens need, at least one. *ids is
 * malloc'd, [*chunks][length]. */
bool tokenizer_chunk(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t **ids, size_t *chunks, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the id of a vocabulary entry, in which a word's end is written as "</w>"; -1 if there is
 * none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *entry);
/* Returns the id of the end mark. */
int32_t tokenizer_end_id(const struct tokenizer *tokenizer);
/* Returns the number of entries; every id is below it. */
size_t tokenizer_vocab_size(const struct tokenizer *tokenizer);

#endif
