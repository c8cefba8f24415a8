/* The runner of jobs of type "train", beside the requests of an engine. One job at a time: its
 * pieces (engine/training_job/training_job.h) run in the engine's background; its data set is
 * examined in a thread of its own. The files of a job are in FOLDER/jobs/ID. Its adapter is
 * registered with the engine under the job's name as soon as it is written. */
#ifndef ENGINE_LOOP_TRAINING_H
#define ENGINE_LOOP_TRAINING_H

#include "engine/loop/engine.h"
#include "queue/dispatcher.h"

struct training;

struct training_options {
    struct engine *engine;         /* borrowed; must outlive it */
    struct dispatcher *dispatcher; /* borrowed; gets a runner if dataset_root is set */
    const char *folder;            /* for the jobs' folders and the shared cache; borrowed */
    uint64_t cache_max_bytes;      /* limit of FOLDER/cache (train/examples/cache.h) between jobs */
    const char *dataset_root;      /* borrowed; NULL: no job is taken */
    const char *tokenizer_dir;     /* the engine's; borrowed; NULL: the checkpoint's own */
    double share;                  /* struct engine_background's */
};

bool training_create(const struct training_options *options, struct training **out,
    struct error *err) __attribute__((warn_unused_result));
/* Call only after the dispatcher is destroyed. NULL is fine. */
void training_destroy(struct training *training);

#endif
