/* Textual inversion: the embeddings in a folder, and where they apply in a text.
 *
 * A file NAME.safetensors is an embedding called NAME. In AUTOMATIC1111's syntax it applies
 * wherever a piece of a text has the tokens of its name. In a plain text it applies wherever its
 * name, or the word that its file gives it, occurs, as in diffusers' load_textual_inversion: in
 * upper or lower case and inside words, unless the vocabulary has that word. A text that names an
 * embedding which cannot be used is refused.
 *
 * The whole folder is read at once. The result is an immutable set; a request holds the set it was
 * admitted with. Each vector has an id of its own above any vocabulary, and ids are never reused:
 * equal ids mean equal vectors.
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
    char file[EMBEDDING_NAME_MAX_BYTES + 16]; /* in the folder */
    const char *token;  /* the file's own word, or NULL; borrowed from the set */
    const char *format; /* "a1111", "diffusers"; NULL if it cannot be used */
    uint64_t bytes;
    int vectors, width;
    bool named_plainly;  /* a plain text can refer to it by its name */
    int32_t first_id;    /* its vectors have this id and the following ones */
    const float *values; /* [vectors][width]; borrowed from the set */
    struct error error;  /* why it cannot be used; code ERROR_NONE: it can */
};

struct embeddings;

/* Reads the folder now; NULL: there is none. ERROR_NOT_FOUND if the folder does not exist. A file
 * that is not an embedding, or not of `width`, is listed with its error. The tokenizer is
 * borrowed. */
bool embeddings_create(const char *folder, const struct tokenizer *tokenizer, int width,
    struct embeddings **out, struct error *err) __attribute__((warn_unused_result));
void embeddings_destroy(struct embeddings *embeddings); /* NULL is fine; sets may still be held */

/* Reads the folder again; unchanged files that can be used keep their ids. Does nothing for a NULL
 * registry. Waits for files. */
bool embeddings_rescan(struct embeddings *embeddings, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the current set, held until it is released; never NULL, except for a NULL registry. */
struct embedding_set *embeddings_take(struct embeddings *embeddings);
struct embedding_set *embedding_set_hold(struct embedding_set *set);
void embedding_set_release(struct embedding_set *set); /* NULL is fine */

const char *embedding_set_folder(const struct embedding_set *set); /* NULL: there is none */
/* Count, and access by index; sorted by name. */
size_t embedding_set_count(const struct embedding_set *set);
const struct embedding *embedding_set_at(const struct embedding_set *set, size_t index);

/* Returns the embedding whose name's tokens are the longest beginning of `tokens`, and their number
 * in *used. NULL if there is none. */
const struct embedding *embedding_set_match(
    const struct embedding_set *set, const int32_t *tokens, size_t count, size_t *used);
/* For tokenizer_encode_words, which then returns first_id for them; NULL if there are none. */
const struct tokenizer_words *embedding_set_words(const struct embedding_set *set);
/* Returns the embedding that has this vector; NULL for the id of a token. */
const struct embedding *embedding_set_find(const struct embedding_set *set, int32_t id);

#endif
