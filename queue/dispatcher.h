/* The dispatcher sits between the queue and the runners of its jobs. One thread claims a job when
 * its runner is free, and writes down what the runner reports. So a runner never waits for the
 * disk. A write that fails because the disk is full is repeated until it succeeds.
 *
 * A runner works on up to `at_once` jobs at a time. The dispatcher calls the runner's functions,
 * which must not wait. The functions that take a claim never wait either, and any thread may call
 * them.
 */
#ifndef QUEUE_DISPATCHER_H
#define QUEUE_DISPATCHER_H

#include "queue/queue.h"

#define DISPATCHER_JOBS_MAX 16

struct dispatcher;
struct job_claim;

/* Code that executes the jobs of one type. Any thread may call its functions. */
struct job_runner {
    const char *type;
    int at_once; /* most jobs at a time; 0: one */
    /* Checks that a well-formed request can be executed here: everything that it names exists, and
     * there is memory for it. May read files. */
    bool (*check)(void *user, const char *request, struct error *err);
    /* Begins work on a job. The work ends with a call of job_claim_succeed, _fail, _stopped or
     * _abandon. Must not wait. */
    void (*start)(void *user, struct job_claim *claim);
    /* Called when job_claim_wish of a claim may have changed. Must not wait. May call no function
     * of this header except job_claim_wish. */
    void (*wake)(void *user);
    void *user;
};

/* `queue` is borrowed. */
bool dispatcher_create(struct queue *queue, struct dispatcher **out, struct error *err)
    __attribute__((warn_unused_result));
/* Copies the runner, which may get jobs from now on. At most one runner per type, and at most
 * DISPATCHER_JOBS_MAX jobs at once for all runners together. */
bool dispatcher_add(struct dispatcher *dispatcher, const struct job_runner *runner,
    struct error *err) __attribute__((warn_unused_result));
/* Returns the runner for jobs of this type; NULL if there is none. It lives as long as the
 * dispatcher. */
const struct job_runner *dispatcher_find(struct dispatcher *dispatcher, const char *type);
/* Stops claiming jobs, and asks the runners to give their jobs back. */
void dispatcher_stop(struct dispatcher *dispatcher);
/* Call after dispatcher_stop. Waits until all jobs of a type are given back and written. Their
 * runner is not called after that. */
void dispatcher_wait(struct dispatcher *dispatcher, const char *type);
/* Calls dispatcher_stop, and waits until every job is given back and written. The runners must
 * still exist. NULL is fine. */
void dispatcher_destroy(struct dispatcher *dispatcher);

/* Returns the job as it was when it was claimed. */
const struct job *job_claim_job(const struct job_claim *claim);
enum job_wish job_claim_wish(const struct job_claim *claim);
/* Reports that from now until its next report, the job only waits for other work. If the wait is
 * long and the daemon ends during it, the job gets no strike (JOB_STRIKES_MAX). */
void job_claim_waits(struct job_claim *claim);
/* Reports progress. Of two reports in quick succession, the first may be dropped. */
void job_claim_report(struct job_claim *claim, const struct job_report *report);
/* Adds an event: a word, and a JSON object of at most JOB_EVENT_MAX_BYTES. Returns false if the
 * object is too large, there is no memory, or too many events are still unwritten. */
bool job_claim_event(struct job_claim *claim, const char *type, const char *data);

/* End the job. The claim must not be used after this. `result` is a JSON object, malloc'd and taken
 * over, or NULL. */
void job_claim_succeed(struct job_claim *claim, char *result);
void job_claim_fail(struct job_claim *claim, const struct error *why);
/* Reports that the job has stopped as its wish asked, and that all progress worth keeping is on the
 * disk. */
void job_claim_stopped(struct job_claim *claim);
/* Gives the claim up because the process ends although the job was not asked to stop. Writes
 * nothing: the job begins again at the daemon's next start, as after a kill. */
void job_claim_abandon(struct job_claim *claim);

#endif
