/* What the routes of OpenAI's API share: /v1/... */
#ifndef SERVER_OPENAI_OPENAI_H
#define SERVER_OPENAI_OPENAI_H

#include "engine/request.h"
#include "server/dialect/dialect.h"

/* {"error": {"message", "type", "param", "code"}} */
extern const struct dialect dialect_openai;

/* What is said of a name that no field has; its code is "unknown_parameter". */
#define OPENAI_NO_SUCH_FIELD "there is no such field"

/* The field of an error, where OpenAI has another name for what we know. */
void openai_rename(struct error *err);

/* ERROR_NOT_FOUND with the param "model". Always returns false. */
bool openai_no_such_model(const char *model, struct error *err);

/* One adapter more, at its full weight: what stands behind the colon of MODEL:ADAPTER. */
bool openai_add_lora(struct generate_request *request, const char *name, struct error *err)
    __attribute__((warn_unused_result));

#endif
