/* Textual inversion: vectors that stand in a text in the place of tokens' embeddings. A safetensors
 * file with one tensor, [vectors][width] or [width]: as AUTOMATIC1111's are converted it is called
 * "emb_params" and the file's name is the word; as diffusers writes it, it is called like the word.
 */
#ifndef MODELS_CHECKPOINT_EMBEDDING_FILE_H
#define MODELS_CHECKPOINT_EMBEDDING_FILE_H

#include "base/error.h"

#include <stdint.h>

struct embedding_file {
    float *values; /* owned: [vectors][width] */
    int vectors, width;
    char *token;        /* owned: the file's own word; NULL: it has none */
    const char *format; /* "a1111" or "diffusers" */
    uint64_t bytes;
};

/* `fd` is taken over, also on failure; `path` is for messages. At most EMBEDDING_VECTORS_MAX
 * vectors, all finite; a pickle and a file for Stable Diffusion XL are refused by these names. */
bool embedding_file_read(int fd, const char *path, struct embedding_file *out, struct error *err)
    __attribute__((warn_unused_result));
void embedding_file_finish(struct embedding_file *file); /* zeroed is fine */

#endif
