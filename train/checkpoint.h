/* Everything that a job needs to go on bit for bit, on disk: FOLDER/checkpoint-STEP with
 * state.safetensors and whatever else the job puts beside it (its adapter, so far).
 *
 * A checkpoint is there as a whole or not at all: its files are written and synced in a folder with
 * another name, which is renamed; a kill or a full disk leaves the last one as it was. A checksum
 * over all of the state tells a damaged one, and resuming takes the last good one before it.
 *
 * One thread at a time for one folder. */
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
    const struct device_memory *memory; /* whose it is; NULL: the host's */
};

/* What is written, and what comes back: the arrays, and all small numbers as a JSON object. */
struct checkpoint_state {
    const struct checkpoint_part *parts; /* borrowed */
    size_t count;
    json_t *numbers;
};

/* Writes FOLDER/checkpoint-STEP, replacing one of that step, then deletes the oldest ones beyond
 * `limit` (0: none). `beside` is NULL or writes further files into the folder that it is given. */
bool checkpoint_write(const char *folder, int64_t step, const struct checkpoint_state *state,
    int64_t limit, bool (*beside)(void *user, const char *folder, struct error *err), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* Reads into the parts and sets state->numbers, a new reference. ERROR_INVALID: damaged, or of a
 * job with other parts; the parts hold anything then. `path` is the checkpoint's own folder. */
bool checkpoint_read(const char *path, struct checkpoint_state *state, struct error *err)
    __attribute__((warn_unused_result));

/* Reads the last good one of the folder; a warning in the log names each that is passed over.
 * *step: its step, or -1 where there is none at all, which is no error. ERROR_INVALID: there are
 * some, and none is good. */
bool checkpoint_read_last(const char *folder, struct checkpoint_state *state, int64_t *step,
    struct error *err) __attribute__((warn_unused_result));

/* The step of a checkpoint's folder name ("checkpoint-50"), or -1. */
int64_t checkpoint_step(const char *name);

/* Reads the one of that step; ERROR_INVALID for resume_from_checkpoint if there is none. */
bool checkpoint_read_step(const char *folder, int64_t step, struct checkpoint_state *state,
    struct error *err) __attribute__((warn_unused_result));
/* Renames those of later steps to checkpoint-STEP.aside, in the place of any of that name: they
 * belong to a past that a job has gone back behind. */
bool checkpoint_put_aside(const char *folder, int64_t after, struct error *err)
    __attribute__((warn_unused_result));

/* The steps of the checkpoints in a folder, rising; malloc'd. No folder: none. */
bool checkpoint_list(const char *folder, int64_t **steps, size_t *count, struct error *err)
    __attribute__((warn_unused_result));

#endif
