/* Arbitrary descriptions of a training job; the first byte selects our own fields or a
 * configuration of deepspeed-diffusers. A refusal gives a reason. An accepted job stays the same
 * when it is written as JSON and parsed again, and may resume from its own checkpoints. */
#include "base/text/json.h"
#include "tests/fuzz/fuzz.h"
#include "train/config.h"
#include "train/deepspeed_config.h"

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

static void use_deepspeed(const json_t *json) {
    json_t *job, *notes, *note;
    struct error err = { 0 };
    size_t i;
    if (!deepspeed_config_read(json, "name", &job, &notes, &err)) {
        promise(is_reason(&err));
        return;
    }
    promise(json_is_object(job) && json_is_array(notes));
    json_array_foreach(notes, i, note) promise(json_string_length(note) > 0);
    use_job(job);
    json_decref(job);
    json_decref(notes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct error err = { 0 };
    if (size == 0)
        return 0;
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
