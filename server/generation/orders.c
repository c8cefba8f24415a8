#include "server/generation/orders.h"

#include "base/file.h"
#include "base/text/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_NAME "request.json"
#define FILE_MAX_BYTES (HTTP_BODY_MAX_BYTES + (1u << 20))
#define SHOWN_TEXT_BYTES 65536 /* longer strings (pictures, ...) are not shown */

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory for the job");
}

/* --- Adapters --- */

/* Reads size and time of the adapter's file in the folder of adapters. Returns false if the folder
 * has no file of that name; an adapter NAME@STEP never has one there. */
static bool look_at_file(const struct http_options *options, struct order_adapter *adapter) {
    char *path = NULL;
    struct stat st;
    if (!options->lora_dir ||
        asprintf(&path, "%s/%s.safetensors", options->lora_dir, adapter->name) < 0)
        return false;
    const bool found = stat(path, &st) == 0;
    free(path);
    if (!found)
        return false;
    adapter->bytes = st.st_size;
    adapter->changed_ns = (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec;
    return true;
}

bool orders_check_adapters(const struct generation_order_file *order,
    const struct http_options *options, struct error *err) {
    for (int i = 0; i < order->adapter_count; i++) {
        struct order_adapter now = order->adapters[i];
        if (!look_at_file(options, &now) || now.bytes != order->adapters[i].bytes ||
            now.changed_ns != order->adapters[i].changed_ns)
            return error_set(err, ERROR_CONFLICT,
                "adapter %s was replaced after the job was accepted: send the request again to "
                "draw with the new one",
                now.name);
    }
    return true;
}

static json_t *adapters_json(
    const struct http_options *options, const struct resolved_request *resolved) {
    const struct adapter_use *uses;
    const int count = adapter_set_uses(resolved->adapters, &uses);
    json_t *list = json_array();
    for (int i = 0; list && i < count; i++) {
        struct order_adapter adapter = { 0 };
        snprintf(adapter.name, sizeof(adapter.name), "%s", uses[i].name);
        if (look_at_file(options, &adapter))
            json_array_append_new(
                list, json_pack("{s:s, s:I, s:I}", "name", adapter.name, "bytes",
                          (json_int_t)adapter.bytes, "changed_ns", (json_int_t)adapter.changed_ns));
    }
    return list;
}

/* --- Writing --- */

static json_t *uses_json(const struct resolved_request *resolved) {
    const struct adapter_use *uses;
    const int count = adapter_set_uses(resolved->adapters, &uses);
    json_t *list = json_array();
    for (int i = 0; list && i < count; i++)
        json_array_append_new(
            list, json_pack("{s:s, s:f, s:f}", "name", uses[i].name, "weight", uses[i].weight,
                      "text_encoder_weight", uses[i].text_encoder_weight));
    return list;
}

/* Fills in the fields whose defaults may have changed when the job runs. With AUTOMATIC1111's
 * prompt syntax a long_prompt that the client did not give is left out, because that syntax accepts
 * only the value "chunk". */
static bool decide_defaults(json_t *body, const struct generate_request *asked) {
    bool ok = true;
    for (int id = 0; ok && id < GENERATE_FIELD_COUNT; id++) {
        const struct generate_field *f = &generate_fields[id];
        const json_t *value_given = json_object_get(body, f->name);
        const bool is_open = f->by_model && f->kind != FIELD_OTHER &&
                             (!value_given || json_is_null(value_given)) &&
                             (id != GENERATE_long_prompt || asked->long_prompt_given ||
                                 asked->prompt_syntax == PROMPT_SYNTAX_PLAIN);
        if (!is_open || (id == GENERATE_negative_prompt && asked->negative_prompt_embeds.values))
            continue;
        json_t *value = field_to_json(&f->field, asked);
        if (json_is_null(value)) {
            json_decref(value);
            value = json_string("");
        }
        ok = json_object_set_new(body, f->name, value) == 0;
    }
    return ok;
}

/* Stores the resolved seeds, model, scheduler and adapters in the body. Adapters get their full
 * names: a short name may mean another one later. If the prompt may have tags, adapters stay as
 * they were sent, because every attempt reads the tags anew. */
static bool decide(json_t *body, const struct resolved_request *resolved) {
    const char *syntax = json_string_value(json_object_get(body, "prompt_syntax"));
    const bool has_tags = syntax && strcmp(syntax, "plain") != 0;
    json_object_del(body, "stream");
    bool ok = json_object_set_new(body, "seed", json_integer((json_int_t)resolved->asked.seed)) ==
              0;
    if (ok && resolved->asked.subseed_strength > 0)
        ok = json_object_set_new(
                 body, "subseed", json_integer((json_int_t)resolved->asked.subseed)) == 0;
    ok = ok && decide_defaults(body, &resolved->asked);
    if (ok && resolved->of.name)
        ok = json_object_set_new(body, "model", json_string(resolved->of.name)) == 0;
    const json_t *scheduler = json_object_get(body, "scheduler");
    if (ok && (!scheduler || json_is_null(scheduler)) &&
        scheduler_choice_is_given(&resolved->asked.scheduler))
        ok = json_object_set_new(
                 body, "scheduler", scheduler_choice_to_json(&resolved->asked.scheduler)) == 0;
    if (ok && !has_tags)
        ok = json_object_set_new(body, "loras", uses_json(resolved)) == 0;
    return ok;
}

/* Copies the body, with {"characters": N} in place of pictures and very long texts. */
static json_t *show(const json_t *body) {
    json_t *shown = json_object(), *value;
    const char *key;
    bool ok = shown;
    json_object_foreach((json_t *)body, key, value) {
        const size_t length = json_string_length(value);
        json_t *item = length > SHOWN_TEXT_BYTES || strcmp(key, "init_image") == 0 ||
                               strcmp(key, "mask_image") == 0
                           ? json_pack("{s:I}", "characters", (json_int_t)length)
                           : json_incref(value);
        ok = ok && json_object_set_new(shown, key, item) == 0;
    }
    if (ok)
        return shown;
    json_decref(shown);
    return NULL;
}

bool orders_write(const char *folder, const struct http_options *options, const json_t *body,
    const struct resolved_request *resolved, json_t **shown, struct error *err) {
    json_t *decided = json_copy((json_t *)body);
    bool ok = decided && decide(decided, resolved);
    *shown = ok ? show(decided) : NULL;
    json_t *root = *shown ? json_pack("{s:O, s:o}", "body", decided, "adapters",
                                adapters_json(options, resolved))
                          : NULL;
    char *text = root ? json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    char *path = file_join(folder, FILE_NAME);
    const struct file_part part = { text, text ? strlen(text) : 0 };
    if (text && path)
        ok = file_write(path, &part, 1, err);
    else
        ok = no_memory(err);
    free(path);
    free(text);
    json_decref(root);
    json_decref(decided);
    if (!ok) {
        json_decref(*shown);
        *shown = NULL;
    }
    return ok;
}

/* --- Reading --- */

static bool read_adapters(
    const json_t *list, struct generation_order_file *out, struct error *err) {
    size_t i;
    json_t *item;
    json_array_foreach((json_t *)list, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (!name || out->adapter_count == LORAS_PER_REQUEST_MAX)
            return error_set(err, ERROR_IO, "%s: its adapters are damaged", FILE_NAME);
        struct order_adapter *adapter = &out->adapters[out->adapter_count++];
        snprintf(adapter->name, sizeof(adapter->name), "%s", name);
        adapter->bytes = json_integer_value(json_object_get(item, "bytes"));
        adapter->changed_ns = json_integer_value(json_object_get(item, "changed_ns"));
    }
    return true;
}

static bool read_body(const json_t *body, struct generation_order_file *out, struct error *err) {
    char *text = body ? json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    const bool ok = text ? generate_json_parse(
                               text, strlen(text), &out->request, &out->delivery, err)
                         : error_set(err, ERROR_IO, "%s: it has no body", FILE_NAME);
    free(text);
    return ok;
}

bool orders_read(const char *folder, struct generation_order_file *out, struct error *err) {
    char *path = file_join(folder, FILE_NAME);
    memset(out, 0, sizeof(*out));
    if (!path)
        return no_memory(err);
    json_t *root = json_parse_file(path, FILE_MAX_BYTES, err);
    free(path);
    if (!root)
        return false;
    const bool ok = read_adapters(json_object_get(root, "adapters"), out, err) &&
                    read_body(json_object_get(root, "body"), out, err);
    json_decref(root);
    return ok;
}

void orders_finish(struct generation_order_file *order) {
    generate_request_finish(&order->request);
}
