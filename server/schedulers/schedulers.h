/* The schedulers and the options that a request may set on each, for GET /schedulers and GET
 * /info. */
#ifndef SERVER_SCHEDULERS_SCHEDULERS_H
#define SERVER_SCHEDULERS_SCHEDULERS_H

#include "engine/loop/pipeline.h"

/* {"schedulers": [{"name", "class", "display_name", "description", "aliases", "options"}, ...],
 * "default"}; `options` as in scheduler_options_json. `info` may be NULL while there is no model.
 * All functions here return NULL when memory is short. */
json_t *schedulers_json(const struct pipeline_info *info);

/* The options of one scheduler by name, each a JSON Schema: {"type", "enum" or "minimum" and
 * "maximum", "description", "default"}. "default" is the value that a request without the option
 * gets with this model. It is missing if `info` is NULL or the scheduler does not fit the model. */
json_t *scheduler_options_json(enum scheduler_kind kind, const struct pipeline_info *info);

/* The JSON schema of a request's "scheduler": a name, or an object of a name and the options of all
 * classes. Returns a new reference. */
json_t *scheduler_choice_schema(void);

#endif
