/* Parses AUTOMATIC1111's attention syntax: (more), [less], (with a factor:1.3), nested brackets, \(
 * for a literal bracket, and BREAK, which begins a new chunk.
 *
 * Brackets multiply the weight of everything inside them by 1.1, by 1 / 1.1, or by the given
 * number. Adjacent texts of equal weight form one piece, which is tokenized as a whole. */
#ifndef ENGINE_PROMPTS_ATTENTION_H
#define ENGINE_PROMPTS_ATTENTION_H

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>

/* One piece: text[begin .. end) of the parsed text. */
struct attention_piece {
    size_t begin, end;
    double weight;
};

struct attention {
    char *text;                     /* owned: the text without its syntax */
    struct attention_piece *pieces; /* owned, [count]; at least one */
    size_t count;
};

/* Zeroed is fine. */
void attention_finish(struct attention *attention);

/* Parses `text` (UTF-8), the value of the field `param`. ERROR_INVALID for brackets nested deeper
 * than PROMPT_NESTING_MAX, for a malformed number after a colon, and for weights above
 * PROMPT_WEIGHT_MAX. */
bool attention_parse(const char *param, const char *text, struct attention *out, struct error *err)
    __attribute__((warn_unused_result));

/* Whether the piece is a BREAK. Inside brackets BREAK has another weight and is an ordinary word,
 * as in AUTOMATIC1111. */
bool attention_is_break(const struct attention *attention, size_t piece);
/* Whether the piece is the word BREAK inside brackets. */
bool attention_is_break_in_brackets(const struct attention *attention, size_t piece);

#endif
