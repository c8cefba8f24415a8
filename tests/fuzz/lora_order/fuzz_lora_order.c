/* Arbitrary bodies of vLLM's two adapter routes; the first byte selects the route. Each ends in an
 * order for an adapter with a valid name, or in an error with a reason. */
#include "engine/adapters/adapters.h"
#include "server/openai/lora_order.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct lora_order order;
    struct error err = { 0 };
    if (size == 0)
        return 0;
    const bool loads = data[0] & 1;
    if (lora_order_parse((const char *)data + 1, size - 1, loads, &order, &err))
        promise(adapter_name_check("lora_name", order.name, &err) &&
                (order.path[0] != 0) == loads && (loads || !order.replace));
    else
        promise(err.code != ERROR_NONE && err.message[0]);
    lora_order_finish(&order);
    return 0;
}
