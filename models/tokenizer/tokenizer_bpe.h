/* Merges the byte pairs of one word. */
#ifndef MODELS_TOKENIZER_TOKENIZER_BPE_H
#define MODELS_TOKENIZER_TOKENIZER_BPE_H

#include "models/tokenizer/tokenizer_vocab.h"

struct bpe_symbol {
    int32_t id; /* -1 if merged into the symbol before it */
    int32_t previous, next;
};

struct bpe_candidate {
    int32_t rank, position, merged;
};

/* Memory for words of up to `capacity` symbols, reused for each word. */
struct bpe_scratch {
    struct bpe_symbol *symbols;       /* owned */
    struct bpe_candidate *candidates; /* owned: a heap; lowest (rank, position) first */
    size_t capacity, candidate_count;
};

bool bpe_scratch_init(struct bpe_scratch *scratch, size_t capacity, struct error *err)
    __attribute__((warn_unused_result));
void bpe_scratch_finish(struct bpe_scratch *scratch);

/* Merges ids[0..count) in place, count <= capacity. The lowest rank comes first, among equals the
 * leftmost pair. Returns the new count. Takes n log n time, so that a word may be as long as a
 * whole prompt. */
size_t bpe_merge(
    const struct vocab *vocab, struct bpe_scratch *scratch, int32_t *ids, size_t count);

#endif
