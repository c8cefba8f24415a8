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
 * It ends when its input ends. If it ends earlier, or stays silent for long, the candidate that it
 * was trying is to blame, and another worker goes on with the next. */
#ifndef COMMAND_TUNE_TUNE_H
#define COMMAND_TUNE_TUNE_H

#include "engine/loop/pipeline.h"
#include "kernels/tuner_cache.h"

struct tune_options {
    struct pipeline_options pipeline;
    int width, height; /* px; 0: the model's own */
};

/* Runs a worker; returns its exit status. With `all` it reads no input and tries every candidate
 * once. */
int tune_work(const struct tune_options *options, bool all);

/* One candidate of a problem. */
struct tune_candidate {
    char name[TUNER_NAME_BYTES];
    enum { TUNE_UNTRIED, TUNE_RIGHT, TUNE_WRONG, TUNE_FAULTED, TUNE_SKIPPED } state;
    double us, error; /* if right; the error is relative to the plainest candidate */
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

/* What is known of a device while its candidates are tried. */
struct tune {
    struct tune_options options; /* for the workers; strings borrowed */
    double deadline_s;           /* monotonic; what is not tried by then stays untried */
    bool only_new;               /* skips what an earlier run measured */
    struct tuner_cache cache;
    char path[4096];               /* of the cache */
    struct tune_problem *problems; /* owned */
    int count;
    int measured; /* problems whose worthwhile candidates were all tried */
    int faults;
    double longest_s; /* the longest trial so far */
    /* A kernel with its tile that faulted: "mma 128x160x32". */
    struct {
        char name[TUNER_NAME_BYTES];
        int faults;
    } families[TUNE_FAMILIES_MAX];
    int family_count;
};

/* Tries as many candidates as time allows, and writes the choice to the cache after every problem.
 * After a failure the cache keeps what was written until then; ERROR_UNSUPPORTED if there is
 * nothing to choose between. `t` is zeroed except for options and deadline_s; the caller finishes
 * it in either case. */
bool tune_run(struct tune *t, struct error *err) __attribute__((warn_unused_result));
void tune_finish(struct tune *t);

/* Returns how many of a problem's candidates are in this state. */
int tune_count(const struct tune_problem *problem, int state);
/* Returns the fastest right candidate, or NULL. */
const struct tune_candidate *tune_best(const struct tune_problem *problem);

#endif
