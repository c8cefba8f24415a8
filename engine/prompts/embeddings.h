/* Textual inversion: the embeddings of a folder, by name, and what of a text they stand for.
 *
 * A file NAME.safetensors is an embedding called NAME. In AUTOMATIC1111's syntax it stands wherever
 * a piece of a text has the tokens of its name; in a plain text wherever its name is, or the word
 * that its file gives it, as diffusers' load_textual_inversion does it: in any case and inside of
 * words, and not if the vocabulary has that word. A text that names one that cannot be used is
 * refused.
 *
 * The files are read when the folder is, as a whole; what is read makes an immutable set, of which
 * a request holds the one that it was admitted with. Each vector has an id of its own, beyond any
 * vocabulary, that is never given twice: equal ids are equal vectors.
 *
 * Every function may be called from any thread. */
#ifndef ENGINE_PROMPTS_EMBEDDINGS_H
#define ENGINE_PROMPTS_EMBEDDINGS_H

#include "base/error.h"
#include "base/limits.h"
#include "models/tokenizer/tokenizer.h"

#define EMBEDDING_ID_FIRST (1 << 24) /* of vectors */

struct embedding_set;

struct embedding {
    char name[EMBEDDING_NAME_MAX_BYTES + 1];
    char file[EMBEDDING_NAME_MAX_BYTES + 16]; /* in the folder */
    const char *token;  /* the file's own word, or NULL; borrowed from the set */
    const char *format; /* "a1111", "diffusers"; NULL if it cannot be used */
    uint64_t bytes;
    int vectors, width;
    bool named_plainly;  /* a plain text can name it by its name */
    int32_t first_id;    /* its vectors' are this and those that follow */
    const float *values; /* [vectors][width]; borrowed from the set */
    struct error error;  /* why it cannot be used; code ERROR_NONE: it can */
};

struct embeddings;

/* folder: NULL for none, or one that is read now: ERROR_NOT_FOUND if there is no such folder. A
 * file that is no embedding, or not of `width`, is there with its error. The tokenizer is borrowed.
 */
bool embeddings_create(const char *folder, const struct tokenizer *tokenizer, int width,
    struct embeddings **out, struct error *err) __attribute__((warn_unused_result));
void embeddings_destroy(struct embeddings *embeddings); /* NULL is fine; sets may be left */

/* Reads the folder again: what was not changed keeps its ids. A NULL registry has nothing to read.
 * Waits for files. */
bool embeddings_rescan(struct embeddings *embeddings, struct error *err)
    __attribute__((warn_unused_result));

/* What there is now, held until it is released; never NULL. A NULL registry has none: NULL. */
struct embedding_set *embeddings_take(struct embeddings *embeddings);
struct embedding_set *embedding_set_hold(struct embedding_set *set);
void embedding_set_release(struct embedding_set *set); /* NULL is fine */

const char *embedding_set_folder(const struct embedding_set *set); /* NULL: there is none */
/* By name. */
size_t embedding_set_count(const struct embedding_set *set);
const struct embedding *embedding_set_at(const struct embedding_set *set, size_t index);

/* The embedding whose name has the tokens that these begin with, the longest; *used of them. NULL
 * if there is none. */
const struct embedding *embedding_set_match(
    const struct embedding_set *set, const int32_t *tokens, size_t count, size_t *used);
/* For tokenizer_encode_words, which gives first_id; NULL if there are none. */
const struct tokenizer_words *embedding_set_words(const struct embedding_set *set);
/* Whose vector it is; NULL for the id of a token. */
const struct embedding *embedding_set_find(const struct embedding_set *set, int32_t id);

#endif
