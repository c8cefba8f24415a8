#include "command/options/field_row.h"

#include <string.h>

#define HELP_COLUMNS 66 /* width of the help text beside the flags */
#define FLAG_COLUMNS 27 /* width of a flag's name and its words */

/* A word that is longer than a line is not broken. */
void field_row_wrap(char *text) {
    char *line = text, *space = NULL;
    for (char *c = text; *c; c++) {
        if (*c == '\n') {
            line = c + 1;
            space = NULL;
        } else if (*c == ' ') {
            space = c;
        } else if ((size_t)(c - line) >= HELP_COLUMNS && space) {
            *space = '\n';
            line = space + 1;
            space = NULL;
        }
    }
}

const char *field_row_name(const char *name, char *out, size_t size) {
    snprintf(out, size, "%s", name);
    for (char *dash = strchr(out, '_'); dash; dash = strchr(dash, '_'))
        *dash = '-';
    return out;
}

/* Writes the words with | between them. Returns false if there is no room for them. */
static bool write_words(const struct field *f, char *out, size_t size) {
    size_t used = 0;
    for (int i = 0; f->words[i]; i++) {
        if (used + strlen(f->words[i]) + 2 > size)
            return false;
        used += (size_t)snprintf(out + used, size - used, "%s%s", i ? "|" : "", f->words[i]);
    }
    return true;
}

struct option_spec field_row(
    const struct field *f, const char *flag, const char *ending, struct field_row_text *text) {
    static const char *const metavars[] = { [FIELD_FLAG] = "BOOL",
        [FIELD_INTEGER] = "N",
        [FIELD_NUMBER] = "X",
        [FIELD_WORD] = "WORD",
        [FIELD_TEXT] = "TEXT" };
    struct field plain = *f;
    char allowed[200] = "";
    plain.note = NULL;
    snprintf(text->metavar, sizeof(text->metavar), "%s", metavars[f->kind]);
    if (flag)
        snprintf(text->name, sizeof(text->name), "%s", flag);
    else
        field_row_name(f->name, text->name, sizeof(text->name));
    const size_t columns = FLAG_COLUMNS - strlen(text->name);
    const bool listed = f->kind == FIELD_TEXT ||
                        (f->kind == FIELD_WORD && write_words(f, text->metavar, columns));
    if (!listed) {
        snprintf(text->metavar, sizeof(text->metavar), "%s", metavars[f->kind]);
        field_allowed(&plain, FIELD_ALL_WORDS, "", allowed, sizeof(allowed));
    }
    const bool fits = strlen(f->help) + strlen(allowed) + strlen(ending) + 2 <= HELP_COLUMNS;
    snprintf(text->help, sizeof(text->help), "%s%s%s%s", f->help,
        listed ? ""
        : fits ? ": "
               : ":\n",
        allowed, ending);
    field_row_wrap(text->help);
    return (struct option_spec){ .name = text->name, .metavar = text->metavar, .help = text->help };
}
