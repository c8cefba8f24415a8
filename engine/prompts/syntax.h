/* Splits a prompt in AUTOMATIC1111's syntax into its tags and its parts. Tags <lora:NAME:WEIGHT>
 * name adapters and are not part of the text. The word AND joins several parts, which are drawn
 * together, each with the weight at its end ("words :1.2"). What the text of a part may contain is
 * in engine/prompts/schedule.h and engine/prompts/attention.h. */
#ifndef ENGINE_PROMPTS_SYNTAX_H
#define ENGINE_PROMPTS_SYNTAX_H

#include "base/error.h"
#include "base/limits.h"
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

/* Returns the bytes of the white space that begins at `at`, or that ends at `end`; 0: none. The
 * other argument limits the text. White space is what Unicode and Python call so. */
size_t prompt_space(const char *at, const char *end);
size_t prompt_space_before(const char *begin, const char *end);

struct prompt_part {
    const char *text; /* borrowed from the prompt_parts */
    double weight;    /* factor for guidance_scale */
};

/* A prompt, split into its parts and its tags. */
struct prompt_parts {
    struct prompt_part parts[PROMPT_PARTS_MAX];
    int count;
    char *block;              /* owned: the parts' texts */
    struct lora_choice *tags; /* owned, [tag_count], in the prompt's order */
    int tag_count;
};

void prompt_parts_finish(struct prompt_parts *parts); /* zeroed is fine */

/* Splits `text` (UTF-8), the value of the field `param`. A negative prompt has one part; tags, AND
 * and a weight at its end are ordinary text. ERROR_INVALID for more than PROMPT_PARTS_MAX parts,
 * for weights above PROMPT_WEIGHT_MAX and for tags that are not right. */
bool prompt_parts_parse(const char *param, const char *text, bool negative,
    struct prompt_parts *out, struct error *err) __attribute__((warn_unused_result));

/* Whether the text has something that looks like a tag. */
bool prompt_may_have_tags(const char *text);

#endif
