/* Command-line options, parsed strictly: `--name VALUE`, `--name=VALUE`, `--flag`, `-x VALUE`. One
 * table lists the options that a command accepts, and its help is printed from the table. */
#ifndef COMMAND_OPTIONS_OPTIONS_H
#define COMMAND_OPTIONS_OPTIONS_H

#include "base/choice.h"
#include "base/error.h"
#include "base/fields.h"
#include "base/limits.h"
#include "kernels/devices.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OPTIONS_MAX 96
#define OPTION_NEEDS_MAX 2
#define OPTIONS_REPEATS_MAX LORAS_PER_REQUEST_MAX

/* Where an option's value is stored: a member of the struct that is given to options_fill, with the
 * type named on the right. A value with a zeroed target is stored nowhere; the command reads it
 * with options_get. */
enum option_type {
    OPTION_NOWHERE,
    OPTION_TEXT,   /* const char *, borrowed from argv */
    OPTION_FLAG,   /* bool: the option has no value */
    OPTION_FIELD,  /* as `field` says */
    OPTION_DEVICE, /* struct device_choice */
    OPTION_DTYPE,  /* struct dtype_choice */
};

struct option_target {
    enum option_type type;
    struct field field; /* other types use only its offset */
    size_t given;       /* offset of a bool to set; 0: none */
};

/* For a row of a table: `.to = OPTION_TO_INT(struct run, steps, 1, 1000)`. It does not compile if
 * the member has another type. */
#define OPTION_OFFSET(T, member, type) _Generic(((T *)0)->member, type : offsetof(T, member))
#define OPTION_TO(option_type, T, member, c_type, ...)                                             \
    {                                                                                              \
        .type = option_type, .field = {                                                            \
            .offset = OPTION_OFFSET(T, member, c_type),                                            \
            .size = sizeof(c_type),                                                                \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }
#define OPTION_TO_TEXT(T, member) OPTION_TO(OPTION_TEXT, T, member, const char *, 0)
#define OPTION_TO_FLAG(T, member) OPTION_TO(OPTION_FLAG, T, member, bool, 0)
#define OPTION_TO_INT(T, member, least, most)                                                      \
    OPTION_TO(OPTION_FIELD, T, member, int, .kind = FIELD_INTEGER, .min = least, .max = most)
#define OPTION_TO_UINT64(T, member, least, most)                                                   \
    OPTION_TO(OPTION_FIELD, T, member, uint64_t, .kind = FIELD_INTEGER, .min = least, .max = most)
/* Above `least`, at most `most`. */
#define OPTION_TO_DOUBLE(T, member, least, most)                                                   \
    OPTION_TO(OPTION_FIELD, T, member, double, .kind = FIELD_NUMBER, .min = least, .max = most,    \
        .above_min = true)
#define OPTION_TO_SHARE(T, member, most)                                                           \
    OPTION_TO(OPTION_FIELD, T, member, double, .kind = FIELD_NUMBER, .max = most)
#define OPTION_TO_CHOICE(T, member)                                                                \
    OPTION_TO(OPTION_FIELD, T, member, enum choice, .kind = FIELD_WORD, CHOICE_WORDS)

struct option_spec {
    const char *name;    /* without dashes; NULL ends the table */
    char letter;         /* 0: none */
    const char *metavar; /* NULL: a flag */
    const char *help;    /* may contain \n */
    bool required;
    struct option_target to;
    bool repeats;       /* may be repeated; has no target: use options_get_nth */
    bool holds_options; /* names a file with values for other options */
    /* Options that this one needs to have an effect. It is refused if one of them is missing. */
    const char *needs[OPTION_NEEDS_MAX];
};

/* Rows for every command that loads a model. */
#define OPTION_MODEL_ROW(T, member)                                                                \
    {                                                                                              \
        "model", 0, "PATH", "checkpoint: a diffusers folder or a .safetensors file", true,         \
            OPTION_TO_TEXT(T, member)                                                              \
    }
#define OPTION_TOKENIZER_ROW(T, member)                                                            \
    {                                                                                              \
        "tokenizer", 0, "DIR",                                                                     \
            "folder with CLIP's vocab.json and merges.txt (or tokenizer.json)\n"                   \
            "[the checkpoint's own; if it has none, CLIP's 49,408 tokens]",                        \
            .to = OPTION_TO_TEXT(T, member)                                                        \
    }
#define OPTION_DTYPE_ROW(T, member)                                                                \
    {                                                                                              \
        "dtype", 0, "auto|f32|f16|bf16",                                                           \
            "type of the weights in memory [auto: bf16, or f16 on GPUs below\n"                    \
            "compute capability 8.0]; f16 works on GPUs only",                                     \
            .to = OPTION_TO(OPTION_DTYPE, T, member, struct dtype_choice, 0)                       \
    }
#define OPTION_DEVICE_ROW(T, member)                                                               \
    {                                                                                              \
        "device", 0, "auto|cpu|cuda[:N]",                                                          \
            "where to compute [auto: the first NVIDIA GPU if there is one,\nelse the CPU]",        \
            .to = OPTION_TO(OPTION_DEVICE, T, member, struct device_choice, 0)                     \
    }
#define OPTION_SAFETY_CHECKER_ROW(T, member)                                                       \
    {                                                                                              \
        "safety-checker", 0, "auto|on|off",                                                        \
            "blacken pictures that the checkpoint's safety checker flags\n"                        \
            "[auto: if it has a checker; on: fail if it has none]",                                \
            .to = OPTION_TO_CHOICE(T, member)                                                      \
    }
#define OPTION_VAE_TILING_ROW(T, member)                                                           \
    {                                                                                              \
        "vae-tiling", 0, "auto|on|off",                                                            \
            "decode and encode large pictures in tiles, as diffusers does\n"                       \
            "[auto: if memory is too short for the whole picture]",                                \
            .to = OPTION_TO_CHOICE(T, member)                                                      \
    }
/* `name` is "width" or "height". */
#define OPTION_SIZE_ROW(name, T, member)                                                           \
    {                                                                                              \
        name, 0, "PX", "size of the picture, a multiple of 8 [the model's default]",               \
            .to = OPTION_TO_INT(T, member, IMAGE_MIN_PX, IMAGE_MAX_PX)                             \
    }

struct command_help {
    const char *usage;    /* "latentd serve --model PATH [options]" */
    const char *summary;  /* a few lines: what the command does */
    const char *examples; /* some lines, or NULL */
};

/* The given options. values[i] belongs to table[i]; NULL if not given, "" for a flag. Borrowed from
 * argv. `argument` is the argument that is not an option, if the command takes one. */
struct options {
    const struct option_spec *table;
    const char *values[OPTIONS_MAX];
    struct {
        int index;
        const char *value;
    } repeated[OPTIONS_REPEATS_MAX]; /* of all repeatable rows, in the order given */
    int repeated_count;
    const char *argument;
    /* If --help was given: the form in which to print the help. The other options are then not
     * checked. */
    enum option_form {
        OPTION_FORM_NONE,
        OPTION_FORM_HELP,
        OPTION_FORM_MAN,
        OPTION_FORM_BASH,
        OPTION_FORM_ZSH
    } help;
    struct json_t *config; /* owned: the configuration file, which owns its values */
};

/* Returns the form of help that an argument asks for: OPTION_FORM_HELP for --help and -h, another
 * for --help=man, --help=bash and --help=zsh. */
enum option_form options_form_asked(const char *argument);

/* Appends `rows` to `table`, which is zeroed or ends with a zeroed row. The table has room for
 * OPTIONS_MAX rows and a zeroed one. Rows that do not fit are dropped. */
void options_append(struct option_spec *table, const struct option_spec *rows);

/* Parses argv, whose first element is the command's name and is skipped. If an option with
 * holds_options is given, reads its file (command/options/config_file.h); such a table needs
 * options_finish. ERROR_INVALID names the option that is unknown, repeated or without its value, or
 * an argument that the command does not take. */
bool options_parse(const struct option_spec *table, bool takes_argument, int argc, char **argv,
    struct options *out, struct error *err) __attribute__((warn_unused_result));

void options_finish(struct options *options);

/* Returns the value of an option, or NULL. The name must be in the table. */
const char *options_get(const struct options *options, const char *name);

/* Return how often a repeatable option was given, and its value number `nth`, counted from 0. */
int options_count(const struct options *options, const char *name);
const char *options_get_nth(const struct options *options, const char *name, int nth);

/* Stores every given value in `target`, as the rows of the table say. `target` is a struct of the
 * type for which the table was written. Members of options that were not given stay unchanged,
 * except device and dtype: they are chosen automatically. ERROR_INVALID names the option, its value
 * and what is allowed, or a missing option (`needs`). */
bool options_fill(const struct options *options, void *target, struct error *err)
    __attribute__((warn_unused_result));

/* Sets the error "--NAME: VALUE is not allowed; ALLOWED". Always returns false. */
bool options_refuse(const char *name, const char *value, const char *allowed, struct error *err);

/* Prints the notes of a row and ends the line. The notes are " (required)", and `gap` (such as "...
 * (with ") followed by the options that the row needs. */
void options_print_notes(FILE *out, const struct option_spec *spec, const char *gap);
void options_print_help(
    FILE *out, const struct command_help *help, const struct option_spec *table);

/* Prints "latentd COMMAND: message" and how to get help. Returns 2, the exit status of a wrong
 * command line. */
int options_usage_error(const char *command, const struct error *err);

#endif
