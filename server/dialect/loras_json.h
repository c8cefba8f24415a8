/* Adapters as JSON: what GET /loras says of them, and what POST /loras/{name} may say. No HTTP. */
#ifndef SERVER_DIALECT_LORAS_JSON_H
#define SERVER_DIALECT_LORAS_JSON_H

#include "engine/adapters/adapters.h"

#include <jansson.h>

/* Everything that is known of one name. NULL when memory is short. */
json_t *lora_json(const struct adapter_info *info);

/* {"loras": [...], "folder", "resident_bytes", "limit_bytes", "merge"}. */
json_t *loras_json(const struct adapters_listing *listing);

/* What is not given stays. */
struct lora_change {
    struct adapter_settings settings;
    bool has_loaded, loaded;
};
/* {"default_weight", "text_encoder_weight", "pinned", "loaded"}, at least one of them. A
 * default_weight of null: it is no default any more. ERROR_INVALID names the field. */
bool lora_change_parse(const char *text, size_t length, struct lora_change *out, struct error *err)
    __attribute__((warn_unused_result));

#endif
