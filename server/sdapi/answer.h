/* What POST /sdapi/v1/txt2img and /img2img answer: {"images", "parameters", "info"}, of which
 * `info` is JSON in a string. No HTTP here. */
#ifndef SERVER_SDAPI_ANSWER_H
#define SERVER_SDAPI_ANSWER_H

#include "server/dialect/generate_answer.h"
#include "server/sdapi/request.h"

/* Everything is borrowed. */
struct sdapi_answer {
    const struct sdapi_request *request;
    const struct generate_answer *drawn;
};

/* The infotext of picture `index`, malloc'd; NULL when memory is short. */
char *sdapi_infotext(const struct sdapi_answer *answer, int index);

/* The text behind `info` as an object. NULL when memory is short, and below. */
json_t *sdapi_info_json(const struct sdapi_answer *answer);

/* malloc'd; NULL on error. */
char *sdapi_answer_json(const struct sdapi_answer *answer, size_t *out_length, struct error *err);

#endif
