/* The checkpoints of training jobs, registered among the adapters: each can be used as NAME@STEP
 * while it exists. The functions wait for files and for the registry; call them from any thread but
 * the engine's. */
#ifndef ENGINE_LOOP_CHECKPOINT_NAMES_H
#define ENGINE_LOOP_CHECKPOINT_NAMES_H

#include "engine/adapters/adapters.h"

/* Registers the checkpoints that a job's folder has now, and removes the names of those that are
 * gone. */
void checkpoint_names_update(struct adapters *adapters, const char *job_folder);
/* Does so for all jobs in STATE/jobs. */
void checkpoint_names_scan(struct adapters *adapters, const char *state_folder);

#endif
