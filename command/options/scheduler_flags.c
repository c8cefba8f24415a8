#include "command/options/scheduler_flags.h"

#include "base/text/words.h"

#include <string.h>

#define HELP_COLUMNS 66 /* beside the flags */

struct flag_text {
    char name[48];
    char help[960];
};

/* Breaks the text at spaces, in place, into lines of at most `columns` columns. A longer word is
 * not broken. */
static void wrap(char *text, size_t columns) {
    char *line = text, *space = NULL;
    for (char *c = text; *c; c++) {
        if (*c == '\n') {
            line = c + 1;
            space = NULL;
        } else if (*c == ' ') {
            space = c;
        } else if ((size_t)(c - line) >= columns && space) {
            *space = '\n';
            line = space + 1;
            space = NULL;
        }
    }
}

static void flag_name(const char *option, char *out, size_t size) {
    snprintf(out, size, "%s", option);
    for (char *dash = strchr(out, '_'); dash; dash = strchr(dash, '_'))
        *dash = '-';
}

/* " (ddim, pndm)" for an option that not every class has. */
static void list_classes(enum scheduler_option_id id, char *out, size_t size) {
    const char *names[SCHEDULER_COUNT];
    char list[ERROR_ALLOWED_BYTES];
    size_t count = 0;
    for (int kind = 0; kind < SCHEDULER_COUNT; kind++)
        if (scheduler_has_option((enum scheduler_kind)kind, id))
            names[count++] = scheduler_kind_name((enum scheduler_kind)kind);
    out[0] = 0;
    if (!scheduler_options[id].shared && count)
        snprintf(out, size, " (%s)", words_list(list, sizeof(list), names, count, "", ", "));
}

static struct option_spec make_flag(enum scheduler_option_id id, struct flag_text *text) {
    static const char *const metavars[] = {
        [VALUE_FLAG] = "BOOL", [VALUE_INTEGER] = "N", [VALUE_NUMBER] = "X", [VALUE_WORD] = "WORD"
    };
    const struct scheduler_option *option = &scheduler_options[id];
    char allowed[160], classes[ERROR_ALLOWED_BYTES + 8];
    flag_name(option->name, text->name, sizeof(text->name));
    scheduler_option_allowed(option, ALL_WORDS, "", allowed, sizeof(allowed));
    list_classes(id, classes, sizeof(classes));
    bool fits = strlen(option->help) + strlen(allowed) + strlen(classes) + 2 <= HELP_COLUMNS;
    snprintf(text->help, sizeof(text->help), "%s:%s%s%s", option->help, fits ? " " : "\n", allowed,
        classes);
    wrap(text->help, HELP_COLUMNS);
    return (struct option_spec){
        .name = text->name, .metavar = metavars[option->type], .help = text->help
    };
}

const struct option_spec *scheduler_flags(void) {
    static struct option_spec flags[SCHEDULER_FLAGS_MAX + 1];
    static struct flag_text texts[SCHEDULER_FLAGS_MAX];
    if (flags[0].name)
        return flags;
    char names[ERROR_ALLOWED_BYTES];
    snprintf(texts[0].help, sizeof(texts[0].help), "%s [the model's]",
        scheduler_list_names(names, sizeof(names), ""));
    wrap(texts[0].help, HELP_COLUMNS);
    flags[0] =
        (struct option_spec){ .name = "scheduler", .metavar = "NAME", .help = texts[0].help };
    for (int id = 0, used = 1; id < SCHEDULER_OPTION_COUNT; id++)
        if (scheduler_options[id].from != FILE_ONLY) {
            flags[used] = make_flag((enum scheduler_option_id)id, &texts[used]);
            used++;
        }
    return flags;
}

bool scheduler_flags_read(
    const struct options *options, struct scheduler_choice *out, struct error *err) {
    char allowed[ERROR_ALLOWED_BYTES];
    const char *name = options_get(options, "scheduler");
    *out = (struct scheduler_choice){ 0 };
    if (name && !(out->has_kind = scheduler_kind_from_name(name, &out->kind)))
        return options_refuse(
            "scheduler", name, scheduler_list_names(allowed, sizeof(allowed), ""), err);
    for (int id = 0; id < SCHEDULER_OPTION_COUNT; id++) {
        const struct scheduler_option *option = &scheduler_options[id];
        char flag[48];
        double value;
        flag_name(option->name, flag, sizeof(flag));
        const char *text = options_get(options, flag);
        if (!text)
            continue;
        if (!scheduler_option_from_text(option, text, &value)) {
            scheduler_option_allowed(option, ALL_WORDS, "", allowed, sizeof(allowed));
            return options_refuse(flag, text, allowed, err);
        }
        scheduler_choose(out, (enum scheduler_option_id)id, value);
    }
    return true;
}
