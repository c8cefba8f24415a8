/* The schedulers and the options that a request may set on each, for GET /schedulers and GET
 * /info. */
#ifndef SERVER_SCHEDULERS_SCHEDULERS_H
#define SERVER_SCHEDULERS_SCHEDULERS_H

#include "engine/loop/pipeline.h"

/* Returns {"schedulers": [{"name", "class", "display_name", "description", "aliases", "options"},
 * ...], "default"}. `options` are those of scheduler_options_json. `info` is NULL while no model is
 * loaded. All functions here return NULL when memory is short. */
json_t *schedulers_json(const struct pipeline_info *info);

/* Returns the options of one scheduler by name, each with a JSON Schema: {"type", "enum" or
 * "minimum" and "maximum", "description", "default"}. "default" is the value that this model uses
 * if a request does not set the option. It is missing if `info` is NULL or the scheduler does not
 * fit the model. */
json_t *scheduler_options_json(enum scheduler_kind kind, const struct pipeline_info *info);

/* Returns the JSON schema of a request's "scheduler": a name, or an object with a name and the
 * options of all classes. A new reference. */
json_t *scheduler_choice_schema(void);

#endif
