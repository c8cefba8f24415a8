/* The protocol between `latentd tune` and the worker processes it starts. A worker opens the
 * device, registers every operation of a picture, and then tries what it reads from its standard
 * input, one line each:
 *
 *   PROBLEM TAB CANDIDATE       numbers, from 0
 *
 * On its standard output it first writes
 *
 *   identity TAB TEXT
 *   problem TAB KEY             each followed by its candidates: the first is the untuned choice,
 *   candidate TAB NAME          then those expected to be fast; the last is the plainest
 *   ready
 *
 * or, on a device with nothing to choose between, only
 *
 *   nothing TAB DEVICE
 *
 * and then one line for each line it reads:
 *
 *   right TAB US TAB ERROR TAB FLOPS
 *   wrong TAB WHY
 *   skipped TAB WHY             it could not be tried
 *
 * It ends when its input ends. If it ends earlier, or is silent for too long, the candidate that it
 * was trying counts as faulted, and another worker continues with the next candidate. */
#ifndef COMMAND_TUNE_TUNE_H
#define COMMAND_TUNE_TUNE_H

#include "engine/loop/pipeline.h"
#include "kernels/tuner_cache.h"

struct tune_options {
    struct pipeline_options pipeline;
    int width, height; /* px; 0: the model's default */
};

/* Runs a worker and returns its exit status. With `all` it reads no input and tries every candidate
 * once. */
int tune_work(const struct tune_options *options, bool all);

/* One candidate of a problem. */
struct tune_candidate {
    char name[TUNER_NAME_BYTES];
    enum { TUNE_UNTRIED, TUNE_RIGHT, TUNE_WRONG, TUNE_FAULTED, TUNE_SKIPPED } state;
    double us, error; /* if right; the error is relative to the plainest one */
    char why[128];    /* if wrong, faulted or skipped */
};

struct tune_problem {
    char key[TUNER_KEY_BYTES];
    struct tune_candidate *candidates; /* owned; the first is the untuned choice */
    int count;
    double flops; /* per call */
    int faults;
    bool was_known; /* measured by an earlier run */
};

#define TUNE_FAMILIES_MAX 128
#define TUNE_MINUTES_MAX 1440

/* The state of tuning a device. */
struct tune {
    struct tune_options options; /* passed to the workers; strings borrowed */
    double deadline_s;           /* monotonic; afterwards nothing is tried */
    bool only_new;               /* skips problems measured by earlier runs */
    struct tuner_cache cache;
    char path[4096];               /* path of the cache file */
    struct tune_problem *problems; /* owned */
    int count;
    int measured; /* problems whose first candidates were all tried */
    int faults;
    double longest_s; /* the longest trial so far */
    /* Kernels, each with a tile ("mma 128x160x32"), and how often they faulted. */
    struct {
        char name[TUNER_NAME_BYTES];
        int faults;
    } families[TUNE_FAMILIES_MAX];
    int family_count;
};

/* Tries as many candidates as time allows, and writes the choice to the cache after every problem.
 * After a failure the cache keeps what was written before. ERROR_UNSUPPORTED if the device has
 * nothing to choose between. `t` is zeroed except for options and deadline_s; the caller finishes
 * it, also after a failure. */
bool tune_run(struct tune *t, struct error *err) __attribute__((warn_unused_result));
void tune_finish(struct tune *t);

/* Returns the number of a problem's candidates that are in this state. */
int tune_count(const struct tune_problem *problem, int state);
/* Returns the fastest right candidate, or NULL. */
const struct tune_candidate *tune_best(const struct tune_problem *problem);

#endif
