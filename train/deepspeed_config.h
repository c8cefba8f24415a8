/* Converts the configuration of deepspeed-diffusers (a JSON file) to a job.
 *
 * Every key is converted, or noted as having no effect here, or refused by its path. Keys have the
 * meaning that their authors intended, even where deepspeed-diffusers does something else:
 * save_interval counts optimizer steps, the average of the weights moves once per step, and a LoRA
 * job can be resumed. WarmupLR rises to optimizer.params.lr over lr_warmup_steps, logarithmically
 * by default as in DeepSpeed. With several processes (docs/cluster.md) each has its own
 * gradient_accumulation_steps batches, and the caller multiplies lr_warmup_steps by their number,
 * as deepspeed-diffusers does. warmup_num_steps has no effect, neither here nor in
 * deepspeed-diffusers. */
#ifndef TRAIN_DEEPSPEED_CONFIG_H
#define TRAIN_DEEPSPEED_CONFIG_H

#include "base/error.h"

#include <jansson.h>

/* *job is an object for train_config_parse. Its name is `name`, because such a file has none.
 * *notes is an array of texts, one for each key without effect. Both are new references. */
bool deepspeed_config_read(const json_t *config, const char *name, json_t **job, json_t **notes,
    struct error *err) __attribute__((warn_unused_result));

#endif
