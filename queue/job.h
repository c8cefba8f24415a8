/* A job: its request, its progress, and its end. The queue does not know what a job does. It
 * stores request, metrics, result and error as JSON texts; the runner of the job's type
 * understands them. */
#ifndef QUEUE_JOB_H
#define QUEUE_JOB_H

#include "base/error.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

/* The states; their names in the API are "queued", "running", ... */
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
/* Returns false and leaves *out unchanged for any other word. */
bool job_state_from_name(const char *name, enum job_state *out);
/* Whether the state is succeeded, failed or cancelled. */
bool job_state_is_end(enum job_state state);

/* What a running job has been asked to do as soon as possible. A stronger wish (a higher number)
 * replaces a weaker one. */
enum job_wish {
    JOB_GO_ON = 0,     /* these numbers are stored in the database */
    JOB_GIVE_BACK = 1, /* the daemon stops: continue after its next start; never stored */
    JOB_PAUSE = 2,
    JOB_CANCEL = 3,
};

#define JOB_ID_BYTES 17 /* 16 hexadecimal digits and a NUL */

#define JOB_TYPE_TRAIN "train"

/* Times are in milliseconds since 1970, UTC; 0: never. Texts are owned, or NULL. A zeroed job can
 * be finished. */
struct job {
    char id[JOB_ID_BYTES];
    int64_t number; /* rises in the order of acceptance */
    char *type;     /* selects the runner: JOB_TYPE_TRAIN, or another */
    int priority;   /* higher first */
    char *request;
    char *key, *body; /* of a repeatable request: its key, and the body of any repetition */
    /* Name of the API key that ordered the job; "": none. */
    char owner[KEY_NAME_MAX_BYTES + 1];
    /* The caller for taking turns: all jobs with the same text share one caller's turns. */
    char caller[JOB_CALLER_MAX_BYTES + 1];

    enum job_state state;
    enum job_wish wish; /* only of a running job */
    int attempts;       /* number of claims so far; reports with another number are refused */
    int strikes; /* consecutive claims that ended badly without new progress; claims that only
                    waited do not count */
    int64_t created_ms, started_ms, finished_ms;
    /* running_ms is the working time up to since_ms; while the job runs, the time since then is
     * added later. since_ms is monotonic_ms in the process that has claimed the job. */
    int64_t running_ms, since_ms;

    int64_t step, steps; /* 0 of 0: unknown yet */
    int64_t furthest;    /* the highest step ever reported */
    double eta_s;        /* negative: unknown */
    char *metrics;       /* JSON object: loss etc. at the last step */
    char *result;        /* JSON object, after success */
    char *error;         /* JSON object, after failure */
    int64_t events;      /* number of its last event */
};

bool job_copy(const struct job *job, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
void job_finish(struct job *job);

/* An event of a job. Numbers begin at 1 and rise in the order of the events. */
struct job_event {
    int64_t number, at_ms;
    const char *type; /* "state", "progress", or a word of the job's type */
    const char *data; /* a JSON object on one line */
};

#endif
