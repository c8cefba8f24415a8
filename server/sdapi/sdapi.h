/* Shared by the routes of AUTOMATIC1111's API: /sdapi/v1/... and /internal/... */
#ifndef SERVER_SDAPI_SDAPI_H
#define SERVER_SDAPI_SDAPI_H

#include "server/http/dialect.h"
#include "server/http/route.h"

/* Writes errors as FastAPI does: {"detail": TEXT}, or for status 422 a list of fields and
 * reasons. */
extern const struct dialect dialect_sdapi;

/* A value for content_types: JSON, or no body. */
extern const char *const sdapi_json_or_none[];

/* Returns the name of the loaded checkpoint, or "" if there is none. Valid as long as the engine
 * exists. */
const char *sdapi_model_name(struct http_server *server);

/* Answers with the JSON value null. */
enum MHD_Result sdapi_respond_null(struct exchange *exchange);

#endif
