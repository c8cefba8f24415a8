/* What stands in a prompt of AUTOMATIC1111's syntax beside its words and their weights
 * (engine/prompts/attention.h): tags <lora:NAME:WEIGHT>, which name adapters and are no words, and
 * a weight of the whole prompt at its end. Prompt editing [a:b:0.5], alternation [a|b] and AND,
 * which would change the text from step to step or draw several at a time, are refused by name. */
#ifndef ENGINE_PROMPTS_SYNTAX_H
#define ENGINE_PROMPTS_SYNTAX_H

#include "base/error.h"
#include "engine/request.h"

#define PROMPT_SPACES " \t\n\r\f\v"

/* [+-], digits with at most one point, exponents not. */
bool prompt_number(const char *text, size_t length, double *out);
/* The first place where `word` stands by itself, without a letter, digit or _ beside it; NULL if
 * nowhere. */
const char *prompt_find_word(const char *text, size_t size, const char *word);

/* A prompt without what is not its text. */
struct prompt_parts {
    char *text;               /* owned */
    struct lora_choice *tags; /* owned, tag_count of them, in their order */
    int tag_count;
    double guidance; /* guidance_scale is multiplied with it */
};

void prompt_parts_finish(struct prompt_parts *parts); /* zeroed is fine */

/* `param` is the field that `text`, which is UTF-8, comes from. A negative prompt has neither tags
 * nor a weight, nor AND: they are text. */
bool prompt_parts_parse(const char *param, const char *text, bool negative,
    struct prompt_parts *out, struct error *err) __attribute__((warn_unused_result));

/* Whether it may have tags. */
bool prompt_may_have_tags(const char *text);

#endif
