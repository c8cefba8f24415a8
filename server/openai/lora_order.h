/* Parses the bodies of vLLM's POST /v1/load_lora_adapter and /v1/unload_lora_adapter. No HTTP
 * here. */
#ifndef SERVER_OPENAI_LORA_ORDER_H
#define SERVER_OPENAI_LORA_ORDER_H

#include "base/error.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stddef.h>

struct lora_order {
    char name[ADAPTER_NAME_MAX_BYTES + 1];
    char *path;   /* owned, as sent; "" to unload */
    bool replace; /* may replace a loaded adapter of this name */
};

/* Parses `length` bytes of JSON into *out, to load (`loads`) or to unload. *out needs no
 * initialisation and may be finished also after a failure. */
bool lora_order_parse(const char *text, size_t length, bool loads, struct lora_order *out,
    struct error *err) __attribute__((warn_unused_result));
void lora_order_finish(struct lora_order *order);

#endif
