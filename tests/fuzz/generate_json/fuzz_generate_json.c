/* Arbitrary bodies of POST /generate. Parsing ends in a request or an error. An accepted request is
 * within its ranges. The parameters that we report for it must be a request with the same
 * parameters, unless the request contained pictures or embeddings. */
#include "server/generation/generate_answer.h"
#include "server/generation/generate_json.h"
#include "tests/engine/sd15.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* Returns the figures of an SD-1.5 checkpoint. */
static struct resolve_figures figures(void) {
    static struct tokenizer *tokenizer; /* kept for the whole run */
    static json_t *scheduler;
    struct error err;
    if (!tokenizer && !tokenizer_create(BUNDLED_TOKENIZER, &tokenizer, &err))
        abort();
    if (!scheduler)
        scheduler = sd15_scheduler_json();
    return sd15_figures(tokenizer, scheduler);
}

/* Returns the parameters of a body as text, or NULL if the body is refused. */
static char *parameters_text(const char *body, size_t size) {
    struct generate_request request;
    struct generate_delivery delivery;
    struct resolved_request resolved;
    struct error err = { 0 };
    const struct resolve_figures model = figures();
    bool parsed = generate_json_parse(body, size, &request, &delivery, &err);
    bool ok = parsed && resolve_request(&model, &request, &resolved, &err);
    if (parsed) {
        if (!generate_request_check(&request, &err))
            abort();
        generate_request_finish(&request);
    }
    if (!ok) {
        if (err.code == ERROR_NONE || !err.message[0])
            abort(); /* a refusal must give a reason */
        return NULL;
    }
    json_t *parameters = generate_parameters_json(&resolved, -1);
    char *text = parameters ? json_dumps(parameters, JSON_REAL_PRECISION(15)) : NULL;
    if (!text)
        abort();
    json_decref(parameters);
    resolved_request_finish(&resolved);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *first = parameters_text((const char *)data, size);
    if (first) {
        char *second = parameters_text(first, strlen(first));
        /* Pictures and encoded texts are reported only by a description, so a client must send them
         * again. */
        const bool had_more = strstr(first, "\"init_image\": {") ||
                              strstr(first, "prompt_embeds\": {");
        if (had_more ? second != NULL : !second || strcmp(first, second) != 0)
            abort();
        free(second);
    }
    free(first);
    return 0;
}
