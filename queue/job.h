/* A job: what was ordered, its progress, and its end. What it does is its type's concern: to the
 * queue, its request, metrics, result and error are JSON texts. */
#ifndef QUEUE_JOB_H
#define QUEUE_JOB_H

#include "base/error.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* The words are those of the API: "queued", "running", ... */
enum job_state {
    JOB_QUEUED,
    JOB_RUNNING,
    JOB_PAUSED,
    JOB_SUCCEEDED,
    JOB_FAILED,
    JOB_CANCELLED,
    JOB_STATE_COUNT
};
const char *job_state_name(enum job_state state);
/* Returns false, with *out untouched, for any other word. */
bool job_state_from_name(const char *name, enum job_state *out);
/* Succeeded, failed or cancelled. */
bool job_state_is_end(enum job_state state);

/* What a running job is asked to do as soon as possible. A stronger wish (a higher number) replaces
 * a weaker one. */
enum job_wish {
    JOB_GO_ON = 0,     /* the numbers are stored */
    JOB_GIVE_BACK = 1, /* the daemon stops: continue after its next start; never written down */
    JOB_PAUSE = 2,
    JOB_CANCEL = 3,
};

#define JOB_ID_BYTES 17 /* 16 hexadecimal digits and a NUL */

#define JOB_TYPE_TRAIN "train"

/* Times are in milliseconds since 1970, UTC; 0: never. Texts are owned, NULL if there is none. A
 * zeroed job can be finished. */
struct job {
    char id[JOB_ID_BYTES];
    int64_t number; /* increases in order of acceptance */
    char *type;     /* selects the runner: JOB_TYPE_TRAIN, or another */
    int priority;   /* higher first */
    char *request;
    char *key, *body; /* for a repeatable request: its key, and the body a repetition must equal */
    /* The name of the API key that ordered it; "": none. */
    char owner[KEY_NAME_MAX_BYTES + 1];
    /* Decides whose turn it is: jobs with the same text take turns as one caller. */
    char caller[JOB_CALLER_MAX_BYTES + 1];

    enum job_state state;
    enum job_wish wish; /* of a running job */
    int attempts;       /* claims so far; reports of older attempts are refused by this number */
    int strikes; /* consecutive claims that ended badly without new progress; claims that only
                    waited do not count */
    int64_t created_ms, started_ms, finished_ms;
    /* Working time up to since_ms; while it runs, the time after that is added. since_ms is by
     * monotonic_ms, in the process that has claimed the job. */
    int64_t running_ms, since_ms;

    int64_t step, steps; /* 0 of 0: not known yet */
    int64_t furthest;    /* the highest step ever reported */
    double eta_s;        /* negative: not known */
    char *metrics;       /* an object: the loss and the like at the last step */
    char *result;        /* an object, after success */
    char *error;         /* an object, after failure */
    int64_t events;      /* the number of its last event */
};

bool job_copy(const struct job *job, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
void job_finish(struct job *job);

/* An event of a job. Numbers begin at 1 and give the order. */
struct job_event {
    int64_t number, at_ms;
    const char *type; /* "state", "progress", or a word of the job's type */
    const char *data; /* a JSON object on one line */
};

#endif
