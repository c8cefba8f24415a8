#include "server/generation/answer.h"

struct generate_answer generation_answer_of(const struct generation *g) {
    return (struct generate_answer){
        .id = g->id,
        .created = g->created,
        .model_name = g->request.of.name ? g->request.of.name : "",
        .request = &g->request,
        .result = &g->result,
    };
}
