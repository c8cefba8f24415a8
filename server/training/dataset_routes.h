/* What all routes about data sets share. */
#ifndef SERVER_TRAINING_DATASET_ROUTES_H
#define SERVER_TRAINING_DATASET_ROUTES_H

#include "base/error.h"

#include <stdbool.h>

struct queue;
struct viewer;

/* ERROR_CONFLICT where a job will read it, a paused one too; it names the job if the viewer may see
 * it. `queue` NULL: no jobs are kept. Waits for the disk. */
bool dataset_is_unused(struct queue *queue, const char *dataset, const struct viewer *viewer,
    struct error *err) __attribute__((warn_unused_result));

#endif
