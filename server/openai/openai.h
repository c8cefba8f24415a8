/* What the routes of OpenAI's API share: /v1/... */
#ifndef SERVER_OPENAI_OPENAI_H
#define SERVER_OPENAI_OPENAI_H

#include "engine/request.h"
#include "server/dialect/dialect.h"
#include "server/http/exchange.h"

/* {"error": {"message", "type", "param", "code"}} */
extern const struct dialect dialect_openai;

/* What is said of a name that no field has; its code is "unknown_parameter". */
#define OPENAI_NO_SUCH_FIELD "there is no such field"

/* The field of an error, where OpenAI has another name for what we know. */
void openai_rename(struct error *err);

/* What a request's "model" may say. Borrowed. */
struct openai_models {
    const char *loaded;        /* what the loaded checkpoint is called */
    struct adapters *adapters; /* NULL: none, or it is not known yet */
    bool can_switch;           /* PUT /model loads others */
};
struct openai_models openai_models_of(const struct exchange *exchange);

/* Takes "" and the loaded model's name, or "sd15", which is whatever is loaded; with an adapter
 * behind a colon, or an adapter's name alone, as vLLM has it: the request then draws with that as
 * well, at its full weight. ERROR_NOT_FOUND, with the param "model", for all else. */
bool openai_choose_model(const char *asked, const struct openai_models *models,
    struct generate_request *request, struct error *err) __attribute__((warn_unused_result));

#endif
