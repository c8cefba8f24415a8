/* The result of a generation as a struct generate_answer (server/generation/generate_answer.h). */
#ifndef SERVER_GENERATION_ANSWER_H
#define SERVER_GENERATION_ANSWER_H

#include "server/generation/generate_answer.h"
#include "server/generation/generation.h"

/* The result borrows from `g`. model_name is "" if the checkpoint has no name. */
struct generate_answer generation_answer_of(const struct generation *g);

/* Encodes the only image as a file. Sets X-Seed, and X-NSFW if the safety checker ran. */
bool generation_answer_picture(const struct generation *g, struct generation_body *out,
    struct error *err) __attribute__((warn_unused_result));

#endif
