/* The files in the folder of a training job (training_job.h), for code that lists, shows or removes
 * them. Any thread, also while the job runs. A job that has not begun has no folder, which counts
 * as an empty one. */
#ifndef ENGINE_TRAINING_JOB_FOLDER_H
#define ENGINE_TRAINING_JOB_FOLDER_H

#include "base/error.h"
#include "base/limits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Where a daemon with this state folder keeps the job's files: STATE/jobs/ID; malloc'd, NULL when
 * memory ran out. */
char *job_folder_path(const char *state_folder, const char *id);
/* Makes the folder and its parent, and syncs both names to the disk. */
bool job_folder_make(const char *folder, struct error *err) __attribute__((warn_unused_result));
/* Removes the folder and everything in it. */
void job_folder_remove(const char *folder);

/* The adapter's name from the folder's config.json; false if there is none. */
bool job_folder_adapter_name(const char *folder, char out[ADAPTER_NAME_MAX_BYTES + 1]);
/* FOLDER/NAME.safetensors, the finished adapter; is_second: FOLDER/NAME.kohya.safetensors, which
 * save_format "both" writes beside it. malloc'd, NULL when memory ran out. */
char *job_folder_adapter(const char *folder, const char *name, bool is_second);
/* Name of a checkpoint's adapter: "NAME@STEP". False if that is too long for a name. */
bool job_folder_checkpoint_name(
    const char *adapter, int64_t step, char out[ADAPTER_NAME_MAX_BYTES + 1]);
/* FOLDER/checkpoint-STEP/adapter.safetensors; malloc'd. */
char *job_folder_checkpoint_adapter(const char *folder, int64_t step);

/* Sets *out to a new reference to a list of {step, name, adapter, bytes, created_at}, by ascending
 * step; adapter is null if the checkpoint has none. */
bool job_folder_checkpoints(const char *folder, json_t **out, struct error *err)
    __attribute__((warn_unused_result));

/* The list of a validation's pictures. It is written last, so its presence means that the
 * validation is complete. */
#define VALIDATION_LIST "pictures.json"
/* Validations so far (validation.h). Sets *out to a new reference to a list of {step, loss,
 * pictures: [{file, prompt, seed}]}, by ascending step. `file` is a name in
 * job_folder_validation_step; loss is null if it was not computed. */
bool job_folder_validations(const char *folder, json_t **out, struct error *err)
    __attribute__((warn_unused_result));
/* FOLDER/validation, FOLDER/validation/step-STEP, and a file in one of them: "grid.png" or
 * "step-4/0-1.png"; malloc'd. The last function returns NULL for any other name, too. */
char *job_folder_validation(const char *folder);
char *job_folder_validation_step(const char *folder, int64_t step);
char *job_folder_validation_file(const char *folder, const char *name);

#endif
