/* Prompt editing and alternation in AUTOMATIC1111's syntax: which text holds in which evaluation of
 * the UNet.
 *
 * [BEFORE:AFTER:WHEN] is BEFORE up to evaluation WHEN, then AFTER; [AFTER:WHEN] and [BEFORE::WHEN]
 * leave one of them out. A WHEN with a point is a fraction of all evaluations, any other a number
 * of them. [A|B|...] takes turns. Both nest, also in brackets that only give weights. A [ that
 * begins none of these, or is not closed, is only text. Three things make the whole text literal: a
 * | outside of [A|B], a backslash at the end, and a backslash before a line feed.
 *
 * Evaluations are counted from 0, and a text that holds up to evaluation n also holds in evaluation
 * n: so the first text of an alternation holds in evaluations 0 and 1. These are the rules of
 * modules/prompt_parser.py of stable-diffusion-webui 1.10, whose answers tests/engine/data/prompts
 * records. */
#ifndef ENGINE_PROMPTS_SCHEDULE_H
#define ENGINE_PROMPTS_SCHEDULE_H

#include "base/error.h"

/* A variant of the text holds up to and in evaluation `last`. */
struct prompt_span {
    int last, variant;
};

/* A zeroed struct is fine for prompt_schedule_finish. */
struct prompt_schedule {
    char **variants; /* owned, [variant_count]: the different texts; at least one */
    int variant_count;
    struct prompt_span *spans; /* owned, [span_count], by `last`; the last one ends at `steps` */
    int span_count;
};

void prompt_schedule_finish(struct prompt_schedule *schedule);

/* Parses `text` (UTF-8), the value of the field `param`, for a drawing of `steps` evaluations, at
 * least 1. ERROR_INVALID for brackets nested deeper than PROMPT_NESTING_MAX, and for more than
 * `most` different texts: what is left of the PROMPT_VARIANTS_MAX that a prompt may have. */
bool prompt_schedule_parse(const char *param, const char *text, int steps, int most,
    struct prompt_schedule *out, struct error *err) __attribute__((warn_unused_result));

/* Returns the variant that holds in an evaluation; the last one after the schedule's end. */
int prompt_spans_at(const struct prompt_span *spans, int count, int evaluation);

#endif
