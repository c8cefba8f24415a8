#include "command/options/options.h"

#include "command/options/config_file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* Returns the index of the row for "--name[=value]" or "-x", or -1. */
static int find(const struct option_spec *table, const char *text) {
    size_t length = strcspn(text, "=");
    for (int i = 0; table[i].name; i++) {
        if (strncmp(text, "--", 2) == 0 && strlen(table[i].name) == length - 2 &&
            strncmp(text + 2, table[i].name, length - 2) == 0)
            return i;
        if (text[0] == '-' && text[1] == table[i].letter && text[1] && length == 2)
            return i;
    }
    return -1;
}

static bool take(
    struct options *out, int index, int *at, int argc, char **argv, struct error *err) {
    const struct option_spec *spec = &out->table[index];
    const char *equals = strchr(argv[*at], '=');
    const char *value = "";
    if (out->values[index] && !spec->repeats)
        return error_set(err, ERROR_INVALID, "--%s is given twice", spec->name);
    if (!spec->metavar && equals)
        return error_set(err, ERROR_INVALID, "--%s takes no value", spec->name);
    if (spec->metavar && equals) {
        value = equals + 1;
    } else if (spec->metavar) {
        if (*at + 1 >= argc)
            return error_set(
                err, ERROR_INVALID, "--%s needs a value: %s", spec->name, spec->metavar);
        value = argv[++*at];
    }
    out->values[index] = value;
    if (!spec->repeats)
        return true;
    if (out->repeated_count == OPTIONS_REPEATS_MAX)
        return error_set(err, ERROR_INVALID, "--%s is given more than %d times", spec->name,
            OPTIONS_REPEATS_MAX);
    out->repeated[out->repeated_count].index = index;
    out->repeated[out->repeated_count++].value = value;
    return true;
}

void options_append(struct option_spec *table, const struct option_spec *rows) {
    int used = 0;
    while (table[used].name)
        used++;
    for (; rows->name && used < OPTIONS_MAX; rows++)
        table[used++] = *rows;
}

enum option_form options_form_asked(const char *argument) {
    static const struct {
        const char *argument;
        enum option_form form;
    } forms[] = {
        { "--help", OPTION_FORM_HELP },
        { "-h", OPTION_FORM_HELP },
        { "--help=man", OPTION_FORM_MAN },
        { "--help=bash", OPTION_FORM_BASH },
        { "--help=zsh", OPTION_FORM_ZSH },
    };
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(argument, forms[i].argument) == 0)
            return forms[i].form;
    return OPTION_FORM_NONE;
}

void options_finish(struct options *options) {
    json_decref(options->config);
    options->config = NULL;
}

const char *options_get(const struct options *options, const char *name) {
    for (int i = 0; options->table[i].name; i++)
        if (strcmp(options->table[i].name, name) == 0)
            return options->values[i];
    return NULL;
}

bool options_parse(const struct option_spec *table, bool takes_argument, int argc, char **argv,
    struct options *out, struct error *err) {
    memset(out, 0, sizeof(*out));
    out->table = table;
    for (int i = 1; i < argc; i++) {
        if ((out->help = options_form_asked(argv[i])))
            return true;
        int index = find(table, argv[i]);
        if (index >= 0) {
            if (!take(out, index, &i, argc, argv, err))
                return false;
        } else if (argv[i][0] == '-' && argv[i][1]) {
            return error_set(err, ERROR_INVALID, "there is no option %s", argv[i]);
        } else if (!takes_argument || out->argument) {
            return error_set(err, ERROR_INVALID, "unexpected argument \"%s\"", argv[i]);
        } else {
            out->argument = argv[i];
        }
    }
    for (int i = 0; table[i].name; i++)
        if (table[i].holds_options && out->values[i] && !config_file_read(out->values[i], out, err))
            return false;
    for (int i = 0; table[i].name; i++)
        if (table[i].required && !out->values[i])
            return error_set(
                err, ERROR_INVALID, "--%s %s is required", table[i].name, table[i].metavar);
    return true;
}

int options_count(const struct options *options, const char *name) {
    int count = 0;
    for (int i = 0; i < options->repeated_count; i++)
        count += strcmp(options->table[options->repeated[i].index].name, name) == 0;
    return count;
}

const char *options_get_nth(const struct options *options, const char *name, int nth) {
    for (int i = 0; i < options->repeated_count; i++)
        if (strcmp(options->table[options->repeated[i].index].name, name) == 0 && nth-- == 0)
            return options->repeated[i].value;
    return NULL;
}

bool options_refuse(const char *name, const char *value, const char *allowed, struct error *err) {
    char param[64];
    snprintf(param, sizeof(param), "--%s", name);
    return error_field(err, param, value, "%s", allowed);
}

/* Stores one value. `text` is NULL if the option was not given. */
static bool fill_one(
    const struct option_spec *spec, const char *text, void *target, struct error *err) {
    const struct option_target *to = &spec->to;
    void *member = (char *)target + to->field.offset;
    char name[64];
    snprintf(name, sizeof(name), "--%s", spec->name);
    if (text && to->given)
        *(bool *)((char *)target + to->given) = true;
    switch (to->type) {
    case OPTION_NOWHERE:
        return true;
    case OPTION_DEVICE:
        return device_choice_parse(text ? text : "auto", member) ||
               options_refuse(spec->name, text, "auto, cpu, cuda or cuda:N", err);
    case OPTION_DTYPE:
        return dtype_choice_parse(text ? text : "auto", member) ||
               options_refuse(spec->name, text, "auto, f32, f16 or bf16", err);
    case OPTION_TEXT:
        if (text)
            *(const char **)member = text;
        return true;
    case OPTION_FLAG:
        if (text)
            *(bool *)member = true;
        return true;
    case OPTION_FIELD:
        return !text || field_from_text(&to->field, name, text, target, err);
    }
    return true;
}

static bool check_needs(const struct options *options, struct error *err) {
    for (int i = 0; options->table[i].name; i++) {
        const struct option_spec *spec = &options->table[i];
        for (int k = 0; k < OPTION_NEEDS_MAX && spec->needs[k] && options->values[i]; k++)
            if (!options_get(options, spec->needs[k]))
                return error_set(err, ERROR_INVALID, "--%s has no effect without --%s", spec->name,
                    spec->needs[k]);
    }
    return true;
}

bool options_fill(const struct options *options, void *target, struct error *err) {
    for (int i = 0; options->table[i].name; i++) {
        const struct option_spec *spec = &options->table[i];
        if (!fill_one(spec, options->values[i], target, err))
            return false;
    }
    return check_needs(options, err);
}

void options_print_notes(FILE *out, const struct option_spec *spec, const char *gap) {
    if (spec->required)
        fprintf(out, " (required)");
    for (int k = 0; k < OPTION_NEEDS_MAX && spec->needs[k]; k++)
        fprintf(out, "%s--%s", k == 0 ? gap : " and ", spec->needs[k]);
    fprintf(out, "%s\n", spec->needs[0] ? ")" : "");
}

void options_print_help(
    FILE *out, const struct command_help *help, const struct option_spec *table) {
    fprintf(out, "usage: %s\n\n%s\n", help->usage, help->summary);
    if (table[0].name)
        fprintf(out, "\noptions:\n");
    for (const struct option_spec *spec = table; spec->name; spec++) {
        char left[80];
        int used = spec->letter
                       ? snprintf(left, sizeof(left), "  -%c, --%s", spec->letter, spec->name)
                       : snprintf(left, sizeof(left), "  --%s", spec->name);
        if (spec->metavar)
            snprintf(left + used, sizeof(left) - (size_t)used, " %s", spec->metavar);
        fprintf(out, "%-32s", left);
        for (const char *p = spec->help; *p; p++) {
            fputc(*p, out);
            if (*p == '\n')
                fprintf(out, "%-32s", "");
        }
        options_print_notes(out, spec, "\n                                (with ");
    }
    if (help->examples)
        fprintf(out, "\nexamples:\n%s\n", help->examples);
}

int options_usage_error(const char *command, const struct error *err) {
    fprintf(
        stderr, "latentd %s: %s\n(latentd %s --help says more)\n", command, err->message, command);
    return 2;
}
