#include "engine/training.h"

/* This version has no runner: without one POST /train is refused. */
bool training_create(
    const struct training_options *options, struct training **out, struct error *err) {
    (void)options, (void)err;
    *out = NULL;
    return true;
}

void training_destroy(struct training *training) {
    (void)training;
}
