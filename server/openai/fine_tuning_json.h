/* OpenAI's fine-tuning jobs in terms of ours: what is asked becomes the request of a training job
 * (train/config.h), and a job, its events and its checkpoints are told as OpenAI tells them. No
 * HTTP here. */
#ifndef SERVER_OPENAI_FINE_TUNING_JSON_H
#define SERVER_OPENAI_FINE_TUNING_JSON_H

#include "queue/queue.h"
#include "server/openai/openai.h"

#include <jansson.h>

/* {"model", "training_file", "suffix", "seed", "method", "metadata"}, and whatever else a training
 * job takes in method.supervised.hyperparameters, to a body of POST /train, a new reference. NULL
 * after an error under OpenAI's names. */
json_t *fine_tuning_config(const json_t *body, const struct openai_models *models,
    struct error *err) __attribute__((warn_unused_result));

/* What a training job says of its fields, under the names that they have here. */
void fine_tuning_rename(struct error *err);

/* New references; NULL when memory is short. `model`: what a job trains
 * that does not say it. */
json_t *fine_tuning_job_json(const struct job *job, const char *model);
json_t *fine_tuning_event_json(const struct job *job, const struct job_event *event);
/* `checkpoint`: one of job_folder_checkpoints. */
json_t *fine_tuning_checkpoint_json(
    const struct job *job, const json_t *checkpoint, const char *model);

/* Ids: "ftjob-" and ours, "ft-event-" and ours and a number, "ftckpt-" and the same with the step,
 * "file-" and the name of a data set. What they say, or NULL, or -1. */
const char *fine_tuning_job_of(const char *id);
int64_t fine_tuning_number_of(const char *id, const char *prefix, const char *job);
const char *fine_tuning_file_of(const char *id);

#endif
