#include "server/schedulers/schedulers.h"

#include <ctype.h>
#include <stdio.h>

/* Takes over the reference to `value`. A NULL value (memory was short) makes the whole object fail
 * later. */
static bool set(json_t *object, const char *key, json_t *value) {
    return json_object_set_new(object, key, value) == 0;
}

static json_t *strings_json(const char *const *texts, unsigned chosen) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (unsigned i = 0; ok && texts[i]; i++)
        if (chosen & 1u << i)
            ok = json_array_append_new(list, json_string(texts[i])) == 0;
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

/* Returns the option's schema for one class and checkpoint. Bit i of `words` says that word i is
 * allowed. `values` has the defaults; if it is NULL, the schema has no default. */
static json_t *option_json(
    const struct scheduler_option *option, unsigned words, const struct scheduler_values *values) {
    json_t *json = field_schema(&option->field);
    bool ok = json != NULL;
    json_object_del(json, "default");
    if (option->kind == FIELD_WORD)
        ok = ok && set(json, "enum", strings_json(option->words, words));
    else if (values && option->kind != FIELD_FLAG && !option->below_max)
        ok = ok && set(json, "maximum", field_number_to_json(scheduler_option_max(option, values)));
    if (values)
        ok = ok && set(json, "default",
                       field_value_to_json(&option->field, field_get(&option->field, values)));
    if (ok)
        return json;
    json_decref(json);
    return NULL;
}

json_t *scheduler_options_json(enum scheduler_kind kind, const struct pipeline_info *info) {
    const struct scheduler_choice choice = { .has_kind = true, .kind = kind };
    struct scheduler_config config;
    bool resolved = info && scheduler_config_resolve(info->scheduler_json, &choice, &config, NULL);
    json_t *options = json_object();
    bool ok = options != NULL;
    for (int id = 0; ok && id < SCHEDULER_OPTION_COUNT; id++)
        if (scheduler_options[id].from != FILE_ONLY && scheduler_has_option(kind, id))
            ok = set(options, scheduler_options[id].name,
                option_json(&scheduler_options[id], scheduler_known_words(kind, id),
                    resolved ? &config.values : NULL));
    if (ok)
        return options;
    json_decref(options);
    return NULL;
}

/* Returns the names that generated clients should use for the words. Client generators would
 * otherwise make the same name from "dpmsolver++" and "dpmsolver". */
static json_t *words_names_json(const char *const *words) {
    json_t *list = json_array();
    for (size_t i = 0; words[i]; i++) {
        char name[32];
        snprintf(name, sizeof(name), "%s", words[i]);
        for (char *at = name; *at; at++)
            *at = isalnum((unsigned char)*at) ? *at : *at == '+' ? 'p' : '_';
        json_array_append_new(list, json_string(name));
    }
    return list;
}

json_t *scheduler_choice_schema(void) {
    json_t *names = json_array(), *properties = json_object();
    bool ok = names && properties;
    for (int kind = 0; ok && kind < SCHEDULER_COUNT; kind++)
        ok = json_array_append_new(names, json_string(scheduler_kind_name(kind))) == 0;
    ok = ok && set(properties, "name", json_pack("{s:s, s:O}", "type", "string", "enum", names));
    for (int id = 0; ok && id < SCHEDULER_OPTION_COUNT; id++)
        if (scheduler_options[id].from != FILE_ONLY) {
            json_t *option = option_json(&scheduler_options[id], FIELD_ALL_WORDS, NULL);
            if (scheduler_options[id].kind == FIELD_WORD)
                ok = set(option, "x-enum-varnames", words_names_json(scheduler_options[id].words));
            ok = set(properties, scheduler_options[id].name, option) && ok;
        }
    return json_pack("{s:[{s:s, s:o}, {s:s, s:o}]}", "anyOf", "type", "string", "enum", names,
        "type", "object", "properties", properties);
}

static json_t *scheduler_json(enum scheduler_kind kind, const struct pipeline_info *info) {
    const struct scheduler_info *s = scheduler_get_info(kind);
    return json_pack("{s:s, s:s, s:s, s:s, s:o, s:o}", "name", s->name, "class", s->class_name,
        "display_name", s->display_name, "description", s->description, "aliases",
        strings_json(s->aliases, FIELD_ALL_WORDS), "options", scheduler_options_json(kind, info));
}

json_t *schedulers_json(const struct pipeline_info *info) {
    json_t *list = json_array();
    bool ok = list != NULL;
    for (int kind = 0; ok && kind < SCHEDULER_COUNT; kind++)
        ok = json_array_append_new(list, scheduler_json((enum scheduler_kind)kind, info)) == 0;
    if (ok)
        return json_pack(
            "{s:o, s:s?}", "schedulers", list, "default", info ? info->default_scheduler : NULL);
    json_decref(list);
    return NULL;
}
