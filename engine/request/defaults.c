#include "engine/request/defaults.h"

#include "base/text/json.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FILE_MAX_BYTES (64 << 10)

static bool *given(const struct generate_field *f, struct generate_request *request) {
    return (bool *)((char *)request + f->given);
}

static char **text_of(const struct generate_field *f, struct generate_request *request) {
    return (char **)((char *)request + f->offset);
}

static bool refuse_name(const char *param, const char *name, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES] = "";
    size_t used = 0;
    for (int id = 0; id < GENERATE_FIELD_COUNT; id++)
        if (generate_fields[id].by_model && used < sizeof(allowed))
            used += (size_t)snprintf(allowed + used, sizeof(allowed) - used, "%s%s",
                used ? ", " : "", generate_fields[id].name);
    return error_field(err, param, name, "a field that can have a default: %s", allowed);
}

/* Sets one default. `value` is JSON. */
static bool set_one(const struct generate_field *f, const json_t *value,
    struct generate_request *out, struct error *err) {
    if (f - generate_fields == GENERATE_scheduler)
        return scheduler_choice_from_json(value, &out->scheduler, err);
    *given(f, out) = true;
    return field_from_json(&f->field, value, out, err);
}

static bool read_all(const json_t *root, struct generate_request *out, struct error *err) {
    const json_t *json = json_object_get(root, "defaults");
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)root, key, value) {
        if (strcmp(key, "defaults") != 0)
            return json_bad_field(key, value, "\"defaults\" is the only key", err);
    }
    if (!json_is_object(json))
        return json_bad_field("defaults", json, "an object of fields and values", err);
    json_object_foreach((json_t *)(uintptr_t)json, key, value) {
        const struct generate_field *f = generate_field_named(key);
        if (!f || !f->by_model)
            return refuse_name(key, "a default", err);
        if (!set_one(f, value, out, err))
            return false;
    }
    return true;
}

/* The file's path; malloc'd, NULL when memory is short. */
static char *path_of(const char *model_path) {
    static const char ending[] = ".safetensors";
    const size_t length = strlen(model_path), end = sizeof(ending) - 1;
    struct stat about;
    char *path = NULL;
    const bool is_folder = stat(model_path, &about) == 0 && S_ISDIR(about.st_mode);
    const bool cut = length > end && strcmp(model_path + length - end, ending) == 0;
    const int written = is_folder ? asprintf(&path, "%s/latentd.json", model_path)
                                  : asprintf(&path, "%.*s.latentd.json",
                                        (int)(cut ? length - end : length), model_path);
    return written < 0 ? NULL : path;
}

bool generate_defaults_load(
    const char *model_path, struct generate_request *out, struct error *err) {
    char *path = path_of(model_path);
    generate_request_init(out);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    bool ok = true;
    if (access(path, F_OK) == 0) {
        json_t *json = json_parse_file(path, FILE_MAX_BYTES, err);
        ok = json && (read_all(json, out, err) || error_prefix(err, "%s", path));
        json_decref(json);
    }
    free(path);
    if (!ok)
        generate_request_finish(out);
    return ok;
}

/* The text is a name, or an object with a name and options. */
static bool set_scheduler(
    const char *param, const char *text, struct generate_request *out, struct error *err) {
    json_t *json = text[0] == '{' ? json_parse(text, strlen(text), err) : json_string(text);
    const bool ok = json && scheduler_choice_from_json(json, &out->scheduler, err);
    json_decref(json);
    return ok || error_prefix(err, "%s", param);
}

bool generate_defaults_set(
    const char *param, const char *text, struct generate_request *out, struct error *err) {
    const size_t length = strcspn(text, "=");
    char name[64];
    snprintf(name, sizeof(name), "%.*s", (int)(length < 63 ? length : 63), text);
    const struct generate_field *f = generate_field_named(name);
    if (!text[length])
        return error_field(err, param, text, "FIELD=VALUE");
    if (!f || !f->by_model)
        return refuse_name(param, text, err);
    if (f->kind == FIELD_OTHER)
        return set_scheduler(param, text + length + 1, out, err);
    if (f->kind == FIELD_TEXT) {
        free(*text_of(f, out));
        *text_of(f, out) = NULL;
    }
    *given(f, out) = true;
    return field_from_text(&f->field, param, text + length + 1, out, err);
}

/* Whether the request leaves the field open. A field that code has set without marking it as given
 * is not open either: its value differs from the built-in default. */
static bool is_open(const struct generate_field *f, struct generate_request *request) {
    if (request->assumed >> (f - generate_fields) & 1)
        return true;
    if (*given(f, request))
        return false;
    return f->kind == FIELD_TEXT ? !*text_of(f, request)
                                 : field_get(&f->field, request) == f->value;
}

/* A request that names a scheduler gets nothing from the defaults. One that gives options alone
 * gets the defaults' scheduler, and the options that it does not give itself. */
static void apply_scheduler(
    const struct generate_request *defaults, struct generate_request *request) {
    const uint64_t bit = UINT64_C(1) << GENERATE_scheduler;
    struct scheduler_choice choice = defaults->scheduler;
    const bool assumed = request->assumed & bit;
    if (!scheduler_choice_is_given(&choice) || (!assumed && request->scheduler.has_kind))
        return;
    for (int id = 0; !assumed && id < SCHEDULER_OPTION_COUNT; id++)
        if (request->scheduler.given[id])
            scheduler_choose(&choice, (enum scheduler_option_id)id,
                field_get(&scheduler_options[id].field, &request->scheduler.values));
    request->scheduler = choice;
    request->assumed &= ~bit;
}

bool generate_defaults_apply(
    const struct generate_request *defaults, struct generate_request *request, struct error *err) {
    const bool has_size = request->init_image.bytes || request->init_latents.values;
    for (int id = 0; defaults && id < GENERATE_FIELD_COUNT; id++) {
        const struct generate_field *f = &generate_fields[id];
        struct generate_request *from = (struct generate_request *)(uintptr_t)defaults;
        if (id == GENERATE_scheduler) {
            apply_scheduler(defaults, request);
            continue;
        }
        if (!f->by_model || !*given(f, from) || !is_open(f, request) ||
            (has_size && (id == GENERATE_width || id == GENERATE_height)))
            continue;
        *given(f, request) = true;
        request->assumed &= ~(UINT64_C(1) << id);
        if (f->kind != FIELD_TEXT) {
            field_set(&f->field, request, field_get(&f->field, from));
            continue;
        }
        free(*text_of(f, request)); /* a default of the client's API */
        if (!(*text_of(f, request) = strdup(*text_of(f, from))))
            return error_set(err, ERROR_NO_MEMORY, "no memory for %s", f->name);
    }
    return true;
}

bool generate_defaults_join(const struct generate_request *first, const char *model_path,
    struct generate_request *out, struct error *err) {
    struct generate_request own;
    if (!generate_defaults_load(model_path, &own, err))
        return false;
    bool ok = true;
    if (first)
        ok = generate_request_copy(first, out, err);
    else
        generate_request_init(out);
    if (ok && !generate_defaults_apply(&own, out, err)) {
        generate_request_finish(out);
        ok = false;
    }
    generate_request_finish(&own);
    return ok;
}

json_t *generate_defaults_json(const struct generate_request *defaults) {
    struct generate_request values;
    json_t *json = json_object();
    bool ok = json != NULL;
    generate_request_init(&values);
    ok = ok && generate_defaults_apply(defaults, &values, NULL);
    for (int id = 0; ok && id < GENERATE_FIELD_COUNT; id++) {
        const struct generate_field *f = &generate_fields[id];
        if (id == GENERATE_scheduler) {
            if (scheduler_choice_is_given(&values.scheduler))
                ok = json_object_set_new(
                         json, f->name, scheduler_choice_to_json(&values.scheduler)) == 0;
            continue;
        }
        const bool unset = f->kind == FIELD_TEXT
                               ? !*text_of(f, &values)
                               : f->zero_is_unset && field_get(&f->field, &values) == 0;
        if (f->by_model && !unset)
            ok = json_object_set_new(json, f->name, field_to_json(&f->field, &values)) == 0;
    }
    generate_request_finish(&values);
    if (ok)
        return json;
    json_decref(json);
    return NULL;
}
