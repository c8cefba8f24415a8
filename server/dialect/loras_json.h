/* Adapters as JSON: the answer of GET /loras and the body of POST /loras/{name}. No HTTP here. */
#ifndef SERVER_DIALECT_LORAS_JSON_H
#define SERVER_DIALECT_LORAS_JSON_H

#include "engine/adapters/adapters.h"

#include <jansson.h>

/* Returns everything that is known about one adapter. NULL when memory is short. */
json_t *lora_json(const struct adapter_info *info);

/* Returns {"loras": [...], "folder", "resident_bytes", "limit_bytes", "merge"}. NULL when memory is
 * short. */
json_t *loras_json(const struct adapters_listing *listing);

/* The changes in a POST /loras/{name}. Fields that the body does not name stay unchanged. */
struct lora_change {
    struct adapter_settings settings;
    bool has_loaded, loaded;
};
/* Parses {"default_weight", "text_encoder_weight", "pinned", "loaded"}; at least one of them is
 * required. A default_weight of null removes the adapter from the defaults. ERROR_INVALID names the
 * field. */
bool lora_change_parse(const char *text, size_t length, struct lora_change *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
