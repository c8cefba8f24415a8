/* CLIP's byte-pair encoding, as transformers' fast CLIPTokenizer does it.
 *
 * Text -> NFC -> runs of white space to one space -> lower case -> pieces (PCRE2, Unicode
 * properties) -> byte symbols -> merges by rank -> ids. The vocabulary is the checkpoint's own
 * (vocab.json + merges.txt, or tokenizer.json), or CLIP's published one, which the program carries.
 * Immutable after creation, safe from any thread.
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
    CLIP_PADS_WITH_END, /* SD-1.x, as CLIP itself */
    CLIP_PADS_WITH_0,   /* SD-2.x: "!", the token 0 */
};
bool tokenizer_create_clip(enum clip_padding padding, struct tokenizer **out, struct error *err)
    __attribute__((warn_unused_result));
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is fine */

/* The tokens of `text` (UTF-8) without begin and end marks. *ids is malloc'd, the caller frees it.
 * ERROR_INVALID for text that is not UTF-8. */
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, int32_t **ids,
    size_t *count, struct error *err) __attribute__((warn_unused_result));

/* Words that are looked for in the text, in any case and wherever they stand, before it is cut into
 * pieces, each for an id of its own beyond the vocabulary: as transformers' add_tokens has it.
 * Immutable, and needs nothing of the tokenizer that it is made for. */
struct tokenizer_words;
/* Of two words that come to the same the first counts; one that comes to nothing is left out. */
bool tokenizer_words_create(const struct tokenizer *tokenizer, const char *const *words,
    const int32_t *ids, size_t count, struct tokenizer_words **out, struct error *err)
    __attribute__((warn_unused_result));
void tokenizer_words_destroy(struct tokenizer_words *words); /* NULL is fine */
/* As tokenizer_encode with these words, or with none if they are NULL. */
bool tokenizer_encode_words(const struct tokenizer *tokenizer, const struct tokenizer_words *words,
    const char *text, int32_t **ids, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

/* The text that `count` ids stand for, for the warning about a cut prompt. malloc'd. */
char *tokenizer_decode(const struct tokenizer *tokenizer, const int32_t *ids, size_t count);

/* Begin mark, at most length - 2 tokens of `text`, end mark, padding: exactly `length` ids (77 for
 * SD-1.5: the text encoder's max_position_embeddings). *cut_text is NULL, or the malloc'd text that
 * did not fit, for the warning. */
bool tokenizer_encode_padded(const struct tokenizer *tokenizer, const char *text, size_t length,
    int32_t *ids, char **cut_text, struct error *err) __attribute__((warn_unused_result));

/* The same of tokens that are there: begin mark, count <= length - 2 of them, end mark, padding. */
void tokenizer_mark(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t *ids);
/* In as many runs as they need, at least one. *ids is malloc'd, [*chunks][length]. */
bool tokenizer_chunk(const struct tokenizer *tokenizer, const int32_t *tokens, size_t count,
    size_t length, int32_t **ids, size_t *chunks, struct error *err)
    __attribute__((warn_unused_result));

/* The id of an entry of the vocabulary, a word's end spelt "</w>"; -1 if it has none. */
int32_t tokenizer_find(const struct tokenizer *tokenizer, const char *entry);
/* The id of the end mark. */
int32_t tokenizer_end_id(const struct tokenizer *tokenizer);
/* Number of entries; every id is below it. */
size_t tokenizer_vocab_size(const struct tokenizer *tokenizer);

#endif
