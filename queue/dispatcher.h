/* The dispatcher sits between the queue and the runners of its jobs. One thread claims a job when
 * its runner is free, and writes down what the runner reports. So a runner never waits for the
 * disk, and what cannot be written because the disk is full is retried until it can.
 *
 * A runner works on up to `at_once` jobs at a time, and hears of everything by calls that must not
 * wait. The functions that take a claim never wait either, and any thread may call them.
 */
#ifndef QUEUE_DISPATCHER_H
#define QUEUE_DISPATCHER_H

#include "queue/queue.h"

#define DISPATCHER_JOBS_MAX 16

struct dispatcher;
struct job_claim;

/* What works on the jobs of one type. Any thread may call its functions. */
struct job_runner {
    const char *type;
    int at_once; /* jobs at a time; 0: one */
    /* Checks that a well-formed request can be worked on here: what it names exists, and its memory
     * fits. May read files. */
    bool (*check)(void *user, const char *request, struct error *err);
    /* Begins work on a job, until one of job_claim_succeed, _fail, _stopped or _abandon. Must not
     * wait. */
    void (*start)(void *user, struct job_claim *claim);
    /* job_claim_wish of one of its claims may have changed. Must not wait; the only function of
     * this header it may call is job_claim_wish. */
    void (*wake)(void *user);
    void *user;
};

/* `queue` is borrowed. */
bool dispatcher_create(struct queue *queue, struct dispatcher **out, struct error *err)
    __attribute__((warn_unused_result));
/* Copies the runner, which gets jobs from now on. One runner per type, and at most
 * DISPATCHER_JOBS_MAX jobs at once for all runners together. */
bool dispatcher_add(struct dispatcher *dispatcher, const struct job_runner *runner,
    struct error *err) __attribute__((warn_unused_result));
/* Returns the runner for jobs of this type, NULL if there is none. Lives as long as the
 * dispatcher. */
const struct job_runner *dispatcher_find(struct dispatcher *dispatcher, const char *type);
/* Stops claiming jobs and asks the runners to give back theirs. */
void dispatcher_stop(struct dispatcher *dispatcher);
/* After dispatcher_stop: waits until all jobs of a type are given back and written. Its runner is
 * not called again. */
void dispatcher_wait(struct dispatcher *dispatcher, const char *type);
/* Stops, and waits until every job is given back and written; the runners must still exist. NULL is
 * fine. */
void dispatcher_destroy(struct dispatcher *dispatcher);

/* The job as it was when it was claimed. */
const struct job *job_claim_job(const struct job_claim *claim);
enum job_wish job_claim_wish(const struct job_claim *claim);
/* From now until its next report the job only waits for other work. If that lasts, an end of the
 * daemon does not count as a strike against it (JOB_STRIKES_MAX). */
void job_claim_waits(struct job_claim *claim);
/* Of two reports in quick succession the first may be skipped. */
void job_claim_report(struct job_claim *claim, const struct job_report *report);
/* Adds an event: a word, and a JSON object of at most JOB_EVENT_MAX_BYTES. Returns false if it is
 * too large, memory is short, or too many events are not written down yet. */
bool job_claim_event(struct job_claim *claim, const char *type, const char *data);

/* End the job; the claim is gone then. `result` is a JSON object, malloc'd and taken over, or
 * NULL. */
void job_claim_succeed(struct job_claim *claim, char *result);
void job_claim_fail(struct job_claim *claim, const struct error *why);
/* Reports that the job has stopped as asked, and that everything worth keeping is on the disk. */
void job_claim_stopped(struct job_claim *claim);
/* Ends the claim because the process is about to end without a wish: writes nothing down, and the
 * job begins again at the next start, as after a kill. */
void job_claim_abandon(struct job_claim *claim);

#endif
