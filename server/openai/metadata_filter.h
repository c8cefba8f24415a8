/* The filter of a list of training jobs by metadata: ?metadata[KEY]=VALUE, once for each key, or
 * ?metadata=null for jobs that have none. */
#ifndef SERVER_OPENAI_METADATA_FILTER_H
#define SERVER_OPENAI_METADATA_FILTER_H

#include "base/error.h"

#include <jansson.h>
#include <stdbool.h>

struct metadata_filter {
    json_t *wanted; /* owned: KEY to VALUE; NULL: any */
    bool none;      /* only jobs without metadata */
};

/* Reads the filter of a target's query. *rest is the target without it, malloc'd, for query_parse.
 * The caller finishes *out and frees *rest, also after a failure. ERROR_INVALID for a repeated key,
 * more than FINE_TUNING_METADATA_MAX keys, a wrong escape, or both forms at once. */
bool metadata_filter_take(const char *target, struct metadata_filter *out, char **rest,
    struct error *err) __attribute__((warn_unused_result));
void metadata_filter_finish(struct metadata_filter *filter);

#endif
