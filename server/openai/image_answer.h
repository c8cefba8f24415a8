/* Finished pictures as OpenAI's clients read them. */
#ifndef SERVER_OPENAI_IMAGE_ANSWER_H
#define SERVER_OPENAI_IMAGE_ANSWER_H

#include "server/dialect/generate_answer.h"
#include "server/openai/image_order.h"

#include <stdio.h>

/* {"created", "data": [{"b64_json" or "url", "seed"}], "background", "output_format", "quality",
 * "size", "usage"}, and what there is of "warnings". */
bool image_answer_write(const struct generate_answer *answer, const struct image_order *order,
    FILE *out, struct error *err) __attribute__((warn_unused_result));

/* The last event of a stream: the one picture. */
bool image_answer_write_completed(const struct generate_answer *answer,
    const struct image_order *order, FILE *out, struct error *err)
    __attribute__((warn_unused_result));

/* One before it: a JPEG of how far it is, whatever format was asked for. */
void image_answer_write_partial(const struct image_order *order, int index, const void *jpeg,
    size_t size, int width, int height, FILE *out);

#endif
