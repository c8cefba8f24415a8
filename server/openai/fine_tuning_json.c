#include "server/openai/fine_tuning_json.h"

#include "base/random.h"
#include "base/text/json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEARNING_RATE 1e-4 /* for a multiplier of 1; a job's default */
#define EPOCHS 10          /* if not given */
#define METADATA_KEY_BYTES 64
#define METADATA_VALUE_BYTES 512

/* --- Ids --- */

static const char *behind(const char *text, const char *prefix) {
    const size_t length = strlen(prefix);
    return strncmp(text, prefix, length) == 0 && text[length] ? text + length : NULL;
}

const char *fine_tuning_job_of(const char *id) {
    return behind(id, "ftjob-");
}

const char *fine_tuning_file_of(const char *id) {
    return behind(id, "file-");
}

int64_t fine_tuning_number_of(const char *id, const char *prefix, const char *job) {
    const char *at = behind(id, prefix);
    at = at ? behind(at, job) : NULL;
    if (!at || *at != '-' || strspn(at + 1, "0123456789") != strlen(at + 1) || !at[1])
        return -1;
    errno = 0;
    const long long number = strtoll(at + 1, NULL, 10);
    return errno ? -1 : number;
}

/* --- The request --- */

static const char *const names[][2] = {
    { "dataset", "training_file" },
    { "name", "suffix" },
    { "num_train_epochs", "n_epochs" },
    { "train_batch_size", "batch_size" },
    { "learning_rate", "learning_rate_multiplier" },
};
#define NAMES (sizeof(names) / sizeof(names[0]))

void fine_tuning_rename(struct error *err) {
    for (size_t i = 0; i < NAMES; i++) {
        if (strcmp(err->param, names[i][0]) != 0)
            continue;
        const struct error native = *err;
        error_field(err, names[i][1], native.value, "%s", native.allowed);
        err->code = native.code;
        return;
    }
}

static bool is_null(const json_t *value) {
    return !value || json_is_null(value);
}

static bool is_auto(const json_t *value) {
    return is_null(value) ||
           (json_is_string(value) && strcmp(json_string_value(value), "auto") == 0);
}

static bool read_metadata(const json_t *value, struct error *err) {
    const char *key;
    json_t *text;
    if (is_null(value))
        return true;
    bool ok = json_is_object(value) && json_object_size(value) <= FINE_TUNING_METADATA_MAX;
    json_object_foreach((json_t *)value, key, text)
        ok = ok && strlen(key) <= METADATA_KEY_BYTES && json_is_string(text) &&
             json_string_length(text) <= METADATA_VALUE_BYTES;
    return ok || json_bad_field("metadata", value,
                     "an object of at most 16 texts, keys of 64 bytes and values of 512", err);
}

static bool read_model(const json_t *value, const struct openai_models *models, struct error *err) {
    struct generate_request request = { 0 };
    const char *name = json_string_value(value);
    if (!name || !name[0])
        return value ? json_bad_field("model", value, "the name of the loaded model", err)
                     : error_field(err, "model", "", "it is required: the loaded model's name");
    const bool ok = openai_choose_model(name, models, &request, err) &&
                    (request.lora_count == 0 ||
                        json_bad_field("model", value,
                            "a model without an adapter; a job trains a new one", err));
    generate_request_finish(&request);
    return ok;
}

static bool read_file(const json_t *value, json_t *config, struct error *err) {
    const char *id = json_string_value(value), *name = id ? fine_tuning_file_of(id) : NULL;
    if (!name)
        return value ? json_bad_field("training_file", value, "the id of a file", err)
                     : error_field(err, "training_file", "", "it is required: the id of a file");
    json_object_set_new(config, "dataset", json_string(name));
    return true;
}

/* Sets the adapter's name; a random one if there is no suffix. */
static bool read_suffix(const json_t *value, json_t *config, struct error *err) {
    char name[32] = "ft-";
    if (!is_null(value)) {
        if (!json_is_string(value) || json_string_length(value) > 64)
            return json_bad_field("suffix", value, "a name of at most 64 bytes", err);
        return json_object_set(config, "name", (json_t *)value) == 0;
    }
    return random_text(name + strlen(name), 4, err) &&
           json_object_set_new(config, "name", json_string(name)) == 0;
}

static bool read_multiplier(const json_t *value, json_t *config, struct error *err) {
    if (!json_is_number(value) || !(json_number_value(value) > 0))
        return json_bad_field(
            "learning_rate_multiplier", value, "\"auto\", or a number above 0: of 0.0001", err);
    return json_object_set_new(
               config, "learning_rate", json_real(LEARNING_RATE * json_number_value(value))) == 0;
}

/* Reads OpenAI's three hyperparameters, and all fields of a training job. */
static bool read_hyperparameters(const json_t *values, json_t *config, struct error *err) {
    const char *key;
    json_t *value;
    if (is_null(values))
        return true;
    if (!json_is_object(values))
        return json_bad_field("hyperparameters", values, "an object", err);
    json_object_foreach((json_t *)values, key, value) {
        const char *native = key;
        for (size_t i = 0; i < NAMES; i++) {
            if (strcmp(key, names[i][0]) == 0 && strcmp(key, "learning_rate") != 0)
                return json_bad_field(key, value, OPENAI_NO_SUCH_FIELD, err);
            if (strcmp(key, names[i][1]) == 0)
                native = names[i][0];
        }
        if (native != key && is_auto(value))
            continue;
        if (strcmp(key, "learning_rate_multiplier") == 0) {
            if (!read_multiplier(value, config, err))
                return false;
        } else if (json_object_set(config, native, value) != 0) {
            return error_set(err, ERROR_NO_MEMORY, "no memory for the request");
        }
    }
    return true;
}

static bool read_method(const json_t *method, json_t *config, struct error *err) {
    const char *key;
    json_t *value;
    if (is_null(method))
        return true;
    const char *type = json_string_value(json_object_get(method, "type"));
    if (!type || strcmp(type, "supervised") != 0)
        return json_bad_field(
            "method", method, "{\"type\": \"supervised\", \"supervised\": {...}}", err);
    json_object_foreach((json_t *)method, key, value) {
        if (strcmp(key, "type") != 0 && strcmp(key, "supervised") != 0)
            return json_bad_field(key, value, OPENAI_NO_SUCH_FIELD, err);
    }
    const json_t *supervised = json_object_get(method, "supervised");
    json_object_foreach((json_t *)supervised, key, value) {
        if (strcmp(key, "hyperparameters") != 0)
            return json_bad_field(key, value, OPENAI_NO_SUCH_FIELD, err);
    }
    return read_hyperparameters(json_object_get(supervised, "hyperparameters"), config, err);
}

/* Refuses fields that OpenAI has but that are not supported here. */
static bool read_absent(const json_t *body, struct error *err) {
    const json_t *file = json_object_get(body, "validation_file");
    const json_t *integrations = json_object_get(body, "integrations");
    if (!is_null(file))
        return json_bad_field("validation_file", file,
            "validation_share of the hyperparameters, which holds pictures back", err);
    return is_null(integrations) ||
           (json_is_array(integrations) && json_array_size(integrations) == 0) ||
           json_bad_field(
               "integrations", integrations, "none; TensorBoard's files are written", err);
}

static bool check_keys(const json_t *body, struct error *err) {
    static const char *const known[] = { "model", "training_file", "suffix", "seed", "method",
        "hyperparameters", "metadata", "validation_file", "integrations" };
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)body, key, value) {
        bool found = false;
        for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
            found = found || strcmp(key, known[i]) == 0;
        if (!found)
            return json_bad_field(key, value, OPENAI_NO_SUCH_FIELD, err);
    }
    const json_t *old = json_object_get(body, "hyperparameters");
    return is_null(old) || is_null(json_object_get(body, "method")) ||
           json_bad_field("hyperparameters", old, "method.supervised.hyperparameters alone", err);
}

static bool read_body(
    const json_t *body, const struct openai_models *models, json_t *config, struct error *err) {
    json_t *seed = json_object_get(body, "seed");
    if (!check_keys(body, err) || !read_model(json_object_get(body, "model"), models, err) ||
        !read_file(json_object_get(body, "training_file"), config, err) ||
        !read_suffix(json_object_get(body, "suffix"), config, err) || !read_absent(body, err) ||
        !read_metadata(json_object_get(body, "metadata"), err) ||
        !read_hyperparameters(json_object_get(body, "hyperparameters"), config, err) ||
        !read_method(json_object_get(body, "method"), config, err))
        return false;
    if (!is_null(seed))
        json_object_set(config, "seed", seed);
    if (!json_object_get(config, "max_train_steps") && !json_object_get(config, "num_train_epochs"))
        json_object_set_new(config, "num_train_epochs", json_integer(EPOCHS));
    return true;
}

json_t *fine_tuning_config(
    const json_t *body, const struct openai_models *models, struct error *err) {
    json_t *config = json_object();
    if (!json_is_object(body))
        error_set(err, ERROR_INVALID, "the body must be a JSON object");
    else if (!config)
        error_set(err, ERROR_NO_MEMORY, "no memory for the request");
    else if (read_body(body, models, config, err))
        return config;
    json_decref(config);
    return NULL;
}

/* --- The answer --- */

static json_t *seconds_json(int64_t ms) {
    return ms ? json_integer(ms / 1000) : json_null();
}

static json_t *parse(const char *text) {
    return text ? json_loads(text, 0, NULL) : NULL;
}

static json_t *hyperparameters_json(const json_t *config) {
    const json_t *epochs = json_object_get(config, "num_train_epochs");
    const double rate = json_number_value(json_object_get(config, "learning_rate"));
    return json_pack("{s:o, s:O?, s:f}", "n_epochs",
        json_integer_value(epochs) > 0 ? json_incref((json_t *)epochs) : json_string("auto"),
        "batch_size", json_object_get(config, "train_batch_size"), "learning_rate_multiplier",
        round(rate / LEARNING_RATE * 1e9) / 1e9);
}

/* Returns the metadata of the job's stored body; {} for a job that was not created by this API. */
static json_t *metadata_json(const struct job *job) {
    json_t *body = parse(job->body);
    json_t *metadata = json_incref(json_object_get(body, "metadata"));
    json_decref(body);
    if (json_is_object(metadata))
        return metadata;
    json_decref(metadata);
    return json_object();
}

static json_t *error_of(const struct job *job) {
    json_t *error = parse(job->error);
    json_t *told = error ? json_pack("{s:O?, s:O?, s:O?}", "code", json_object_get(error, "code"),
                               "message", json_object_get(error, "message"), "param",
                               json_object_get(error, "param"))
                         : json_null();
    json_decref(error);
    return told;
}

static json_t *fine_tuned_model(const struct job *job, const json_t *config, const char *model) {
    const char *name = json_string_value(json_object_get(config, "name"));
    const char *method = json_string_value(json_object_get(config, "method"));
    const bool is_adapter = !method || strcmp(method, "lora") == 0;
    return job->state == JOB_SUCCEEDED && name && is_adapter ? json_sprintf("%s:%s", model, name)
                                                             : json_null();
}

json_t *fine_tuning_job_json(const struct job *job, const char *model) {
    json_t *config = parse(job->request);
    const char *dataset = json_string_value(json_object_get(config, "dataset"));
    const char *own = json_string_value(json_object_get(config, "model"));
    model = own ? own : model;
    json_t *hyperparameters = hyperparameters_json(config);
    const bool has_eta = job->state == JOB_RUNNING && job->eta_s >= 0;
    json_t *json = json_pack(
        "{s:o, s:s, s:o, s:o, s:o, s:s, s:o, s:s, s:s, s:O, s:{s:s, s:{s:o}}, s:o, s:n, s:[], s:O?,"
        " s:n, s:o, s:[], s:o, s:O?}",
        "id", json_sprintf("ftjob-%s", job->id), "object", "fine_tuning.job", "created_at",
        seconds_json(job->created_ms), "finished_at", seconds_json(job->finished_ms),
        "estimated_finish",
        has_eta ? json_integer((json_int_t)time(NULL) + (json_int_t)job->eta_s) : json_null(),
        "model", model, "fine_tuned_model", fine_tuned_model(job, config, model), "organization_id",
        "local", "status", job_state_name(job->state), "hyperparameters", hyperparameters, "method",
        "type", "supervised", "supervised", "hyperparameters", hyperparameters, "training_file",
        json_sprintf("file-%s", dataset ? dataset : ""), "validation_file", "result_files", "seed",
        json_object_get(config, "seed"), "trained_tokens", "error", error_of(job), "integrations",
        "metadata", metadata_json(job), "config", config);
    json_decref(config);
    return json;
}

/* Writes an event's message. Returns its data; for a step, the step's figures under OpenAI's
 * names. */
static json_t *say_event(
    const char *type, const json_t *data, char *message, size_t size, const char **kind) {
    const long long step = json_integer_value(json_object_get(data, "step"));
    const long long steps = json_integer_value(json_object_get(data, "steps"));
    const json_t *loss = json_object_get(json_object_get(data, "metrics"), "loss");
    const char *state = json_string_value(json_object_get(data, "state"));
    *kind = "message";
    if (strcmp(type, "state") == 0 && state) {
        snprintf(message, size, "The job %s %s",
            strcmp(state, "succeeded") == 0 || strcmp(state, "failed") == 0 ? "has"
            : strcmp(state, "cancelled") == 0                               ? "was"
                                                                            : "is",
            state);
    } else if (strcmp(type, "progress") == 0) {
        *kind = "metrics";
        snprintf(message, size, "Step %lld/%lld: training loss=%.6g", step, steps,
            json_number_value(loss));
        return json_pack("{s:I, s:O?, s:I}", "step", (json_int_t)step, "train_loss", loss,
            "total_steps", (json_int_t)steps);
    } else if (strcmp(type, "checkpoint") == 0) {
        snprintf(message, size, "Checkpoint created at step %lld", step);
    } else if (strcmp(type, "validation") == 0) {
        const json_t *valid = json_object_get(data, "loss");
        *kind = "metrics";
        snprintf(message, size, "Step %lld: validated", step);
        return json_pack("{s:I, s:O?}", "step", (json_int_t)step, "valid_loss", valid);
    } else {
        snprintf(message, size, "%.100s", type);
    }
    return json_incref((json_t *)data);
}

json_t *fine_tuning_event_json(const struct job *job, const struct job_event *event) {
    char message[128];
    const char *kind;
    json_t *data = parse(event->data);
    const char *state = json_string_value(json_object_get(data, "state"));
    json_t *result = json_object_get(data, "result");
    json_object_del(result, "file"); /* paths of the daemon's own */
    json_object_del(result, "kohya_file");
    json_t *told = say_event(event->type, data, message, sizeof(message), &kind);
    json_t *json = json_pack("{s:o, s:s, s:I, s:s, s:s, s:s, s:o?}", "id",
        json_sprintf("ft-event-%s-%lld", job->id, (long long)event->number), "object",
        "fine_tuning.job.event", "created_at", (json_int_t)(event->at_ms / 1000), "level",
        state && strcmp(state, "failed") == 0 ? "error" : "info", "message", message, "type", kind,
        "data", told);
    json_decref(data);
    return json;
}

json_t *fine_tuning_checkpoint_json(
    const struct job *job, const json_t *checkpoint, const char *model) {
    const json_int_t step = json_integer_value(json_object_get(checkpoint, "step"));
    const char *adapter = json_string_value(json_object_get(checkpoint, "adapter"));
    const double at_s = json_number_value(json_object_get(checkpoint, "created_at"));
    return json_pack("{s:o, s:s, s:I, s:o, s:o, s:I, s:{s:I}}", "id",
        json_sprintf("ftckpt-%s-%lld", job->id, (long long)step), "object",
        "fine_tuning.job.checkpoint", "created_at", (json_int_t)at_s, "fine_tuned_model_checkpoint",
        json_sprintf("%s:%s", model, adapter ? adapter : ""), "fine_tuning_job_id",
        json_sprintf("ftjob-%s", job->id), "step_number", step, "metrics", "step", step);
}
