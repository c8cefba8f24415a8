/* How the ranks of a training job decide things together: errors, stops, and who waits for whom.
 *
 * All ranks run the same job on the same numbers, so they come to the same places in the same
 * order. Only three things are a rank's own: an error, a signal, and the time that it takes. A rank
 * that acted on one of them alone would leave the others waiting for ever. So it tells the others
 * first, in a word that all ranks exchange at fixed places of the job, and every rank acts on all
 * words:
 *
 *   - Every call that moves data between ranks comes directly after an exchange of words in which
 *     no rank failed, and nothing that can fail lies between the two. Two exceptions are rare:
 *     cluster_compare takes memory for the texts between its two gathers, and close_window waits
 * for the others without an exchange, as a job may end in any way. A rank that fails there leaves
 *     the others to their deadline.
 *   - A rank that fails elsewhere goes to the next exchange with its error (agreement_fail), and
 *     thereby all ranks fail there, with this error.
 *   - A signal (agreement_ask_to_stop) only sets a flag of the next word. After the exchange all
 *     ranks know it, and stop at the same place.
 *
 * A world of one rank has no agreement: every function takes NULL for it, and then returns at once
 * what this rank says.
 *
 * One thread. */
#ifndef TRAIN_RANKS_AGREEMENT_H
#define TRAIN_RANKS_AGREEMENT_H

#include "cluster/cluster.h"

#include <stdint.h>

/* What a rank says in an exchange. */
struct agreement_word {
    struct error error; /* code ERROR_NONE: it has not failed */
    bool asked;         /* it was asked to stop */
    bool busy;          /* agreement_wait: it is not done */
    double loss;        /* round.h: of its micro-batch */
    int64_t rows;       /* of its micro-batch; 0: it had none */
};

struct agreement {
    struct cluster *cluster;      /* borrowed */
    struct agreement_word *words; /* owned: [world], of the last exchange */
    bool asked;                   /* this rank was asked to stop */
    bool stops;                   /* some rank was asked, and all ranks know it */
    bool failed;                  /* all ranks know that the job has failed */
    bool lost; /* a call of the cluster failed: the others cannot be told any more */
    double exchanged_s;
};

/* Makes the agreement of a cluster, which must live as long. */
bool agreement_create(struct cluster *cluster, struct agreement **out, struct error *err)
    __attribute__((warn_unused_result));
void agreement_destroy(struct agreement *agreement);

int agreement_rank(const struct agreement *agreement);
int agreement_world(const struct agreement *agreement);
/* Returns how many ranks share this machine's memory. */
int agreement_host_ranks(const struct agreement *agreement);
/* Returns whether this is rank 0, which writes the files and reports. */
bool agreement_is_first(const struct agreement *agreement);

/* Exchanges words. `ok`: whether this rank is well; if not, *err says why, and *err must not be
 * NULL. Returns false on every rank if some rank is not well; *err is then the error of the lowest
 * such rank, with its number if it is another one. */
bool agreement_meet(struct agreement *agreement, bool ok, struct error *err)
    __attribute__((warn_unused_result));

/* Tells the other ranks of an error, unless they know, or are lost. Then *err is the error that
 * agreement_meet would give. */
void agreement_fail(struct agreement *agreement, struct error *err);

/* For work that takes the ranks different times: call it after each piece until *over, which is set
 * when no rank is busy. A busy rank exchanges words every few seconds, so no rank waits long for
 * another one, and a stop or an error ends the waiting. */
bool agreement_wait(struct agreement *agreement, bool busy, bool *over, struct error *err)
    __attribute__((warn_unused_result));

/* Does what cluster_compare does, after an exchange of words. */
bool agreement_compare(struct agreement *agreement, const char *label, const char *text,
    struct error *err) __attribute__((warn_unused_result));

/* Between these two, rank 0 works alone and the others may wait for it beyond the cluster's
 * deadline. No exchange may lie between. */
void agreement_begin_alone(struct agreement *agreement);
void agreement_end_alone(struct agreement *agreement);

/* Replaces `data` by rank 0's. Nothing that can fail may lie between it and the last exchange. */
bool agreement_take_first(struct agreement *agreement, void *data, size_t bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Exchanges words with a micro-batch's loss and rows (0: this rank had none). The words of all
 * ranks are then in `words`. */
bool agreement_exchange(struct agreement *agreement, bool ok, double loss, int64_t rows,
    struct error *err) __attribute__((warn_unused_result));

/* Notes that a call of the cluster failed. Returns false. */
bool agreement_lose(struct agreement *agreement);
/* Returns whether the others are lost. This process can then only end: what the ranks share cannot
 * be freed in order. */
bool agreement_is_lost(const struct agreement *agreement);

/* Says in the next exchange that this rank was asked to stop. agreement_stops returns whether all
 * ranks know that one was asked. */
void agreement_ask_to_stop(struct agreement *agreement);
bool agreement_stops(const struct agreement *agreement);

#endif
