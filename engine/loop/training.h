/* The runner of jobs of type "train", which share the engine with requests. It has one job at a
 * time. The pieces of a job (engine/training_job/training_job.h) run in the engine's background; a
 * thread of the runner examines the data set. The files of a job are in FOLDER/jobs/ID. Its adapter
 * is registered with the engine under the job's name as soon as it is written. */
#ifndef ENGINE_LOOP_TRAINING_H
#define ENGINE_LOOP_TRAINING_H

#include "engine/loop/engine.h"
#include "queue/dispatcher.h"

struct training;

struct training_options {
    struct engine *engine;         /* borrowed; must outlive the runner */
    struct dispatcher *dispatcher; /* borrowed; gets the runner if dataset_root is set */
    const char *folder;            /* borrowed: parent of the jobs' folders and the cache */
    uint64_t cache_max_bytes;      /* limit of FOLDER/cache between jobs (train/examples/cache.h) */
    const char *dataset_root;      /* borrowed; NULL: there is no training */
    const char *tokenizer_dir;     /* borrowed; the engine's; NULL: the checkpoint's */
    double share;                  /* engine_background.share */
    /* The daemon's defaults of requests, for pictures that jobs draw; borrowed; NULL: none */
    const struct generate_request *defaults;
};

bool training_create(const struct training_options *options, struct training **out,
    struct error *err) __attribute__((warn_unused_result));
/* Call only after the dispatcher is destroyed. NULL is fine. */
void training_destroy(struct training *training);

#endif
