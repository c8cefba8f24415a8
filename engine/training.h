/* Who works on jobs of type "train", beside the pictures of an engine. */
#ifndef ENGINE_TRAINING_H
#define ENGINE_TRAINING_H

#include "engine/engine.h"
#include "queue/dispatcher.h"

struct training;

struct training_options {
    struct engine *engine;         /* borrowed, outlives it */
    struct dispatcher *dispatcher; /* borrowed; gets a runner, if there is one */
    const char *folder;            /* for what belongs to jobs; borrowed */
};

bool training_create(const struct training_options *options, struct training **out,
    struct error *err) __attribute__((warn_unused_result));
/* Only once the dispatcher is destroyed. NULL is fine. */
void training_destroy(struct training *training);

#endif
