/* Registers the checkpoints of training jobs as adapters, so that requests can name each of them as
 * NAME@STEP while its file exists. These functions wait for files and for the registry. Call them
 * from any thread except the engine thread. */
#ifndef ENGINE_LOOP_CHECKPOINT_NAMES_H
#define ENGINE_LOOP_CHECKPOINT_NAMES_H

#include "engine/adapters/adapters.h"

/* Registers the checkpoints in a job's folder, and removes the names of those that no longer
 * exist. */
void checkpoint_names_update(struct adapters *adapters, const char *job_folder);
/* Calls checkpoint_names_update for all jobs in STATE/jobs. */
void checkpoint_names_scan(struct adapters *adapters, const char *state_folder);

#endif
