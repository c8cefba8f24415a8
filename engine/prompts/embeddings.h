/* Textual inversion: the embeddings in a folder, and where they apply in a text.
 *
 * A file NAME.safetensors is an embedding called NAME. In AUTOMATIC1111's syntax it applies
 * wherever a piece of a text has the tokens of its name. In a plain text it applies wherever its
 * name occurs, or the word that is stored in its file. As in diffusers' load_textual_inversion,
 * upper and lower case are the same, and the word may be part of another word; but a word of the
 * vocabulary never names an embedding. A text that names an embedding which cannot be used is
 * refused.
 *
 * The whole folder is read at once. The result is an immutable set, and a request holds the set
 * with which it was admitted. Each vector has an id that is above all ids of the vocabulary. Ids
 * are never reused, so equal ids mean equal vectors.
 *
 * Every function may be called from any thread. */
#ifndef ENGINE_PROMPTS_EMBEDDINGS_H
#define ENGINE_PROMPTS_EMBEDDINGS_H

#include "base/error.h"
#include "base/limits.h"
#include "models/tokenizer/tokenizer.h"

#define EMBEDDING_ID_FIRST (1 << 24) /* the lowest id of a vector */

struct embedding_set;

struct embedding {
    char name[EMBEDDING_NAME_MAX_BYTES + 1];
    char file[EMBEDDING_NAME_MAX_BYTES + 16]; /* file name in the folder */
    const char *token;                        /* the word given in the file, or NULL; borrowed */
    const char *format;                       /* "a1111", "diffusers"; NULL if it cannot be used */
    uint64_t bytes;
    int vectors, width;
    bool named_plainly;  /* its name also works in a plain text */
    int32_t first_id;    /* id of the first vector; the others follow it */
    const float *values; /* [vectors][width]; borrowed from the set */
    struct error error;  /* ERROR_NONE, or why it cannot be used */
};

struct embeddings;

/* Creates a registry and reads its folder. `folder` NULL: there are no embeddings. ERROR_NOT_FOUND
 * if the folder does not exist. A file that is not an embedding, or whose vectors do not have
 * `width` numbers, is listed with its error. The tokenizer is borrowed. */
bool embeddings_create(const char *folder, const struct tokenizer *tokenizer, int width,
    struct embeddings **out, struct error *err) __attribute__((warn_unused_result));
void embeddings_destroy(struct embeddings *embeddings); /* NULL is fine; sets may still be held */

/* Reads the folder again. Unchanged files without errors keep their ids. Does nothing if
 * `embeddings` is NULL. Waits for files. */
bool embeddings_rescan(struct embeddings *embeddings, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the current set, held until it is released. NULL only if `embeddings` is NULL. */
struct embedding_set *embeddings_take(struct embeddings *embeddings);
struct embedding_set *embedding_set_hold(struct embedding_set *set);
void embedding_set_release(struct embedding_set *set); /* NULL is fine */

const char *embedding_set_folder(const struct embedding_set *set); /* NULL: no folder */
/* The embeddings of a set, sorted by name. */
size_t embedding_set_count(const struct embedding_set *set);
const struct embedding *embedding_set_at(const struct embedding_set *set, size_t index);

/* Returns the embedding whose name, as tokens, is the beginning of `tokens`. If there are several,
 * returns the one with the longest name. *used is the number of tokens in the name. NULL if there
 * is none. */
const struct embedding *embedding_set_match(
    const struct embedding_set *set, const int32_t *tokens, size_t count, size_t *used);
/* Returns the words for tokenizer_encode_words, which replaces each by its embedding's first_id;
 * NULL if there are none. */
const struct tokenizer_words *embedding_set_words(const struct embedding_set *set);
/* Returns the embedding that has the vector `id`; NULL if it is the id of a token. */
const struct embedding *embedding_set_find(const struct embedding_set *set, int32_t id);

#endif
