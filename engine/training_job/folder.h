/* The files in the folder of a training job (training_job.h), for code that lists, shows or removes
 * them. Any thread, even while the job runs. A job that has not begun has no folder, and is treated
 * as if its folder were empty. */
#ifndef ENGINE_TRAINING_JOB_FOLDER_H
#define ENGINE_TRAINING_JOB_FOLDER_H

#include "base/error.h"
#include "base/limits.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns STATE/jobs/ID, the folder of a job's files in a daemon with this state folder. malloc'd;
 * NULL if there is no memory. */
char *job_folder_path(const char *state_folder, const char *id);
/* Makes the folder and its parent, and syncs both names to the disk. */
bool job_folder_make(const char *folder, struct error *err) __attribute__((warn_unused_result));
/* Removes the folder and everything in it. */
void job_folder_remove(const char *folder);

/* Reads the adapter's name from config.json in the folder. Returns false if there is none. */
bool job_folder_adapter_name(const char *folder, char out[ADAPTER_NAME_MAX_BYTES + 1]);
/* Returns FOLDER/STEM.safetensors, the finished adapter; STEM is the last part of its name.
 * is_second: returns FOLDER/STEM.kohya.safetensors, the second file of save_format "both".
 * malloc'd; NULL if there is no memory. */
char *job_folder_adapter(const char *folder, const char *name, bool is_second);
/* Writes the name of a checkpoint's adapter, "NAME@STEP". Returns false if it is too long. */
bool job_folder_checkpoint_name(
    const char *adapter, int64_t step, char out[ADAPTER_NAME_MAX_BYTES + 1]);
/* Returns FOLDER/checkpoint-STEP/adapter.safetensors, malloc'd. */
char *job_folder_checkpoint_adapter(const char *folder, int64_t step);

/* Sets *out to a new list of {step, name, adapter, bytes, created_at}, ascending by step. The
 * caller owns the reference. adapter is null if the checkpoint has none. */
bool job_folder_checkpoints(const char *folder, json_t **out, struct error *err)
    __attribute__((warn_unused_result));

/* File with the list of a validation's pictures. It is written last: if it exists, the validation
 * is complete. */
#define VALIDATION_LIST "pictures.json"
/* Lists the complete validations (validation.h). Sets *out to a new list of {step, loss, pictures:
 * [{file, prompt, seed}]}, ascending by step; the caller owns the reference. `file` is in the
 * folder job_folder_validation_step. loss is null if it was not computed. */
bool job_folder_validations(const char *folder, json_t **out, struct error *err)
    __attribute__((warn_unused_result));
/* Return FOLDER/validation, FOLDER/validation/step-STEP, and the file called "grid.png" or like
 * "step-4/0-1.png" in FOLDER/validation. malloc'd. job_folder_validation_file returns NULL for any
 * other name. */
char *job_folder_validation(const char *folder);
char *job_folder_validation_step(const char *folder, int64_t step);
char *job_folder_validation_file(const char *folder, const char *name);

#endif
