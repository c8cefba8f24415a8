/* Who works on jobs of type "train", beside the pictures of an engine: one job at a time, its
 * pieces (engine/training_job/training_job.h) in the engine's background, its data set looked at in
 * a thread of its own. What belongs to a job lies in FOLDER/jobs/ID; its adapter is put among the
 * engine's under the job's name the moment it is written. */
#ifndef ENGINE_TRAINING_H
#define ENGINE_TRAINING_H

#include "engine/engine.h"
#include "queue/dispatcher.h"

struct training;

struct training_options {
    struct engine *engine;         /* borrowed, outlives it */
    struct dispatcher *dispatcher; /* borrowed; gets a runner, if there is one */
    const char *folder;            /* for what belongs to jobs, and all share; borrowed */
    uint64_t cache_max_bytes;      /* of FOLDER/cache (train/cache.h) between jobs */
    const char *dataset_root;      /* borrowed; NULL: no job is taken */
    const char *tokenizer_dir;     /* the engine's; borrowed; NULL: the checkpoint's own */
    double share;                  /* struct engine_background's */
};

bool training_create(const struct training_options *options, struct training **out,
    struct error *err) __attribute__((warn_unused_result));
/* Only once the dispatcher is destroyed. NULL is fine. */
void training_destroy(struct training *training);

#endif
