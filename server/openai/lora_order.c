#include "server/openai/lora_order.h"

#include "base/text/json.h"
#include "engine/adapters/adapters.h"
#include "server/openai/openai.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_text(const json_t *body, const char *name, const char **out, struct error *err) {
    const json_t *value = json_object_get(body, name);
    *out = json_string_value(value);
    return (*out && **out) || (value ? json_bad_field(name, value, "a text", err)
                                     : error_field(err, name, "", "it is required: a text"));
}

static bool check_keys(const json_t *body, bool loads, struct error *err) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value) {
        const bool known = strcmp(key, "lora_name") == 0 ||
                           (loads && (strcmp(key, "lora_path") == 0 ||
                                         strcmp(key, "load_inplace") == 0)) ||
                           (!loads && strcmp(key, "lora_int_id") == 0 && json_is_null(value));
        if (!known)
            return json_bad_field(key, value, OPENAI_NO_SUCH_FIELD, err);
    }
    value = json_object_get(body, "load_inplace");
    return !value || json_is_boolean(value) ||
           json_bad_field("load_inplace", value, "true or false", err);
}

static bool read_order(const json_t *body, bool loads, struct lora_order *out, struct error *err) {
    const char *name, *path = "";
    if (!json_is_object(body))
        return error_set(err, ERROR_INVALID, "the body must be a JSON object");
    if (!check_keys(body, loads, err) || !read_text(body, "lora_name", &name, err) ||
        !adapter_name_check("lora_name", name, err) ||
        (loads && !read_text(body, "lora_path", &path, err)))
        return false;
    snprintf(out->name, sizeof(out->name), "%s", name);
    out->replace = json_is_true(json_object_get(body, "load_inplace"));
    out->path = strdup(path);
    return out->path || error_set(err, ERROR_NO_MEMORY, "no memory for the request");
}

bool lora_order_parse(
    const char *text, size_t length, bool loads, struct lora_order *out, struct error *err) {
    *out = (struct lora_order){ 0 };
    json_t *body = json_parse_request(text, length, err);
    const bool ok = body && read_order(body, loads, out, err);
    json_decref(body);
    return ok;
}

void lora_order_finish(struct lora_order *order) {
    free(order->path);
}
