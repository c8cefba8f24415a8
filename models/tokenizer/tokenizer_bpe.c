#include "models/tokenizer/tokenizer_bpe.h"

#include <stdlib.h>
#include <string.h>

bool bpe_scratch_init(struct bpe_scratch *scratch, size_t capacity, struct error *err) {
    memset(scratch, 0, sizeof(*scratch));
    scratch->capacity = capacity ? capacity : 1;
    scratch->symbols = calloc(scratch->capacity, sizeof(*scratch->symbols));
    /* One candidate per pair at first, and at most two more per merge. */
    scratch->candidates = calloc(scratch->capacity, 3 * sizeof(*scratch->candidates));
    if (scratch->symbols && scratch->candidates)
        return true;
    bpe_scratch_finish(scratch);
    return error_set(err, ERROR_NO_MEMORY, "no memory for a word of %zu bytes", capacity);
}

void bpe_scratch_finish(struct bpe_scratch *scratch) {
    free(scratch->symbols);
    free(scratch->candidates);
    memset(scratch, 0, sizeof(*scratch));
}

static bool comes_before(const struct bpe_candidate *a, const struct bpe_candidate *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct bpe_scratch *s, struct bpe_candidate candidate) {
    size_t at = s->candidate_count++;
    while (at > 0 && comes_before(&candidate, &s->candidates[(at - 1) / 2])) {
        s->candidates[at] = s->candidates[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->candidates[at] = candidate;
}

static struct bpe_candidate heap_pop(struct bpe_scratch *s) {
    struct bpe_candidate top = s->candidates[0], last = s->candidates[--s->candidate_count];
    size_t at = 0;
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= s->candidate_count)
            break;
        if (child + 1 < s->candidate_count &&
            comes_before(&s->candidates[child + 1], &s->candidates[child]))
            child++;
        if (!comes_before(&s->candidates[child], &last))
            break;
        s->candidates[at] = s->candidates[child];
        at = child;
    }
    s->candidates[at] = last;
    return top;
}

/* Queues the pair of the symbol at `left` and the next symbol, if the pair merges. */
static void consider(const struct vocab *vocab, struct bpe_scratch *s, int32_t left) {
    int32_t right = left < 0 ? -1 : s->symbols[left].next;
    if (right < 0)
        return;
    const struct vocab_merge *merge = vocab_find_merge(
        vocab, s->symbols[left].id, s->symbols[right].id);
    if (merge)
        heap_push(s, (struct bpe_candidate){ merge->rank, left, merge->merged });
}

size_t bpe_merge(
    const struct vocab *vocab, struct bpe_scratch *scratch, int32_t *ids, size_t count) {
    struct bpe_symbol *symbols = scratch->symbols;
    scratch->candidate_count = 0;
    for (size_t i = 0; i < count; i++)
        symbols[i] = (struct bpe_symbol){ ids[i], (int32_t)i - 1,
            i + 1 < count ? (int32_t)i + 1 : -1 };
    for (size_t i = 0; i < count; i++)
        consider(vocab, scratch, (int32_t)i);
    while (scratch->candidate_count > 0) {
        struct bpe_candidate top = heap_pop(scratch);
        struct bpe_symbol *left = &symbols[top.position];
        if (left->id < 0 || left->next < 0)
            continue;
        struct bpe_symbol *right = &symbols[left->next];
        /* One of its symbols may have been merged since this pair was queued. */
        const struct vocab_merge *merge = vocab_find_merge(vocab, left->id, right->id);
        if (!merge || merge->merged != top.merged)
            continue;
        left->id = merge->merged;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            symbols[left->next].previous = top.position;
        consider(vocab, scratch, left->previous);
        consider(vocab, scratch, top.position);
    }
    size_t kept = 0;
    for (int32_t at = count > 0 ? 0 : -1; at >= 0; at = symbols[at].next)
        ids[kept++] = symbols[at].id;
    return kept;
}
