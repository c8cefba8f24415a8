/* Data parallel training: ranks share the micro-batches of each step of the optimizer, and every
 * rank then takes the same step (ZeRO's stage 0).
 *
 * A step has gradient_accumulation_steps micro-batches, whatever the number of ranks. Counted from
 * the step's first one, micro-batch m is computed by rank m % world: ranks compute in rounds of one
 * micro-batch each. The last round of a step, or of an epoch, may be short; the ranks from its
 * number on are idle then.
 *
 * One process adds the gradients of a step's micro-batches one after the other, each complete
 * (kernels/backward.h). The ranks compute the same sums. In each round a rank computes its
 * gradients onto zeros, and the owner of each part of the parameters adds the parts of all ranks to
 * its sums, in the order of ranks, which is the order of micro-batches. At the end of a step all
 * ranks get all sums. The numbers are bit for bit those of one process, with any number of ranks.
 */
#ifndef TRAIN_RANKS_ROUND_H
#define TRAIN_RANKS_ROUND_H

#include "train/optimizer/parameters.h"
#include "train/ranks/agreement.h"

/* Returns the rank that computes micro-batch `batch` of an epoch. */
int round_rank(int64_t batch, int accumulation, int world);
/* Returns whether a round ends with micro-batch `batch` of an epoch's `batches`. */
bool round_ends(int64_t batch, int64_t batches, int accumulation, int world);

/* Refuses more ranks than micro-batches in a step: some would never have any. */
bool round_suits(int64_t accumulation, int world, struct error *err)
    __attribute__((warn_unused_result));

struct round {
    struct agreement *agreement;   /* borrowed */
    struct parameters *parameters; /* borrowed; a pass adds to their gradients */
    struct cluster_window window;  /* this rank's gradients */
    bool in_place;                 /* the parameters' gradients are the window's floats */
    int64_t cuts[CLUSTER_RANKS_MAX + 1];
    float *sums; /* owned: [cuts[rank + 1] - cuts[rank]], of the rounds of this step so far */
};

/* Takes memory, on all ranks: for a copy of the gradients, or if they are in host memory, their own
 * memory, to which *parameters then point; and for this rank's part of the sums. */
bool round_open(struct round *round, struct agreement *agreement, struct parameters *parameters,
    struct error *err) __attribute__((warn_unused_result));
/* The parameters' gradients are gone if they were in the window. A zeroed one is fine. */
void round_close(struct round *round);
/* Returns the host memory that round_open takes beside the parameters' gradients. */
size_t round_bytes(const struct round *round);

/* Ends a round of `count` micro-batches, on all ranks; `rows` is 0 on a rank that had none. The
 * losses and rows are then in agreement->words. If it `ends_step`, the parameters' gradients are
 * then the sums of the step. Otherwise the caller clears them. */
bool round_end(struct round *round, int count, double loss, int64_t rows, bool ends_step,
    struct error *err) __attribute__((warn_unused_result));
/* Forgets the rounds of a step that begins anew. */
void round_forget(struct round *round);

#endif
