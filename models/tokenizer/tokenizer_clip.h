/* CLIP's published vocabulary, made from the table of merges that is built into the program
 * (share/clip-tokenizer/). */
#ifndef MODELS_TOKENIZER_TOKENIZER_CLIP_H
#define MODELS_TOKENIZER_TOKENIZER_CLIP_H

#include "models/tokenizer/tokenizer_vocab.h"

bool clip_vocab_init(struct vocab *vocab, struct error *err) __attribute__((warn_unused_result));

#endif
