/* Shared by the routes of OpenAI's API: /v1/... */
#ifndef SERVER_OPENAI_OPENAI_H
#define SERVER_OPENAI_OPENAI_H

#include "engine/request/request.h"
#include "server/http/dialect.h"
#include "server/http/exchange.h"

/* Writes errors as {"error": {"message", "type", "param", "code"}}. */
extern const struct dialect dialect_openai;

/* The `allowed` text of an unknown field; its error code is "unknown_parameter". */
#define OPENAI_NO_SUCH_FIELD "there is no such field"

/* Renames an error's field if OpenAI has another name for it. */
void openai_rename(struct error *err);

/* The one name of a query that all of OpenAI's routes accept and ignore: Azure's clients send it.
 */
#define OPENAI_API_VERSION "api-version"
/* Returns true if the target has no query, or only OPENAI_API_VERSION. Routes that have a query
 * list that name among their fields. */
bool openai_query_none(const char *target, struct error *err) __attribute__((warn_unused_result));

/* The values that a request's "model" may have. Borrowed. */
struct openai_models {
    const char *loaded;        /* name of the loaded checkpoint; "": none */
    struct adapters *adapters; /* NULL: none, or not known yet */
    bool can_switch;           /* PUT /model may load others */
    const char *const *served; /* --served-model-name; ends with NULL, may be NULL */
};
struct openai_models openai_models_of(const struct exchange *exchange);

/* Accepts "", the loaded model's name, "sd15" and the served names, all of which mean the loaded
 * model. An adapter's name may follow after a colon, or stand alone as in vLLM; the request then
 * also uses the adapter, with weight 1. Any other value is ERROR_NOT_FOUND with the param
 * "model". */
bool openai_choose_model(const char *asked, const struct openai_models *models,
    struct generate_request *request, struct error *err) __attribute__((warn_unused_result));

#endif
