/* How a device's own kernels are chosen between: measured, not believed.
 *
 * A problem is an operation on one shape, known since it was first called in this process. Its
 * candidates are kernels that claim to compute it. `try_candidate` compares one with the plainest
 * kernel on random data and times it; since a wrong kernel may also take the device with it,
 * whoever calls it does so in a process of its own (server/command/tune.c). What was measured is
 * kept in a file (kernels/tuner_cache.h) and put back with `choose`.
 */
#ifndef KERNELS_TUNER_H
#define KERNELS_TUNER_H

#include "base/error.h"

#include <stddef.h>

/* With the ending zero. Words without tabs and newlines. */
#define TUNER_KEY_BYTES 128
#define TUNER_NAME_BYTES 64
#define TUNER_IDENTITY_BYTES 256

struct tuner_result {
    bool right;
    char why[128]; /* if wrong */
    double us;     /* of one call, if right */
    double error;  /* norm of the difference to the plainest, relative */
    double flops;  /* of one call; 0: not a product */
};

struct tuner {
    /* For what measurements hold: the chip, its driver and this very build. */
    void (*identity)(char text[TUNER_IDENTITY_BYTES]);
    int (*problem_count)(void);
    void (*problem_key)(int problem, char key[TUNER_KEY_BYTES]);
    int (*candidate_count)(int problem);
    void (*candidate_name)(int problem, int candidate, char name[TUNER_NAME_BYTES]);
    /* False only if the trial itself was not possible (memory, a lost device). */
    bool (*try_candidate)(int problem, int candidate, struct tuner_result *out, struct error *err);
    /* Uses the candidate `name` for the problem `key`, once that is called for the first time.
     * Names that mean nothing (any more) change nothing. False if there is no room. */
    bool (*choose)(const char *key, const char *name);
};

#endif
