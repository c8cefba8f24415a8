#include "server/generation/answer.h"

#include <inttypes.h>

struct generate_answer generation_answer_of(const struct generation *g) {
    return (struct generate_answer){
        .id = g->id,
        .created = g->created,
        .model_name = g->request.of.name ? g->request.of.name : "",
        .request = &g->request,
        .result = &g->result,
    };
}

bool generation_answer_picture(
    const struct generation *g, struct generation_body *out, struct error *err) {
    const struct generate_answer a = generation_answer_of(g);
    uint8_t *file = NULL;
    if (!generate_answer_picture(&a, 0, &file, &out->size, err))
        return false;
    out->bytes = file;
    out->content_type = picture_media_type(g->request.asked.format);
    out->headers[0].name = "X-Seed";
    snprintf(out->headers[0].value, sizeof(out->headers[0].value), "%" PRIu64, g->result.seeds[0]);
    if (g->result.nsfw) {
        out->headers[1].name = "X-NSFW";
        snprintf(out->headers[1].value, sizeof(out->headers[1].value), "%s",
            g->result.nsfw[0] ? "true" : "false");
    }
    return true;
}
