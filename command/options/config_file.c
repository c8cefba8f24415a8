#include "command/options/config_file.h"

#include "base/file.h"
#include "base/text/json.h"

#include <stdlib.h>
#include <string.h>

static int find(const struct option_spec *table, const char *key) {
    for (int i = 0; table[i].name; i++)
        if (strcmp(table[i].name, key) == 0)
            return table[i].holds_options ? -1 : i;
    return -1;
}

/* Returns the value as it would be written on a command line; NULL if it is neither a text nor a
 * number. Borrowed from `value` or from `holder`, which keeps the text of a number. */
static const char *text_of(const json_t *value, json_t *holder) {
    char text[40];
    if (json_is_string(value))
        return json_string_value(value);
    if (json_is_integer(value))
        snprintf(text, sizeof(text), "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    else if (json_is_real(value))
        snprintf(text, sizeof(text), "%.17g", json_real_value(value));
    else
        return NULL;
    json_t *string = json_string(text);
    return json_array_append_new(holder, string) == 0 ? json_string_value(string) : NULL;
}

static bool add_repeated(
    struct options *options, int index, const json_t *value, json_t *holder, struct error *err) {
    const char *name = options->table[index].name;
    if (!json_is_array(value))
        return json_bad_field(name, value, "a list of texts", err);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const char *text = text_of(json_array_get(value, i), holder);
        if (!text)
            return json_bad_field(name, json_array_get(value, i), "a text or a number", err);
        if (options->repeated_count == OPTIONS_REPEATS_MAX)
            return error_set(
                err, ERROR_INVALID, "%s: more than %d values", name, OPTIONS_REPEATS_MAX);
        options->values[index] = text;
        options->repeated[options->repeated_count].index = index;
        options->repeated[options->repeated_count++].value = text;
    }
    return true;
}

static bool add(
    struct options *options, const char *key, json_t *value, json_t *holder, struct error *err) {
    const int index = find(options->table, key);
    if (index < 0)
        return json_bad_field(key, value, "there is no such option", err);
    const struct option_spec *spec = &options->table[index];
    if (!spec->metavar && !json_is_boolean(value))
        return json_bad_field(key, value, "true or false", err);
    if (options->values[index])
        return true; /* set on the command line */
    if (spec->repeats)
        return add_repeated(options, index, value, holder, err);
    const char *text = !spec->metavar ? "" : text_of(value, holder);
    if (!text)
        return json_bad_field(key, value, "a text or a number", err);
    if (spec->metavar || json_is_true(value))
        options->values[index] = text;
    return true;
}

/* Takes over `root`, also on failure. */
static bool add_all(json_t *root, struct options *options, struct error *err) {
    json_t *holder = json_array(), *value;
    const char *key;
    options->config = json_pack("[o, o]", root, holder); /* keeps both */
    if (!options->config)
        return error_set(err, ERROR_NO_MEMORY, "no memory for its values");
    if (!json_is_object(root))
        return error_set(err, ERROR_INVALID, "it is not a JSON object");
    json_object_foreach(root, key, value) {
        if (!add(options, key, value, holder, err))
            return false;
    }
    return true;
}

bool config_file_parse(const char *text, size_t size, struct options *options, struct error *err) {
    json_t *root = json_parse(text, size, err);
    return root && add_all(root, options, err);
}

bool config_file_read(const char *path, struct options *options, struct error *err) {
    char *text;
    size_t size;
    if (!file_read(path, CONFIG_FILE_MAX_BYTES, &text, &size, err))
        return false;
    const bool ok = config_file_parse(text, size, options, err) || error_prefix(err, "%s", path);
    free(text);
    return ok;
}
