/* Command line options, strictly: `--name VALUE`, `--name=VALUE`, `--flag`, `-x VALUE`. One table
 * says what a command takes and is what its help is printed from. */
#ifndef COMMAND_OPTIONS_H
#define COMMAND_OPTIONS_H

#include "base/error.h"
#include "kernels/devices.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define OPTIONS_MAX 40

struct option_spec {
    const char *name;    /* without dashes; NULL ends the table */
    char letter;         /* 0: none */
    const char *metavar; /* NULL: a flag without a value */
    const char *help;    /* lines may be broken with \n */
    bool required;
};

struct command_help {
    const char *usage;    /* "latentd serve --model PATH [options]" */
    const char *summary;  /* a few lines: what it does */
    const char *examples; /* lines, or NULL */
};

/* What was given: values[i] belongs to table[i], NULL if it was not given, "" for a flag. Borrowed
 * from argv. `argument` is the one that is no option, if the command takes one. */
struct options {
    const struct option_spec *table;
    const char *values[OPTIONS_MAX];
    const char *argument;
    bool help; /* --help was given: print it, and check nothing */
};

/* Puts `rows` behind those of `table`, which is zeroed or ends in a zeroed row and has room for
 * OPTIONS_MAX and that one; what does not fit is left out. */
void options_append(struct option_spec *table, const struct option_spec *rows);

/* argv[0] is the command's name and is passed over. ERROR_INVALID names the option that is unknown,
 * given twice, or without its value; or the argument that the command does not take. */
bool options_parse(const struct option_spec *table, bool takes_argument, int argc, char **argv,
    struct options *out, struct error *err) __attribute__((warn_unused_result));

/* The value of an option, or NULL. The name must be in the table. */
const char *options_get(const struct options *options, const char *name);

/* Numbers, whole and in range; *out is untouched if the option was not given. */
bool options_int(const struct options *options, const char *name, int min, int max, int *out,
    struct error *err) __attribute__((warn_unused_result));
bool options_int64(const struct options *options, const char *name, int64_t min, int64_t max,
    int64_t *out, struct error *err) __attribute__((warn_unused_result));
bool options_double(const struct options *options, const char *name, double *out, struct error *err)
    __attribute__((warn_unused_result));

/* --dtype and --device, as every command that loads a model takes them. */
#define OPTION_DTYPE                                                                               \
    {                                                                                              \
        "dtype", 0, "auto|f32|f16|bf16",                                                           \
            "how weights are held [auto: bf16; f16 on GPUs older than compute\n"                   \
            "capability 8.0]; f16 on GPUs only"                                                    \
    }
#define OPTION_DEVICE                                                                              \
    {                                                                                              \
        "device", 0, "auto|cpu|cuda[:N]",                                                          \
            "where to compute [auto: the first NVIDIA GPU if there is one,\nelse the CPU]"         \
    }
bool options_dtype(const struct options *options, struct dtype_choice *out, struct error *err)
    __attribute__((warn_unused_result));
bool options_device(const struct options *options, struct device_choice *out, struct error *err)
    __attribute__((warn_unused_result));

void options_print_help(
    FILE *out, const struct command_help *help, const struct option_spec *table);

/* Prints "latentd COMMAND: message" and where help is, and returns the exit status for a wrong
 * command line, 2. */
int options_usage_error(const char *command, const struct error *err);

#endif
