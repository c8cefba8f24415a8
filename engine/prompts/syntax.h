/* Parses the parts of a prompt in AUTOMATIC1111's syntax, except words and their weights
 * (engine/prompts/attention.h). Tags <lora:NAME:WEIGHT> name adapters and are not part of the text.
 * A weight at the end applies to the whole prompt. Prompt editing [a:b:0.5], alternation [a|b] and
 * AND are refused with an error that names them: they would change the text from step to step, or
 * draw several texts at once. */
#ifndef ENGINE_PROMPTS_SYNTAX_H
#define ENGINE_PROMPTS_SYNTAX_H

#include "base/error.h"
#include "engine/request/request.h"

#define PROMPT_SPACES " \t\n\r\f\v"

/* How a tag looks, for errors. */
#define PROMPT_TAG_FORM                                                                            \
    "<lora:NAME>, <lora:NAME:WEIGHT> or <lora:NAME:TEXT_ENCODER_WEIGHT:UNET_WEIGHT>, where "       \
    "te=WEIGHT and unet=WEIGHT may stand for the numbers"

/* Parses a number: an optional sign and digits with at most one point. Exponents are not
 * allowed. */
bool prompt_number(const char *text, size_t length, double *out);
/* Returns the first place where `word` stands alone, without a letter, a digit or _ next to it;
 * NULL if there is none. */
const char *prompt_find_word(const char *text, size_t size, const char *word);

/* A prompt, split into its text, its tags and its weight. */
struct prompt_parts {
    char *text;               /* owned */
    struct lora_choice *tags; /* owned, [tag_count], in the prompt's order */
    int tag_count;
    double guidance; /* factor for guidance_scale */
};

void prompt_parts_finish(struct prompt_parts *parts); /* zeroed is fine */

/* Splits `text` (UTF-8), the value of the field `param`. In a negative prompt, tags, AND and a
 * weight of the whole prompt are ordinary text. */
bool prompt_parts_parse(const char *param, const char *text, bool negative,
    struct prompt_parts *out, struct error *err) __attribute__((warn_unused_result));

/* Whether the text has something that looks like a tag. */
bool prompt_may_have_tags(const char *text);

#endif
