#include "command/options/option_forms.h"

#include <ctype.h>
#include <string.h>

static void print_roff(FILE *out, const char *text) {
    bool begins = true;
    for (const char *p = text; *p; p++) {
        if (begins && (*p == '.' || *p == '\''))
            fputs("\\&", out);
        if (*p == '\\')
            fputs("\\e", out);
        else if (*p == '-')
            fputs("\\-", out);
        else
            fputc(*p, out);
        begins = *p == '\n';
    }
}

static void print_man(FILE *out, const struct command_help *help, const struct option_spec *table) {
    fprintf(out, ".SS ");
    print_roff(out, help->usage);
    fprintf(out, "\n");
    print_roff(out, help->summary);
    fprintf(out, "\n");
    for (const struct option_spec *spec = table; spec->name; spec++) {
        fprintf(out, ".TP\n\\fB");
        if (spec->letter)
            fprintf(out, "\\-%c\\fR, \\fB", spec->letter);
        fprintf(out, "\\-\\-");
        print_roff(out, spec->name);
        fprintf(out, "\\fR");
        if (spec->metavar) {
            fprintf(out, " \\fI");
            print_roff(out, spec->metavar);
            fprintf(out, "\\fR");
        }
        fprintf(out, "\n");
        print_roff(out, spec->help);
        options_print_notes(out, spec, "\n(with ");
    }
    if (help->examples) {
        fprintf(out, ".PP\n.nf\n");
        print_roff(out, help->examples);
        fprintf(out, "\n.fi\n");
    }
}

/* Finds the command's name in its usage: "serve" in "latentd serve --model PATH". Returns the
 * name's length. */
static int name_of(const struct command_help *help, const char **name) {
    const char *space = strchr(help->usage, ' ');
    *name = space ? space + 1 : help->usage;
    return (int)strcspn(*name, " ");
}

/* Returns whether the option's value is a file or folder. */
static bool is_file(const struct option_spec *spec) {
    static const char *const words[] = { "FILE", "FOLDER", "PATH", "DIR" };
    for (size_t i = 0; spec->metavar && i < sizeof(words) / sizeof(words[0]); i++)
        if (strstr(spec->metavar, words[i]))
            return true;
    return false;
}

/* Returns whether the option's value is one of some words: "auto|cpu|cuda[:N]". */
static bool is_choice(const struct option_spec *spec) {
    return spec->metavar && strchr(spec->metavar, '|') && !is_file(spec) &&
           islower((unsigned char)spec->metavar[0]);
}

/* Prints the words with spaces between them, without their optional parts. */
static void print_choices(FILE *out, const char *metavar) {
    bool optional = false;
    for (const char *p = metavar; *p; p++) {
        optional = optional || *p == '[';
        if (!optional)
            fputc(*p == '|' ? ' ' : *p, out);
        optional = optional && *p != ']';
    }
}

static void print_bash(
    FILE *out, const struct command_help *help, const struct option_spec *table) {
    const char *name;
    const int length = name_of(help, &name);
    fprintf(out, "    %.*s)\n        options='--help", length, name);
    for (const struct option_spec *spec = table; spec->name; spec++)
        fprintf(out, " --%s", spec->name);
    fprintf(out, "'\n        case $previous in\n");
    for (const struct option_spec *spec = table; spec->name; spec++) {
        char letter[8] = "";
        if (spec->letter)
            snprintf(letter, sizeof(letter), "|-%c", spec->letter);
        if (is_choice(spec)) {
            fprintf(out, "        --%s%s) words='", spec->name, letter);
            print_choices(out, spec->metavar);
            fprintf(out, "' ;;\n");
        } else if (spec->metavar) {
            fprintf(out, "        --%s%s) %s ;;\n", spec->name, letter,
                is_file(spec) ? "files=1" : "words=' '");
        }
    }
    fprintf(out, "        esac\n        ;;\n");
}

/* Prints the first line of the help, escaped for brackets inside single quotes. */
static void print_zsh_help(FILE *out, const char *help) {
    for (const char *p = help; *p && *p != '\n'; p++) {
        if (*p == '\'')
            fputs("'\\''", out);
        else if (strchr("[]:\\", *p))
            fprintf(out, "\\%c", *p);
        else
            fputc(*p, out);
    }
}

static void print_zsh(FILE *out, const struct command_help *help, const struct option_spec *table) {
    const char *name;
    const int length = name_of(help, &name);
    fprintf(out, "    %.*s) _arguments -s '--help[every option, with examples]'", length, name);
    for (const struct option_spec *spec = table; spec->name; spec++) {
        fprintf(out, " \\\n        '%s--%s[", spec->repeats ? "*" : "", spec->name);
        print_zsh_help(out, spec->help);
        fprintf(out, "]");
        if (spec->metavar) {
            fprintf(out, ":");
            print_zsh_help(out, spec->metavar);
            fprintf(out, ":");
        }
        if (is_choice(spec)) {
            fprintf(out, "(");
            print_choices(out, spec->metavar);
            fprintf(out, ")");
        } else if (is_file(spec)) {
            fprintf(out, "_files");
        }
        fprintf(out, "'");
    }
    fprintf(out, " \\\n        '*:file:_files' ;;\n");
}

void option_forms_print(FILE *out, enum option_form form, const struct command_help *help,
    const struct option_spec *table) {
    if (form == OPTION_FORM_MAN)
        print_man(out, help, table);
    else if (form == OPTION_FORM_BASH)
        print_bash(out, help, table);
    else if (form == OPTION_FORM_ZSH)
        print_zsh(out, help, table);
    else
        options_print_help(out, help, table);
}
