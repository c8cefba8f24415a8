/* What the routes of AUTOMATIC1111's API share: /sdapi/v1/... and /internal/... */
#ifndef SERVER_SDAPI_SDAPI_H
#define SERVER_SDAPI_SDAPI_H

#include "server/dialect/dialect.h"
#include "server/http/route.h"

/* As FastAPI: {"detail": TEXT}, or, with status 422, what is wrong with which field. */
extern const struct dialect dialect_sdapi;

/* JSON, or no body at all. */
extern const char *const sdapi_json_or_none[];

/* Of the checkpoint that is drawn with, "" while there is none; it lives as long as the engine. */
const char *sdapi_model_name(struct http_server *server);

/* What "null" is as an answer. */
enum MHD_Result sdapi_respond_null(struct exchange *exchange);

#endif
