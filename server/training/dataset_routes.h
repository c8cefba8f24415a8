/* What all routes about data sets share. */
#ifndef SERVER_TRAINING_DATASET_ROUTES_H
#define SERVER_TRAINING_DATASET_ROUTES_H

#include "base/error.h"

#include <stdbool.h>

struct queue;

/* ERROR_CONFLICT where a job will read it, a paused one too. NULL: no jobs are kept. Waits for the
 * disk. */
bool dataset_is_unused(struct queue *queue, const char *dataset, struct error *err)
    __attribute__((warn_unused_result));

#endif
