/* The option --lora NAME_OR_FILE[:WEIGHT[:TEXT_WEIGHT]] of latentd generate. */
#ifndef COMMAND_OPTIONS_LORA_FLAGS_H
#define COMMAND_OPTIONS_LORA_FLAGS_H

#include "command/options/options.h"
#include "engine/adapters/adapters.h"
#include "engine/request/request.h"

/* Cuts [:WEIGHT[:TEXT_WEIGHT]] off the end of `text`. A missing WEIGHT is 1. A missing TEXT_WEIGHT
 * is the same as WEIGHT. */
void lora_flag_cut_weights(char *text, double *weight, double *text_encoder_weight);

/* The adapters given with --lora. An argument is a file if it has a slash, ends in .safetensors, or
 * is a folder (peft's). Any other argument is a name in --lora-dir. */
struct lora_flags {
    char *paths[OPTIONS_REPEATS_MAX]; /* owned; file of request->loras[i]; NULL: a name */
    int count;
};

/* Puts the given adapters into request->loras; a file gets a name made from its path. If none is
 * given, the request stays unchanged. The caller finishes *out, also on failure. */
bool lora_flags_fill(const struct options *options, struct generate_request *request,
    struct lora_flags *out, struct error *err) __attribute__((warn_unused_result));
void lora_flags_finish(struct lora_flags *flags);

/* Loads the files. If parts of a file have no effect, prints a warning to standard error. */
bool lora_flags_load(const struct lora_flags *flags, const struct generate_request *request,
    struct adapters *adapters, struct error *err) __attribute__((warn_unused_result));

#endif
