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

/* Returns how well `asked` fits a checkpoint called `name`, as AUTOMATIC1111 looks for it. 3: it is
 * the name; 2: with a file's ending ("x.safetensors") or a title's hash ("x [0123abcd]") behind it;
 * 1: it is the last part of the name, or with one of these; 0: it is another. Hashes are not
 * compared, because none are computed here. */
int sdapi_model_fit(const char *asked, const char *name);

/* Answers with the JSON value null. */
enum MHD_Result sdapi_respond_null(struct exchange *exchange);

#endif
