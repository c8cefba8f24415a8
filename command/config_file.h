/* Options from a file: a JSON object whose keys are the names of options, without dashes. A flag is
 * true or false, an option that may come often a list, anything else a text or a number. What the
 * command line says counts more. */
#ifndef COMMAND_CONFIG_FILE_H
#define COMMAND_CONFIG_FILE_H

#include "command/options.h"

#include <stddef.h>

#define CONFIG_FILE_MAX_BYTES (1 << 20)

/* Adds what the file says to what was given. ERROR_INVALID names a key that is no option, or one
 * whose value cannot be. What is added lives until options_finish. */
bool config_file_read(const char *path, struct options *options, struct error *err)
    __attribute__((warn_unused_result));
bool config_file_parse(const char *text, size_t size, struct options *options, struct error *err)
    __attribute__((warn_unused_result));

#endif
