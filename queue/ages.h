/* How long ago jobs were accepted. Time counts by the monotonic clock, so a change of the system's
 * clock makes no job older or younger. Only for jobs that another process accepted, the time until
 * this process opened the queue is known from the system's clock alone. One thread at a time. */
#ifndef QUEUE_AGES_H
#define QUEUE_AGES_H

#include "queue/job.h"

#include <stddef.h>

struct job_ages {
    int64_t opened_ms, opened_system_ms; /* when the queue was opened, by both clocks */
    /* Owned: the jobs that this process has accepted, by rising number. */
    struct job_accepted {
        int64_t number, at_ms;
    } * items;
    size_t count;
};

/* `system_ms`: the system's clock, in the form of job->created_ms. */
void job_ages_init(struct job_ages *ages, int64_t system_ms);
void job_ages_finish(struct job_ages *ages);

/* Makes room for one job, so that the next job_ages_add cannot fail. */
bool job_ages_room(struct job_ages *ages, struct error *err) __attribute__((warn_unused_result));
/* Adds a job that was accepted just now. Its number is higher than all before. */
void job_ages_add(struct job_ages *ages, int64_t number);
/* Forgets a job that was deleted. */
void job_ages_remove(struct job_ages *ages, int64_t number);

/* Returns the time since the job was accepted, in ms. */
int64_t job_ages_get_ms(const struct job_ages *ages, const struct job *job);

#endif
