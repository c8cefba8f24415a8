/* How a choice is made between a device's kernels: by measuring them.
 *
 * A problem is an operation on one shape. The first call of that shape in this process registers
 * it. Its candidates are kernels that claim to compute it. `try_candidate` compares one with the
 * plainest kernel on random data and times it. Since a wrong kernel may leave the device unusable,
 * `try_candidate` is called in a process of its own (command/tune/tune.c). The results are kept in
 * a file (kernels/tuner_cache.h) and applied with `choose`.
 */
#ifndef KERNELS_TUNER_H
#define KERNELS_TUNER_H

#include "base/error.h"
#include "kernels/operations.h"

#include <stddef.h>
#include <stdio.h>

/* Sizes include the terminating zero. The texts contain no tabs or newlines. */
#define TUNER_KEY_BYTES 128
#define TUNER_NAME_BYTES 160
#define TUNER_IDENTITY_BYTES 768

enum tuner_verdict {
    TUNER_RIGHT,
    TUNER_WRONG,
    TUNER_SKIPPED, /* not tried: too little memory */
};

struct tuner_result {
    enum tuner_verdict verdict;
    char why[128]; /* set unless the verdict is TUNER_RIGHT */
    /* If right: the time of a call on the fewest rows noted. If several numbers of rows were noted:
     * the mean of that time and the time of a call on the most rows, scaled to the fewest rows. */
    double us;
    double error; /* relative norm of the difference from the plainest kernel */
    double flops; /* of that call on the fewest rows; 0: not a product */
};

struct tuner {
    /* What the measurements are valid for, in parts separated by ", ": the chip first, then its
     * driver and the code of the kernels. All programs with the same kernels give the same text. */
    void (*identity)(char text[TUNER_IDENTITY_BYTES]);
    /* Registers the shape of a call and its number of rows without computing it. args: the
     * operation's arguments, already checked; their tensors need no memory. Operations with only
     * one kernel are ignored. */
    void (*note)(enum operation operation, const void *args);

    int (*problem_count)(void);
    void (*problem_key)(int problem, char key[TUNER_KEY_BYTES]);
    /* Candidate 0 is the one used without tuning. Candidates that are expected to be fast follow.
     * The last one is the plainest. */
    int (*candidate_count)(int problem);
    void (*candidate_name)(int problem, int candidate, char name[TUNER_NAME_BYTES]);
    /* Returns false only if nothing more can be tried in this process (a lost device). Data
     * shared by the candidates of one problem is kept until another problem is tried or `end` is
     * called. */
    bool (*try_candidate)(int problem, int candidate, struct tuner_result *out, struct error *err);
    /* Prints the properties of the device by which its kernels are planned (shared memory,
     * multiprocessors). */
    void (*print_facts)(FILE *out);
    /* Frees what try_candidate keeps. */
    void (*end)(void);
    /* Uses the candidate `name` for the problem `key` from its first call on. Unknown names change
     * nothing. Returns false if there is no room. */
    bool (*choose)(const char *key, const char *name);
    /* For tests. From now on, a problem that is called for the first time uses its first candidate
     * whose name begins with `prefix`, whatever was chosen. The caller keeps `prefix`; NULL ends
     * this. Returns how many problems used a candidate of the previous prefix, since the last call
     * of prefer. */
    int (*prefer)(const char *prefix);
};

#endif
