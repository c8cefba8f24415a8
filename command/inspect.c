/* Prints the contents of a checkpoint or an adapter file. */
#include "command/command.h"

#include "command/inspect_checkpoint.h"
#include "command/options/option_forms.h"
#include "command/options/options.h"

#include <stdio.h>

static const struct option_spec table[] = { { NULL } };

static const struct command_help help = {
    .usage = "latentd inspect PATH",
    .summary =
        "Shows what is in a checkpoint (a diffusers folder or a single .safetensors file), in a\n"
        "LoRA file, or in any other safetensors file: parts, shapes, dtypes, metadata.\n"
        "Only headers and configs are read.",
    .examples = "  latentd inspect share/tiny-sd\n"
                "  latentd inspect my-lora.safetensors\n",
};

int inspect_main(int argc, char **argv) {
    struct options options;
    struct error err = { 0 };
    if (!options_parse(table, true, argc, argv, &options, &err))
        return options_usage_error("inspect", &err);
    if (options.help) {
        option_forms_print(stdout, options.help, &help, table);
        return 0;
    }
    if (!options.argument) {
        error_set(&err, ERROR_INVALID, "PATH is missing");
        return options_usage_error("inspect", &err);
    }
    if (!inspect_print(stdout, options.argument, &err)) {
        fprintf(stderr, "latentd inspect: %s\n", err.message);
        return 1;
    }
    return 0;
}
