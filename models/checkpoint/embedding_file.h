/* Textual inversion: vectors that replace the embeddings of tokens in a text. The file is a
 * safetensors file with one tensor, [vectors][width] or [width]. In AUTOMATIC1111's converted files
 * the tensor is called "emb_params", and the word is the file's name. In diffusers' files the
 * tensor's name is the word. */
#ifndef MODELS_CHECKPOINT_EMBEDDING_FILE_H
#define MODELS_CHECKPOINT_EMBEDDING_FILE_H

#include "base/error.h"

#include <stdint.h>

struct embedding_file {
    float *values; /* owned: [vectors][width] */
    int vectors, width;
    char *token;        /* owned: the word, if the file has one; or NULL */
    const char *format; /* "a1111" or "diffusers" */
    uint64_t bytes;
};

/* Reads the file. Takes over `fd`, also on failure; `path` is for messages. Accepts at most
 * EMBEDDING_VECTORS_MAX vectors, which must all be finite. Errors say so if it is a pickle, or a
 * file for Stable Diffusion XL. */
bool embedding_file_read(int fd, const char *path, struct embedding_file *out, struct error *err)
    __attribute__((warn_unused_result));
void embedding_file_finish(struct embedding_file *file); /* zeroed is fine */

#endif
