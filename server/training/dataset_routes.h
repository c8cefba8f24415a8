/* Functions for all routes that use data sets. */
#ifndef SERVER_TRAINING_DATASET_ROUTES_H
#define SERVER_TRAINING_DATASET_ROUTES_H

#include "base/error.h"

#include <stdbool.h>

struct queue;
struct viewer;

/* Checks that no queued, running or paused job uses the data set. If one does, ERROR_CONFLICT names
 * it, provided that the viewer may see it. `queue` may be NULL: no jobs. Waits for the disk. */
bool dataset_is_unused(struct queue *queue, const char *dataset, const struct viewer *viewer,
    struct error *err) __attribute__((warn_unused_result));

#endif
