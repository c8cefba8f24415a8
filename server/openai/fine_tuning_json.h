/* Translates between OpenAI's fine-tuning jobs and training jobs. A body becomes the request of a
 * training job (train/config.h). A job, its events and its checkpoints are written in OpenAI's
 * form. No HTTP here. */
#ifndef SERVER_OPENAI_FINE_TUNING_JSON_H
#define SERVER_OPENAI_FINE_TUNING_JSON_H

#include "queue/queue.h"
#include "server/openai/openai.h"

#include <jansson.h>

/* Translates {"model", "training_file", "suffix", "seed", "method", "metadata"} to a body of POST
 * /train, a new reference. method.supervised.hyperparameters may contain any other field of a
 * training job. Returns NULL after an error, which uses OpenAI's names. */
json_t *fine_tuning_config(const json_t *body, const struct openai_models *models,
    struct error *err) __attribute__((warn_unused_result));

/* Renames the field in a training job's error to OpenAI's name for it. */
void fine_tuning_rename(struct error *err);

/* All return new references; NULL when memory is short. `model` is used for a job whose request
 * names no model. */
json_t *fine_tuning_job_json(const struct job *job, const char *model);
json_t *fine_tuning_event_json(const struct job *job, const struct job_event *event);
/* `checkpoint` is an entry of job_folder_checkpoints. */
json_t *fine_tuning_checkpoint_json(
    const struct job *job, const json_t *checkpoint, const char *model);

/* Parse OpenAI's ids: "ftjob-JOB", "ft-event-JOB-NUMBER", "ftckpt-JOB-STEP", "file-DATASET". They
 * return the part after the prefix or after the job's id; NULL or -1 for a malformed id. */
const char *fine_tuning_job_of(const char *id);
int64_t fine_tuning_number_of(const char *id, const char *prefix, const char *job);
const char *fine_tuning_file_of(const char *id);

#endif
