/* Between the queue and who works on its jobs: one thread that claims a job when its runner is
 * free, and writes down what the runner reports. So a runner never waits for the disk, and what
 * cannot be written now, because the disk is full, is tried again until it can.
 *
 * A runner works on as many jobs at a time as it says, and is told of everything by calls that must
 * not wait. The functions that take a claim never wait either, and any thread may call them.
 */
#ifndef QUEUE_DISPATCHER_H
#define QUEUE_DISPATCHER_H

#include "queue/queue.h"

#define DISPATCHER_JOBS_MAX 16

struct dispatcher;
struct job_claim;

/* Who works on the jobs of one type. Any thread may call it. */
struct job_runner {
    const char *type;
    int at_once; /* jobs; 0: one */
    /* Whether a request that is well-formed can be worked on here: what it names is there, and its
     * memory fits. May read files. */
    bool (*check)(void *user, const char *request, struct error *err);
    /* This job is to be worked on, until one of the last three functions below. Must not wait. */
    void (*start)(void *user, struct job_claim *claim);
    /* job_claim_wish of one of its claims may have changed. Must not wait, and of the functions
     * here call job_claim_wish at most. */
    void (*wake)(void *user);
    void *user;
};

/* `queue` is borrowed. */
bool dispatcher_create(struct queue *queue, struct dispatcher **out, struct error *err)
    __attribute__((warn_unused_result));
/* Copies it; from now on it gets jobs. One a type, and DISPATCHER_JOBS_MAX jobs at once of all. */
bool dispatcher_add(struct dispatcher *dispatcher, const struct job_runner *runner,
    struct error *err) __attribute__((warn_unused_result));
/* NULL if nobody works on jobs of this type. Lives as long as the dispatcher. */
const struct job_runner *dispatcher_find(struct dispatcher *dispatcher, const char *type);
/* Nothing more is claimed, and who works is asked to give back. */
void dispatcher_stop(struct dispatcher *dispatcher);
/* Then waits until all jobs of a type are given back and written: its runner is not called again.
 */
void dispatcher_wait(struct dispatcher *dispatcher, const char *type);
/* Also waits until all is given back and written. The runners must still be there. NULL is fine. */
void dispatcher_destroy(struct dispatcher *dispatcher);

/* As it was when it was claimed. */
const struct job *job_claim_job(const struct job_claim *claim);
enum job_wish job_claim_wish(const struct job_claim *claim);
/* From now on it waits for others' work, until its next report: if it does so for long, the
 * daemon's end is not counted against it (JOB_STRIKES_MAX). */
void job_claim_waits(struct job_claim *claim);
/* Between two that are soon after one another the first may be passed over. */
void job_claim_report(struct job_claim *claim, const struct job_report *report);
/* A word, and a JSON object of at most JOB_EVENT_MAX_BYTES. False if there is no room for it before
 * others are written down. */
bool job_claim_event(struct job_claim *claim, const char *type, const char *data);

/* The end; the claim is gone then. `result`: a JSON object, malloc'd and taken over, or NULL. */
void job_claim_succeed(struct job_claim *claim, char *result);
void job_claim_fail(struct job_claim *claim, const struct error *why);
/* All that is worth keeping is on the disk, and it has stopped, as it was asked to. */
void job_claim_stopped(struct job_claim *claim);
/* The process is about to end through no wish of anybody: nothing is written down, and the job
 * begins again at the next start, as after a kill. */
void job_claim_abandon(struct job_claim *claim);

#endif
