/* The complete state of a job on disk, from which it resumes bit for bit: FOLDER/checkpoint-STEP
 * with state.safetensors and further files of the job (its adapter).
 *
 * A checkpoint exists as a whole or not at all. Its files are written and synced in a folder with
 * another name, and the folder is then renamed. So a kill or a full disk leaves the last checkpoint
 * as it was. A checksum over the whole state detects damage. If a checkpoint is damaged, resuming
 * uses the last good one before it.
 *
 * One thread at a time per folder. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include "kernels/memory.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An array of 32-bit words. */
struct checkpoint_part {
    const char *name;
    void *data; /* borrowed */
    size_t bytes;
    const struct device_memory *memory; /* memory that holds `data`; NULL: host memory */
};

/* The contents of a checkpoint: the arrays, and all small numbers as a JSON object. */
struct checkpoint_state {
    const struct checkpoint_part *parts; /* borrowed */
    size_t count;
    json_t *numbers;
};

/* Writes FOLDER/checkpoint-STEP, replacing a checkpoint of the same step. Then deletes the oldest
 * checkpoints if there are more than `limit` (0: no limit). `beside` (may be NULL) writes further
 * files into the folder that it is given. */
bool checkpoint_write(const char *folder, int64_t step, const struct checkpoint_state *state,
    int64_t limit, bool (*beside)(void *user, const char *folder, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* Reads the arrays into the parts and sets state->numbers, a new reference. `path` is the
 * checkpoint's own folder. ERROR_INVALID if the checkpoint is damaged or belongs to a job with
 * other parts; the contents of the parts are then undefined. */
bool checkpoint_read(const char *path, struct checkpoint_state *state, struct error *err)
    __attribute__((warn_unused_result));

/* Reads the last good checkpoint of the folder; logs a warning for each bad one. *step is its step,
 * or -1 if there is no checkpoint at all, which is not an error. ERROR_INVALID if there are
 * checkpoints but none is good. */
bool checkpoint_read_last(const char *folder, struct checkpoint_state *state, int64_t *step,
    struct error *err) __attribute__((warn_unused_result));

/* Returns the step in the name of a checkpoint's folder ("checkpoint-50"), or -1. */
int64_t checkpoint_step(const char *name);

/* Reads the checkpoint of this step. If there is none, ERROR_INVALID names
 * resume_from_checkpoint. */
bool checkpoint_read_step(const char *folder, int64_t step, struct checkpoint_state *state,
    struct error *err) __attribute__((warn_unused_result));
/* Reads only the numbers of the checkpoint of this step, or of the last one that can be read if
 * `step` is negative. NULL if there is none, which is not an error. A new reference. The arrays are
 * neither read nor checked. */
bool checkpoint_read_numbers(const char *folder, int64_t step, json_t **numbers, struct error *err)
    __attribute__((warn_unused_result));
/* Renames the checkpoints of later steps to checkpoint-STEP.aside, replacing folders of that name.
 * Used when a job continues from an earlier step: the later checkpoints then belong to another
 * course of the job. */
bool checkpoint_put_aside(const char *folder, int64_t after, struct error *err)
    __attribute__((warn_unused_result));

/* Lists the steps of the checkpoints in a folder, ascending; malloc'd. The list is empty if there
 * is no folder. */
bool checkpoint_list(const char *folder, int64_t **steps, size_t *count, struct error *err)
    __attribute__((warn_unused_result));
/* Does what checkpoint_list does, for entries whose names begin with another prefix. */
bool checkpoint_list_named(const char *folder, const char *prefix, int64_t **steps, size_t *count,
    struct error *err) __attribute__((warn_unused_result));

#endif
