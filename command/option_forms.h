/* A command's table of options in other forms than its help: a page of the manual, completion for
 * bash and for zsh. Each prints the piece of one command; command/main.c what stands around them.
 */
#ifndef COMMAND_OPTION_FORMS_H
#define COMMAND_OPTION_FORMS_H

#include "command/options.h"

#include <stdio.h>

/* In the form that was asked for. */
void option_forms_print(FILE *out, enum option_form form, const struct command_help *help,
    const struct option_spec *table);

#endif
