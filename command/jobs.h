/* The daemon's jobs: the queue, its dispatcher and training. */
#ifndef COMMAND_JOBS_H
#define COMMAND_JOBS_H

#include "engine/loop/training.h"

/* Zero-initialise; jobs_close is always allowed. */
struct jobs {
    struct queue *queue; /* NULL: none */
    struct error none;   /* why there is no queue */
    struct dispatcher *dispatcher;
    struct training *training;
};

/* Opens the queue in training->folder, and creates the dispatcher and the runner of training jobs.
 * A NULL folder: no jobs are kept. If the queue's file is damaged or the disk is full, the daemon
 * can still draw: the error is logged, returned to clients that ask for jobs, and not a failure. */
bool jobs_open(struct jobs *jobs, const struct training_options *training, struct error *err)
    __attribute__((warn_unused_result));
/* Asks the runners to give back their jobs. */
void jobs_stop(struct jobs *jobs);
void jobs_close(struct jobs *jobs);

#endif
