/* Checkpoints of training jobs among the adapters: each can be used as NAME@STEP as long as it is
 * there. The functions wait for files and for the registry; from any thread but the engine's. */
#ifndef ENGINE_CHECKPOINT_NAMES_H
#define ENGINE_CHECKPOINT_NAMES_H

#include "engine/adapters/adapters.h"

/* Those that a job's folder has now, and no others of it. */
void checkpoint_names_update(struct adapters *adapters, const char *job_folder);
/* Those of all jobs in STATE/jobs. */
void checkpoint_names_scan(struct adapters *adapters, const char *state_folder);

#endif
