/* A command's row for a field of a table (base/fields.h): `guidance_rescale` there is the flag
 * `--guidance-rescale` here. */
#ifndef COMMAND_OPTIONS_FIELD_ROW_H
#define COMMAND_OPTIONS_FIELD_ROW_H

#include "command/options/options.h"

/* The texts of a row, which must live as long as the row. */
struct field_row_text {
    char name[48], metavar[48], help[960];
};

/* Writes the field's name with dashes. Returns `out`. */
const char *field_row_name(const char *name, char *out, size_t size);

/* Breaks the text at spaces, in place, into lines that fit beside the flags in a command's help. */
void field_row_wrap(char *text);

/* Makes a row without a target. Its help is the field's help, what is allowed, and then `ending`.
 * `flag` is the flag's name, or NULL for the field's with dashes. */
struct option_spec field_row(
    const struct field *f, const char *flag, const char *ending, struct field_row_text *text);

#endif
