/* What a generation has drawn, in the terms of server/dialect/generate_answer.h. */
#ifndef SERVER_GENERATION_ANSWER_H
#define SERVER_GENERATION_ANSWER_H

#include "server/dialect/generate_answer.h"
#include "server/generation/generation.h"

/* Borrows from `g`. Its model_name is "" where the checkpoint has no name. */
struct generate_answer generation_answer_of(const struct generation *g);

/* The only picture as a file, with X-Seed, and X-NSFW where the safety checker looked. */
bool generation_answer_picture(const struct generation *g, struct generation_body *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
