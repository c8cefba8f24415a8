/* The complete state of a job on disk, from which it resumes bit for bit: FOLDER/checkpoint-STEP
 * with state.safetensors and further files of the job (its adapter).
 *
 * A checkpoint exists as a whole or not at all. Its files are written and synced in a folder with
 * another name, which is then renamed, so a kill or a full disk leaves the last checkpoint as it
 * was. A checksum over the whole state detects damage; resuming then uses the last good checkpoint
 * before it.
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
    const struct device_memory *memory; /* the memory that `data` is in; NULL: the host's */
};

/* What is written and read back: the arrays, and all small numbers as a JSON object. */
struct checkpoint_state {
    const struct checkpoint_part *parts; /* borrowed */
    size_t count;
    json_t *numbers;
};

/* Writes FOLDER/checkpoint-STEP, replacing one of the same step, then deletes the oldest ones
 * beyond `limit` (0: none). `beside` (may be NULL) writes further files into the folder that it is
 * given. */
bool checkpoint_write(const char *folder, int64_t step, const struct checkpoint_state *state,
    int64_t limit, bool (*beside)(void *user, const char *folder, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* Reads the arrays into the parts and sets state->numbers, a new reference. ERROR_INVALID: it is
 * damaged, or of a job with other parts; the parts are then undefined. `path` is the checkpoint's
 * own folder. */
bool checkpoint_read(const char *path, struct checkpoint_state *state, struct error *err)
    __attribute__((warn_unused_result));

/* Reads the last good checkpoint of the folder; logs a warning for each bad one. *step: its step,
 * or -1 if there is no checkpoint at all, which is not an error. ERROR_INVALID: there are some, but
 * none is good. */
bool checkpoint_read_last(const char *folder, struct checkpoint_state *state, int64_t *step,
    struct error *err) __attribute__((warn_unused_result));

/* The step in a checkpoint's folder name ("checkpoint-50"), or -1. */
int64_t checkpoint_step(const char *name);

/* Reads the checkpoint of that step. ERROR_INVALID for resume_from_checkpoint if there is none. */
bool checkpoint_read_step(const char *folder, int64_t step, struct checkpoint_state *state,
    struct error *err) __attribute__((warn_unused_result));
/* Renames the checkpoints of later steps to checkpoint-STEP.aside, replacing any of that name: the
 * job continues from an earlier step, so they are no longer its past. */
bool checkpoint_put_aside(const char *folder, int64_t after, struct error *err)
    __attribute__((warn_unused_result));

/* The steps of the checkpoints in a folder, ascending; malloc'd. No folder: none. */
bool checkpoint_list(const char *folder, int64_t **steps, size_t *count, struct error *err)
    __attribute__((warn_unused_result));
/* The same for entries whose names begin with another prefix. */
bool checkpoint_list_named(const char *folder, const char *prefix, int64_t **steps, size_t *count,
    struct error *err) __attribute__((warn_unused_result));

#endif
