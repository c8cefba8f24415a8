/* How a device's own kernels are chosen between: measured, not believed.
 *
 * A problem is an operation on one shape, known since it was first called in this process. Its
 * candidates are kernels that claim to compute it. `try_candidate` compares one with the plainest
 * kernel on random data and times it; since a wrong kernel may also take the device with it,
 * whoever calls it does so in a process of its own (command/tune.c). What was measured is
 * kept in a file (kernels/tuner_cache.h) and put back with `choose`.
 */
#ifndef KERNELS_TUNER_H
#define KERNELS_TUNER_H

#include "base/error.h"
#include "kernels/operations.h"

#include <stddef.h>
#include <stdio.h>

/* With the ending zero. Words without tabs and newlines. */
#define TUNER_KEY_BYTES 128
#define TUNER_NAME_BYTES 160
#define TUNER_IDENTITY_BYTES 768

enum tuner_verdict {
    TUNER_RIGHT,
    TUNER_WRONG,
    TUNER_SKIPPED, /* it could not be tried, which says nothing of it: memory did not suffice */
};

struct tuner_result {
    enum tuner_verdict verdict;
    char why[128]; /* unless right */
    /* Of one call on the fewest rows that were noted, if right; where the number of rows varies,
     * the mean of that and of a call on the most rows, taken for as many. */
    double us;
    double error; /* norm of the difference to the plainest, relative */
    double flops; /* of that call on the fewest rows; 0: not a product */
};

struct tuner {
    /* For what measurements hold, in parts that ", " separates: the chip first, then its driver and
     * the code of the kernels. All programs with the same kernels say the same. */
    void (*identity)(char text[TUNER_IDENTITY_BYTES]);
    /* Makes the shape of a call, and its number of rows, known without computing it. args: the
     * operation's, checked; tensors need no memory. An operation that one kernel alone computes is
     * passed over. */
    void (*note)(enum operation operation, const void *args);

    int (*problem_count)(void);
    void (*problem_key)(int problem, char key[TUNER_KEY_BYTES]);
    /* Candidate 0 is what is used untuned, then come those that are expected to be fast; the last
     * is the plainest. */
    int (*candidate_count)(int problem);
    void (*candidate_name)(int problem, int candidate, char name[TUNER_NAME_BYTES]);
    /* False only if nothing more can be tried in this process (a lost device). What all candidates
     * of a problem need is kept until another problem's is tried, or `end`. */
    bool (*try_candidate)(int problem, int candidate, struct tuner_result *out, struct error *err);
    /* Prints what the device says of itself that plans of it rest on. */
    void (*print_facts)(FILE *out);
    /* Gives back what try_candidate keeps. */
    void (*end)(void);
    /* Uses the candidate `name` for the problem `key`, once that is called for the first time.
     * Names that mean nothing (any more) change nothing. False if there is no room. */
    bool (*choose)(const char *key, const char *name);
    /* For tests: a problem that is called for the first time from now on uses its first candidate
     * whose name begins with `prefix` (kept by the caller), whatever was chosen. NULL ends this.
     * Returns for how many problems there was one since the last call. */
    int (*prefer)(const char *prefix);
};

#endif
