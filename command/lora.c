/* Merges adapters into a checkpoint. */
#include "command/command.h"

#include "base/file.h"
#include "command/options/lora_flags.h"
#include "command/options/option_forms.h"
#include "models/checkpoint/checkpoint_merge.h"
#include "models/text_encoder.h"
#include "models/unet.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MERGE_MAX LORAS_PER_REQUEST_MAX
#define NOTE_BYTES 4096

static const struct option_spec table[] = {
    { "lora", 0, "FILE[:W[:TW]]",
        "a LoRA file, or a folder that peft wrote; may be repeated. W is\n"
        "its weight [1], TW its weight for the text encoder [W]" },
    { 0 },
};

static const struct command_help help = {
    .usage = "latentd lora merge CHECKPOINT OUT --lora FILE[:WEIGHT[:TEXT_WEIGHT]] ...",
    .summary =
        "Merges adapters into the weights of CHECKPOINT and writes the result to OUT: a folder\n"
        "or a single file, like CHECKPOINT. Sums are computed in f32 and rounded once, to the\n"
        "dtype of each tensor. Tensors that no adapter changes stay the same.",
    .examples = "  latentd lora merge share/tiny-sd snowy --lora snow.safetensors:0.8\n"
                "  latentd lora merge sd15.safetensors out.safetensors \\\n"
                "      --lora style.safetensors:0.7 --lora other.safetensors:-0.3:0\n",
};

/* The parsed command line. */
struct merge_run {
    const char *checkpoint, *out;
    const char *given[MERGE_MAX]; /* as typed */
    char *paths[MERGE_MAX];       /* owned */
    struct merge_adapter adapters[MERGE_MAX];
    size_t count;
    bool help;
};

static bool add_lora(struct merge_run *run, const char *given, struct error *err) {
    if (run->count == MERGE_MAX)
        return error_set(err, ERROR_INVALID, "--lora is given more than %d times", MERGE_MAX);
    char *path = strdup(given);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a path");
    struct merge_adapter *adapter = &run->adapters[run->count];
    *adapter = (struct merge_adapter){ 0 };
    lora_flag_cut_weights(path, &adapter->weight, &adapter->text_encoder_weight);
    run->given[run->count] = given;
    run->paths[run->count++] = path;
    return true;
}

/* Parses each --lora, and the two paths. */
static bool parse(struct merge_run *run, int argc, char **argv, struct error *err) {
    static const char flag[] = "--lora";
    const size_t length = strlen(flag);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            run->help = true;
            return true;
        }
        const char *value = NULL;
        if (strcmp(argv[i], flag) == 0) {
            if (i + 1 == argc)
                return error_set(err, ERROR_INVALID, "--lora needs a value: %s", table[0].metavar);
            value = argv[++i];
        } else if (strncmp(argv[i], flag, length) == 0 && argv[i][length] == '=') {
            value = argv[i] + length + 1;
        }
        if (value ? !add_lora(run, value, err) : false)
            return false;
        if (value)
            continue;
        if (argv[i][0] == '-' && argv[i][1])
            return error_set(err, ERROR_INVALID, "there is no option %s", argv[i]);
        if (run->out)
            return error_set(err, ERROR_INVALID, "unexpected argument \"%s\"", argv[i]);
        *(run->checkpoint ? &run->out : &run->checkpoint) = argv[i];
    }
    if (!run->out)
        return error_set(
            err, ERROR_INVALID, "%s is missing", run->checkpoint ? "OUT" : "CHECKPOINT");
    return run->count > 0 ||
           error_set(err, ERROR_INVALID, "--lora %s is required", table[0].metavar);
}

/* The layers that an adapter may change, and the models that own their names. */
struct models {
    struct unet *unet;
    struct text_encoder *text_encoder;
    struct adapter_targets targets;
};

static bool open_models(struct checkpoint *c, struct models *out, struct error *err) {
    struct weights w = weights_from_checkpoint(c, COMPONENT_UNET, kernels_reference(), DTYPE_F32);
    w.check_only = true;
    if (!unet_create(checkpoint_unet_config(c), &w, &out->unet, err))
        return false;
    w = weights_from_checkpoint(c, COMPONENT_TEXT_ENCODER, kernels_reference(), DTYPE_F32);
    w.check_only = true;
    if (!text_encoder_create(checkpoint_text_encoder_config(c), &w, &out->text_encoder, err))
        return false;
    out->targets = (struct adapter_targets){ unet_weights(out->unet),
        text_encoder_weights(out->text_encoder) };
    return true;
}

static bool open_adapters(
    struct merge_run *run, struct models *models, struct adapter **opened, struct error *err) {
    for (size_t i = 0; i < run->count; i++) {
        size_t modules, left;
        if (!adapter_open(run->paths[i], &models->targets, &opened[i], err))
            return false;
        run->adapters[i].adapter = opened[i];
        adapter_modules(opened[i], &modules);
        const struct adapter_leftover *leftovers = adapter_leftovers(opened[i], &left);
        fprintf(stderr,
            "%s: changes %zu layers, with weight %g in the UNet and %g in the text encoder\n",
            run->paths[i], modules, run->adapters[i].weight, run->adapters[i].text_encoder_weight);
        if (left > 0)
            fprintf(stderr,
                "warning: %zu parts of it have no effect on this checkpoint: %s (%s)%s\n", left,
                leftovers[0].name, leftovers[0].why, left > 1 ? ", ..." : "");
    }
    return true;
}

static bool merge(struct merge_run *run, struct error *err) {
    struct checkpoint *c = NULL;
    struct models models = { 0 };
    struct adapter *opened[MERGE_MAX] = { NULL };
    char note[NOTE_BYTES] = "";
    size_t at = 0;
    if (!checkpoint_open(run->checkpoint, NULL, &c, err))
        return false;
    for (size_t i = 0; i < run->count && at < sizeof(note); i++)
        at += (size_t)snprintf(note + at, sizeof(note) - at, "%s%s", i ? ", " : "", run->given[i]);
    bool ok = !file_is_folder(run->out) ||
              error_set(err, ERROR_INVALID, "%s is a folder that is already there", run->out);
    ok = ok && open_models(c, &models, err) && open_adapters(run, &models, opened, err) &&
         checkpoint_merge(
             c, run->checkpoint, &models.targets, run->adapters, run->count, note, run->out, err);
    for (size_t i = 0; i < run->count; i++)
        adapter_close(opened[i]);
    text_encoder_destroy(models.text_encoder);
    unet_destroy(models.unet);
    checkpoint_close(c);
    return ok;
}

int lora_main(int argc, char **argv) {
    struct merge_run run = { 0 };
    struct error err = { 0 };
    int status = 0;
    const enum option_form asks_help = argc > 1 ? options_form_asked(argv[1]) : OPTION_FORM_NONE;
    if (!asks_help && (argc < 2 || strcmp(argv[1], "merge") != 0)) {
        error_set(&err, ERROR_INVALID, "%s%s; the only command is \"latentd lora merge\"",
            argc < 2 ? "the command is missing" : "there is no latentd lora ",
            argc < 2 ? "" : argv[1]);
        return options_usage_error("lora", &err);
    }
    if (!asks_help && !parse(&run, argc - 1, argv + 1, &err))
        status = options_usage_error("lora", &err);
    else if (asks_help || run.help)
        option_forms_print(stdout, asks_help ? asks_help : OPTION_FORM_HELP, &help, table);
    else if (!merge(&run, &err)) {
        fprintf(stderr, "latentd lora: %s\n", err.message);
        status = 1;
    }
    for (size_t i = 0; i < run.count; i++)
        free(run.paths[i]);
    return status;
}
