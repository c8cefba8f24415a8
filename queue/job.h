/* One job: what was asked for, how far it is, and how it ended. What it does is its type's
 * business: to the queue, its request, its metrics, its result and its error are JSON texts. */
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
/* False, with *out untouched, for any other word. */
bool job_state_from_name(const char *name, enum job_state *out);
/* Succeeded, failed or cancelled. */
bool job_state_is_end(enum job_state state);

/* What a running job is asked to do as soon as it can; a stronger wish replaces a weaker one. */
enum job_wish {
    JOB_GO_ON = 0,     /* these numbers are stored */
    JOB_GIVE_BACK = 1, /* the daemon stops: go on after its next start; never written down */
    JOB_PAUSE = 2,
    JOB_CANCEL = 3,
};

#define JOB_ID_BYTES 17 /* 16 hexadecimal digits and a NUL */

#define JOB_TYPE_TRAIN "train"

/* Times are milliseconds since 1970, UTC; 0: never. Texts are owned and NULL where there is none. A
 * zeroed one can be finished. */
struct job {
    char id[JOB_ID_BYTES];
    int64_t number; /* rises in the order of acceptance */
    char *type;     /* who works on it: JOB_TYPE_TRAIN, or another */
    int priority;   /* larger ones first */
    char *request;
    char *key, *body; /* of a request that can be repeated: its key, and what it must equal then */
    /* The caller that ordered it, the name of an API key; "": one without a name. */
    char owner[KEY_NAME_MAX_BYTES + 1];
    /* What turns are dealt out by: jobs with the same text share theirs. */
    char caller[JOB_CALLER_MAX_BYTES + 1];

    enum job_state state;
    enum job_wish wish; /* of a running one */
    int attempts;       /* how often it was claimed; who works on it is fenced by this number */
    int strikes; /* claims since it last got further than ever, of which none ended in order; but
                    not those that only waited for their turn */
    int64_t created_ms, started_ms, finished_ms;
    /* Time at work until `since`, from when the rest counts while it runs: by monotonic_ms, in the
     * process that has claimed it. */
    int64_t running_ms, since_ms;

    int64_t step, steps; /* 0 of 0: not known yet */
    int64_t furthest;    /* the highest step ever reported */
    double eta_s;        /* below 0: not known */
    char *metrics;       /* an object: loss and the like, of the last step */
    char *result;        /* an object, once it has succeeded */
    char *error;         /* an object, once it has failed */
    int64_t events;      /* the number of its last event */
};

bool job_copy(const struct job *job, struct job *out, struct error *err)
    __attribute__((warn_unused_result));
void job_finish(struct job *job);

/* Something that happened to a job, in the order of its numbers, which begin at 1. */
struct job_event {
    int64_t number, at_ms;
    const char *type; /* "state", "progress", or a word of the job's type */
    const char *data; /* a JSON object on one line */
};

#endif
