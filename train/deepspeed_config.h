/* The configuration of deepspeed-diffusers (a JSON file) as a job of ours.
 *
 * Every key is taken, or noted as having no effect here, or refused by its path. Meanings are those
 * that its authors meant: save_interval counts optimizer steps, the average of the weights moves
 * once a step, and a LoRA job can be resumed. WarmupLR rises by the logarithm, as DeepSpeed's does,
 * over lr_warmup_steps (which replaces warmup_num_steps there too) to optimizer.params.lr. */
#ifndef TRAIN_DEEPSPEED_CONFIG_H
#define TRAIN_DEEPSPEED_CONFIG_H

#include "base/error.h"

#include <jansson.h>

/* *job: an object for train_config_parse, whose name is `name`, because such a file has none.
 * *notes: an array of texts, one for each key without effect. Both are new references. */
bool deepspeed_config_read(const json_t *config, const char *name, json_t **job, json_t **notes,
    struct error *err) __attribute__((warn_unused_result));

#endif
