/* The daemon's jobs: their queue, and who works on them. */
#ifndef COMMAND_JOBS_H
#define COMMAND_JOBS_H

#include "engine/training.h"

/* Zeroed to begin with; can always be closed. */
struct jobs {
    struct queue *queue; /* NULL: there are none, */
    struct error none;   /* and this is why */
    struct dispatcher *dispatcher;
    struct training *training;
};

/* training: its folder is the queue's too, its dispatcher is made here. A folder of NULL: none are
 * kept. Also where its file is damaged or the disk is full the daemon can draw, so that is no
 * failure: it is logged, and said to who asks for jobs. */
bool jobs_open(struct jobs *jobs, const struct training_options *training, struct error *err)
    __attribute__((warn_unused_result));
/* Asks who works to give back. */
void jobs_stop(struct jobs *jobs);
void jobs_close(struct jobs *jobs);

#endif
