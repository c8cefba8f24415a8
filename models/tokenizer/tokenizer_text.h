/* Prepares Unicode text for tokens: normalises it, then cuts it into pieces. */
#ifndef MODELS_TOKENIZER_TOKENIZER_TEXT_H
#define MODELS_TOKENIZER_TOKENIZER_TEXT_H

#include "base/error.h"

#include <stddef.h>

/* Checks that the text is UTF-8. ERROR_INVALID names the first byte that is not. */
bool text_check_utf8(const char *text, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* Normalises text: NFC, runs of white space to one space, lower case. Each character is
 * lower-cased by itself, like Rust's char::to_lowercase. `text` is UTF-8; *out is malloc'd and
 * NUL-terminated. */
bool text_normalize(const char *text, size_t size, char **out, size_t *out_size, struct error *err)
    __attribute__((warn_unused_result));

/* Cuts normalised text into words, numbers, contractions and runs of other characters. Immutable
 * after creation, safe from any thread. */
struct piece_splitter;
bool piece_splitter_create(struct piece_splitter **out, struct error *err)
    __attribute__((warn_unused_result));
void piece_splitter_destroy(struct piece_splitter *splitter); /* NULL is fine */

/* Calls take(piece, size, user) for each piece, in order. */
bool piece_splitter_run(const struct piece_splitter *splitter, const char *text, size_t size,
    void (*take)(const char *piece, size_t size, void *user), void *user, struct error *err)
    __attribute__((warn_unused_result));

#endif
