/* Converts the configuration of deepspeed-diffusers (a JSON file) to a job.
 *
 * Every key is converted, or noted as having no effect here, or refused by its path. Keys mean what
 * their authors intended: save_interval counts optimizer steps, the average of the weights moves
 * once per step, and a LoRA job can be resumed. WarmupLR rises logarithmically, as in DeepSpeed,
 * over lr_warmup_steps (which replaces warmup_num_steps there too) to optimizer.params.lr. */
#ifndef TRAIN_DEEPSPEED_CONFIG_H
#define TRAIN_DEEPSPEED_CONFIG_H

#include "base/error.h"

#include <jansson.h>

/* *job: an object for train_config_parse; its name is `name`, as such a file has none. *notes: an
 * array of texts, one per key without effect. Both are new references. */
bool deepspeed_config_read(const json_t *config, const char *name, json_t **job, json_t **notes,
    struct error *err) __attribute__((warn_unused_result));

#endif
