/* Arbitrary descriptions of a training job; the first byte selects our own fields, a configuration
 * of deepspeed-diffusers, or kohya's files. The latter are two TOML files and one of prompts, with
 * a byte 1 between them. A refusal gives a reason. An accepted job stays the same when it is
 * written as JSON and parsed again, and may resume from its own checkpoints. */
#include "base/text/json.h"
#include "base/text/toml.h"
#include "tests/fuzz/fuzz.h"
#include "train/config.h"
#include "train/deepspeed_config.h"
#include "train/kohya/kohya_config.h"

#include <stdlib.h>
#include <string.h>

static bool is_reason(const struct error *err) {
    return err->code != ERROR_NONE && err->message[0];
}

static void use_job(const json_t *json) {
    struct train_config config, again;
    struct error err = { 0 };
    if (!train_config_parse(json, &config, &err)) {
        promise(is_reason(&err));
        train_config_finish(&config);
        return;
    }
    json_t *first = train_config_to_json(&config);
    promise(train_config_parse(first, &again, &err));
    json_t *second = train_config_to_json(&again);
    promise(json_equal(first, second) && train_config_continues(&again, first, &err));
    json_decref(first);
    json_decref(second);
    train_config_finish(&config);
    train_config_finish(&again);
}

/* Uses what a converter made of its files. */
static void use_converted(bool ok, json_t *job, json_t *notes, const struct error *err) {
    json_t *note;
    size_t i;
    if (!ok) {
        promise(is_reason(err));
        return;
    }
    promise(json_is_object(job) && json_is_array(notes));
    json_array_foreach(notes, i, note) promise(json_string_length(note) > 0);
    use_job(job);
    json_decref(job);
    json_decref(notes);
}

static void use_deepspeed(const json_t *json) {
    json_t *job, *notes;
    struct error err = { 0 };
    const bool ok = deepspeed_config_read(json, "name", &job, &notes, &err);
    use_converted(ok, job, notes, &err);
}

/* Parses TOML; what comes out can be written as JSON. */
static json_t *parse_toml(const char *text, size_t size) {
    struct error err = { 0 };
    json_t *value = toml_parse(text, size, &err);
    char *json = value ? json_dumps(value, 0) : NULL;
    promise(value ? json != NULL : is_reason(&err));
    free(json);
    return value;
}

static void use_kohya(const char *text, size_t size) {
    const char *end = text + size, *first = memchr(text, 1, size);
    const char *second = first ? memchr(first + 1, 1, (size_t)(end - first - 1)) : NULL;
    const char *const dataset_end = second ? second : end;
    json_t *job, *notes;
    struct error err = { 0 };
    json_t *config = parse_toml(text, (size_t)((first ? first : end) - text));
    json_t *dataset = first ? parse_toml(first + 1, (size_t)(dataset_end - first - 1)) : NULL;
    char *prompts = second ? strndup(second + 1, (size_t)(end - second - 1)) : NULL;
    const struct kohya_files files = { config, dataset, prompts, NULL };
    if (config && (!first || dataset)) {
        const bool ok = kohya_config_read(&files, &job, &notes, &err);
        use_converted(ok, job, notes, &err);
    }
    free(prompts);
    json_decref(dataset);
    json_decref(config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = { 0 };
    if (size == 0)
        return 0;
    if (data[0] % 4 == 2) {
        use_kohya((const char *)data + 1, size - 1);
        return 0;
    }
    json_t *json = json_parse((const char *)data + 1, size - 1, &err);
    if (!json)
        promise(is_reason(&err));
    else if (data[0] % 2)
        use_deepspeed(json);
    else
        use_job(json);
    json_decref(json);
    return 0;
}
