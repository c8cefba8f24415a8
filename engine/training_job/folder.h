/* What lies in the folder of a training job (training_job.h), for who lists it, shows it or clears
 * it away. From any thread, also while the job goes on; a job that has not begun has no folder, and
 * nothing in it. */
#ifndef ENGINE_TRAINING_JOB_FOLDER_H
#define ENGINE_TRAINING_JOB_FOLDER_H

#include "base/error.h"
#include "base/limits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a daemon with this state folder keeps the job's: STATE/jobs/ID; malloc'd, NULL when memory
 * ran out. */
char *job_folder_path(const char *state_folder, const char *id);
/* Makes it, and what it lies in; both names are on the disk then. */
bool job_folder_make(const char *folder, struct error *err) __attribute__((warn_unused_result));
/* Removes it with all that is in it. */
void job_folder_remove(const char *folder);

/* The adapter's name, as the folder's config.json has it; false if there is none. */
bool job_folder_adapter_name(const char *folder, char out[ADAPTER_NAME_MAX_BYTES + 1]);
/* FOLDER/NAME.safetensors, the finished adapter; is_second: FOLDER/NAME.kohya.safetensors, which
 * save_format "both" writes beside it. malloc'd, NULL when memory ran out. */
char *job_folder_adapter(const char *folder, const char *name, bool is_second);
/* What a checkpoint's adapter is called: "NAME@STEP". False if that is too long for a name. */
bool job_folder_checkpoint_name(
    const char *adapter, int64_t step, char out[ADAPTER_NAME_MAX_BYTES + 1]);
/* FOLDER/checkpoint-STEP/adapter.safetensors; malloc'd. */
char *job_folder_checkpoint_adapter(const char *folder, int64_t step);

/* A new reference to a list of {step, name, adapter, bytes, created_at}, the first step first;
 * adapter is null where there is none. */
bool job_folder_checkpoints(const char *folder, json_t **out, struct error *err)
    __attribute__((warn_unused_result));

/* The last file of a validation to be written: what there is in its folder. */
#define VALIDATION_LIST "pictures.json"
/* What was drawn and measured on the way (validation.h). A new reference to a list of {step, loss,
 * pictures: [{file, prompt, seed}]}, the first step first; `file` is a name in
 * job_folder_validation_step, loss null where it was not computed. */
bool job_folder_validations(const char *folder, json_t **out, struct error *err)
    __attribute__((warn_unused_result));
/* FOLDER/validation, FOLDER/validation/step-STEP, and a file in one of them: "grid.png" or
 * "step-4/0-1.png"; malloc'd. The last is NULL for any other name, too. */
char *job_folder_validation(const char *folder);
char *job_folder_validation_step(const char *folder, int64_t step);
char *job_folder_validation_file(const char *folder, const char *name);

#endif
