#include "command/options/scheduler_flags.h"

#include "base/text/words.h"
#include "command/options/field_row.h"

#include <string.h>

/* Adds " (ddim, pndm)" if only some classes have the option. */
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

static struct option_spec make_flag(enum scheduler_option_id id, struct field_row_text *text) {
    char classes[ERROR_ALLOWED_BYTES + 8];
    list_classes(id, classes, sizeof(classes));
    return field_row(&scheduler_options[id].field, NULL, classes, text);
}

const struct option_spec *scheduler_flags(void) {
    static struct option_spec flags[SCHEDULER_FLAGS_MAX + 1];
    static struct field_row_text texts[SCHEDULER_FLAGS_MAX];
    if (flags[0].name)
        return flags;
    char names[ERROR_ALLOWED_BYTES];
    snprintf(texts[0].help, sizeof(texts[0].help), "%s [the model's]",
        scheduler_list_names(names, sizeof(names), ""));
    field_row_wrap(texts[0].help);
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
        field_row_name(option->name, flag, sizeof(flag));
        const char *text = options_get(options, flag);
        if (!text)
            continue;
        if (!field_value_from_text(&option->field, text, &value)) {
            field_allowed(&option->field, FIELD_ALL_WORDS, "", allowed, sizeof(allowed));
            return options_refuse(flag, text, allowed, err);
        }
        scheduler_choose(out, (enum scheduler_option_id)id, value);
    }
    return true;
}
