/* AUTOMATIC1111's attention syntax: (more), [less], (so much:1.3), brackets within brackets, \( for
 * a bracket that is one, and BREAK, behind which a new chunk begins.
 *
 * What brackets say is a factor for all in them: 1.1, 1 / 1.1, or the number. Neighbours of one
 * weight are one piece, which is tokenized as a whole. */
#ifndef ENGINE_PROMPTS_ATTENTION_H
#define ENGINE_PROMPTS_ATTENTION_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* text[begin .. end) of the parsed text. */
struct attention_piece {
    size_t begin, end;
    double weight;
};

struct attention {
    char *text;                     /* owned: without brackets, weights and escapes */
    struct attention_piece *pieces; /* owned, count of them: at least one */
    size_t count, capacity;
};

/* Zeroed is fine. */
void attention_finish(struct attention *attention);

/* `param` is the field that `text`, which is UTF-8, comes from. ERROR_INVALID for brackets deeper
 * than PROMPT_NESTING_MAX, for what is no number, and for weights above PROMPT_WEIGHT_MAX. */
bool attention_parse(const char *param, const char *text, struct attention *out, struct error *err)
    __attribute__((warn_unused_result));

/* Whether the piece is a BREAK. One in brackets has another weight and is a word, as there. */
bool attention_is_break(const struct attention *attention, size_t piece);
/* Whether it is that word. */
bool attention_is_break_in_brackets(const struct attention *attention, size_t piece);

#endif
