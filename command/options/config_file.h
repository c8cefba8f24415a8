/* Options from a file: a JSON object whose keys are option names without dashes. Flags are true or
 * false, repeatable options are lists, and other options are strings or numbers. Command-line
 * options override the file. */
#ifndef COMMAND_OPTIONS_CONFIG_FILE_H
#define COMMAND_OPTIONS_CONFIG_FILE_H

#include "command/options/options.h"

#include <stddef.h>

#define CONFIG_FILE_MAX_BYTES (1 << 20)

/* Add the file's options to the given ones. ERROR_INVALID names a key that is not an option, or
 * that has an invalid value. The added values are valid until options_finish. */
bool config_file_read(const char *path, struct options *options, struct error *err)
    __attribute__((warn_unused_result));
bool config_file_parse(const char *text, size_t size, struct options *options, struct error *err)
    __attribute__((warn_unused_result));

#endif
