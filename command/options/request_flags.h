/* The flags of `latentd generate` for the plain fields of a request, made from GENERATE_FIELDS
 * (engine/request/generate_fields.h). */
#ifndef COMMAND_OPTIONS_REQUEST_FLAGS_H
#define COMMAND_OPTIONS_REQUEST_FLAGS_H

#include "command/options/options.h"
#include "engine/request/request.h"

#define REQUEST_FLAGS_MAX GENERATE_FIELD_COUNT

/* Returns rows for a command's table; the last one is zeroed. options_fill stores their values in
 * the struct generate_request at offset `at` of its target. The first call makes the static rows
 * for its `at`, and must come before threads start. */
const struct option_spec *request_flags(size_t at);

#endif
