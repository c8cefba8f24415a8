/* The daemon's jobs: the queue, its dispatcher and training. */
#ifndef COMMAND_JOBS_H
#define COMMAND_JOBS_H

#include "engine/loop/training.h"

/* Zero-initialise. jobs_close may be called at any time. */
struct jobs {
    struct queue *queue; /* NULL: none */
    struct error none;   /* why there is no queue */
    struct dispatcher *dispatcher;
    struct training *training;
};

/* Opens the queue in training->folder, and creates the dispatcher and the runner of training jobs.
 * If the folder is NULL, there are no jobs. A damaged queue file or a full disk is not a failure,
 * because the daemon can still draw. The error is then logged, and returned to clients that ask for
 * jobs. */
bool jobs_open(struct jobs *jobs, const struct training_options *training, struct error *err)
    __attribute__((warn_unused_result));
/* Stops claiming jobs, and asks the runners to give their jobs back. */
void jobs_stop(struct jobs *jobs);
void jobs_close(struct jobs *jobs);

#endif
