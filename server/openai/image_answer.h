/* Finished pictures in OpenAI's form. */
#ifndef SERVER_OPENAI_IMAGE_ANSWER_H
#define SERVER_OPENAI_IMAGE_ANSWER_H

#include "server/generation/generate_answer.h"
#include "server/openai/image_order.h"

#include <stdio.h>

/* Where the pictures of an answer are kept for their addresses. Borrowed. */
struct image_answer_urls {
    struct picture_urls *store;
    const char *base; /* of an address, before PICTURE_URLS_PATH: "http://localhost:8188" */
    uint64_t account; /* the caller's number */
};

/* Writes {"created", "data": [{"b64_json" and "url", or one of them, "seed"}], "background",
 * "output_format", "quality", "size", "usage"}, and "warnings" if there are any. Keeps pictures
 * that have a url. */
bool image_answer_write(const struct generate_answer *answer, const struct image_order *order,
    const struct image_answer_urls *urls, FILE *out, struct error *err)
    __attribute__((warn_unused_result));

/* Writes the last event of a stream, with the one picture. */
bool image_answer_write_completed(const struct generate_answer *answer,
    const struct image_order *order, FILE *out, struct error *err)
    __attribute__((warn_unused_result));

/* Writes a partial-image event: a preview as JPEG, whatever format was asked for. */
void image_answer_write_partial(const struct image_order *order, int index, const void *jpeg,
    size_t size, int width, int height, FILE *out);

#endif
