/* A command's table of options in forms other than its help: a manual page, and completion for bash
 * and zsh. Each call prints the part of one command; command/main.c prints the text around it. */
#ifndef COMMAND_OPTIONS_OPTION_FORMS_H
#define COMMAND_OPTIONS_OPTION_FORMS_H

#include "command/options/options.h"

#include <stdio.h>

/* Prints the table in the given form. */
void option_forms_print(FILE *out, enum option_form form, const struct command_help *help,
    const struct option_spec *table);

#endif
