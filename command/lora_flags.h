/* --lora NAME_OR_FILE[:WEIGHT[:TEXT_WEIGHT]] of latentd generate. */
#ifndef COMMAND_LORA_FLAGS_H
#define COMMAND_LORA_FLAGS_H

#include "command/options.h"
#include "engine/adapters/adapters.h"
#include "engine/request.h"

/* Cuts [:WEIGHT[:TEXT_WEIGHT]] off the end of `text`; a weight that is not there is 1, the text
 * encoder's the other. */
void lora_flag_cut_weights(char *text, double *weight, double *text_encoder_weight);

/* What is a file has a slash in it, ends in .safetensors, or is a folder (of peft's); anything else
 * is a name in --lora-dir. */
struct lora_flags {
    char *paths[OPTIONS_REPEATS_MAX]; /* owned; of request->loras[i]; NULL: it is a name */
    int count;
};

/* Puts what was given into request->loras; a file gets the name that its own suggests. Nothing
 * given leaves the request as it is. The caller finishes *out, also on failure. */
bool lora_flags_fill(const struct options *options, struct generate_request *request,
    struct lora_flags *out, struct error *err) __attribute__((warn_unused_result));
void lora_flags_finish(struct lora_flags *flags);

/* Loads the files; what of them changes nothing here is a warning on standard error. */
bool lora_flags_load(const struct lora_flags *flags, const struct generate_request *request,
    struct adapters *adapters, struct error *err) __attribute__((warn_unused_result));

#endif
