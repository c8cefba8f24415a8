/* What the routes of OpenAI's API share: /v1/... */
#ifndef SERVER_OPENAI_OPENAI_H
#define SERVER_OPENAI_OPENAI_H

#include "server/dialect/dialect.h"

/* {"error": {"message", "type", "param", "code"}} */
extern const struct dialect dialect_openai;

#endif
