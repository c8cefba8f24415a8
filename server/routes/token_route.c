/* POST /tokens: how many of the text encoder's tokens a prompt takes, and what of it is cut off.
 * The fields are those of POST /generate; steps and scheduler decide which edits of a prompt take
 * place. A reader thread counts. */
#include "base/text/json.h"
#include "server/generation/generate_json.h"
#include "server/http/query.h"
#include "server/http/route.h"
#include "server/later/reading.h"
#include "server/later/task.h"

#include <stdlib.h>
#include <string.h>

struct token_task {
    struct task task; /* the first member */
    struct engine *engine;
    struct generate_request request; /* with one prompt */
};

static void destroy(struct task *task) {
    generate_request_finish(&((struct token_task *)task)->request);
    free(task);
}

static json_t *count_json(const struct text_count *count) {
    return json_pack("{s:i, s:i, s:o}", "tokens", count->tokens, "chunks", count->chunks, "cut",
        count->cut ? json_lenient_string(count->cut) : json_null());
}

/* Adds the count of one text to the answer. */
static bool add(struct token_task *t, const char *param, bool negative, struct error *err) {
    struct text_count count;
    if (!engine_count_text(t->engine, &t->request, negative, &count, err))
        return false;
    json_t *answer = t->task.json;
    const bool ok = json_object_set_new(answer, "chunk_tokens", json_integer(count.chunk_tokens)) ==
                        0 &&
                    json_object_set_new(answer, param, count_json(&count)) == 0;
    text_count_finish(&count);
    return ok;
}

static bool run(struct task *task, struct error *err) {
    struct token_task *t = (struct token_task *)task;
    task->json = json_object();
    if (task->json && add(t, "prompt", false, err) &&
        (!t->request.negative_prompt || add(t, "negative_prompt", true, err)))
        return true;
    json_decref(task->json);
    task->json = NULL;
    return false;
}

static bool read_fields(const json_t *body, struct generate_request *out, struct error *err) {
    static const char *const known[] = { "prompt", "negative_prompt", "prompt_syntax",
        "long_prompt", "num_inference_steps", "scheduler" };
    const json_t *prompt = json_object_get(body, "prompt");
    const char *key;
    json_t *value;
    if (!json_is_object(body))
        return error_set(err, ERROR_INVALID, "the body must be a JSON object");
    if (!json_is_string(prompt))
        return json_bad_field("prompt", prompt, "a text", err);
    json_object_foreach((json_t *)body, key, value) {
        bool is_known = false;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            is_known = is_known || strcmp(key, known[i]) == 0;
        if (!is_known)
            return json_bad_field(key, value,
                "prompt, negative_prompt, prompt_syntax, long_prompt, num_inference_steps and "
                "scheduler",
                err);
        if (!generate_json_parse_field(key, value, out, err))
            return false;
    }
    return generate_request_check(out, err);
}

static bool read_request(const struct exchange *exchange, void *out, struct error *err) {
    struct generate_request *request = out;
    json_t *body = json_parse_request(exchange->body, exchange->body_size, err);
    if (!body)
        return error_prefix(err, "the body");
    generate_request_init(request);
    const bool ok = read_fields(body, request, err);
    json_decref(body);
    if (!ok)
        generate_request_finish(request);
    return ok;
}

static enum MHD_Result start(struct exchange *exchange, void *read) {
    struct token_task *t = calloc(1, sizeof(*t));
    if (t) {
        t->engine = exchange->server->options.engine;
        t->request = *(struct generate_request *)read;
    } else {
        generate_request_finish(read);
    }
    return task_start(t ? &t->task : NULL, exchange, exchange->server->readers, run, destroy);
}

static void finish(void *read) {
    generate_request_finish(read);
}

static bool may_come(const struct exchange *exchange, struct error *err) {
    return query_none(exchange->target, err) && server_takes(exchange->server, err);
}

static enum MHD_Result handle(struct exchange *exchange) {
    static const struct reading_kind reading = {
        .size = sizeof(struct generate_request),
        .read = read_request,
        .handle = start,
        .finish = finish,
    };
    return reading_start(exchange, &reading);
}

const struct route route_tokens = { .path = "/tokens",
    .methods = { { "POST", content_types_json, may_come, handle, .large = true,
        .about = "counts the tokens of a prompt, and says what would be cut off",
        .takes = "{prompt: string, negative_prompt?: string, prompt_syntax?: 'plain'|'a1111', "
                 "long_prompt?: 'truncate'|'chunk', num_inference_steps?: integer, "
                 "scheduler?: string|object}",
        .returns =
            "{chunk_tokens: integer, prompt: TokenCount, negative_prompt?: TokenCount}" } } };
