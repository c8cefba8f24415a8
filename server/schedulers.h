/* What the schedulers are and what a request may set on each, for GET /schedulers and GET /info. */
#ifndef SERVER_SCHEDULERS_H
#define SERVER_SCHEDULERS_H

#include "engine/pipeline.h"

/* {"schedulers": [{"name", "class", "display_name", "description", "aliases", "options"}, ...],
 * "default"}; `options` as below. `info` may be NULL while there is no model. NULL when memory is
 * short, and so below. */
json_t *schedulers_json(const struct pipeline_info *info);

/* The options of one scheduler by name, each a JSON Schema: {"type", "enum" or "minimum" and
 * "maximum", "description", "default"}. The default is what a request that leaves the option out
 * gets with this model; it is missing where `info` is NULL or the scheduler does not go with the
 * model. */
json_t *scheduler_options_json(enum scheduler_kind kind, const struct pipeline_info *info);

/* What a request's "scheduler" may be, as a JSON schema: a name, or an object of a name and the
 * options of all classes. A new reference; NULL when memory is short. */
json_t *scheduler_choice_schema(void);

#endif
