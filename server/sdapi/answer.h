/* The answer of POST /sdapi/v1/txt2img and /img2img: {"images", "parameters", "info"}, where "info"
 * is a string that contains JSON. No HTTP here. */
#ifndef SERVER_SDAPI_ANSWER_H
#define SERVER_SDAPI_ANSWER_H

#include "server/generation/generate_answer.h"
#include "server/sdapi/request.h"

/* All members are borrowed. */
struct sdapi_answer {
    const struct sdapi_request *request;
    const struct generate_answer *drawn;
};

/* Returns the infotext of image `index`, malloc'd; NULL when memory is short. */
char *sdapi_infotext(const struct sdapi_answer *answer, int index);

/* Returns the content of "info" as an object; NULL when memory is short. */
json_t *sdapi_info_json(const struct sdapi_answer *answer);

/* Returns the answer as JSON text, malloc'd; NULL on error. */
char *sdapi_answer_json(const struct sdapi_answer *answer, size_t *out_length, struct error *err);

#endif
