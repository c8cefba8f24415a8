/* The queue's storage (queue/sqlite.c). The rules for what a job may become, and when, are not here
 * but in queue/queue.c, which uses the store.
 *
 * One call at a time. Each call that changes something happens as a whole or not at all, and has
 * reached the disk, if there is one, when it returns true.
 */
#ifndef QUEUE_STORE_H
#define QUEUE_STORE_H

#include "queue/job.h"

#include <stddef.h>

/* Selects jobs by an object of texts in their bodies, at the path `at`, such as "$.metadata". A job
 * without a body, or with something else there, has an empty object. */
struct job_body_filter {
    const char *at;
    const char *has; /* a JSON object of texts: all of these must be in the job's; NULL: any */
    bool is_empty;   /* only jobs whose object is empty */
};

/* Selects jobs. Zeroed: all jobs, oldest first. */
struct job_filter {
    unsigned states;   /* bits (1u << state); 0: any state */
    const char *type;  /* NULL: any */
    const char *owner; /* see struct job; NULL: any */
    struct job_body_filter body;
    bool newest_first;
    int64_t after; /* number of the job before the first one; 0: from the beginning */
    int limit;     /* 0: no limit */
};

struct store;

struct store_ops {
    void (*close)(struct store *store);

    /* Adds a new job with its first event, and fills in its `number`. */
    bool (*insert)(
        struct store *store, struct job *job, const struct job_event *event, struct error *err);
    /* Saves all members of a job that can change. If `event` is not NULL, also saves it; its number
     * is job->events. Keeps the last JOB_EVENTS_KEPT events of each job. */
    bool (*save)(struct store *store, const struct job *job, const struct job_event *event,
        struct error *err);
    bool (*erase)(struct store *store, int64_t number, struct error *err);

    /* Find a job. *found: there is one, and the caller finishes *out. find_key searches the owner's
     * jobs of a type for the key. find_next returns the queued job of a type that must run next. It
     * takes the jobs of the highest priority. Among these it takes the caller with the fewest
     * running jobs of the type; among equal callers, the one whose last job began longest ago; and
     * of that caller the oldest job. */
    bool (*find)(
        struct store *store, const char *id, struct job *out, bool *found, struct error *err);
    bool (*find_key)(struct store *store, const char *owner, const char *type, const char *key,
        struct job *out, bool *found, struct error *err);
    bool (*find_next)(
        struct store *store, const char *type, struct job *out, bool *found, struct error *err);

    /* Counts the queued jobs of the same type that find_next would return before this job if no
     * running job ended meanwhile. */
    bool (*count_before)(struct store *store, const struct job *job, int *out, struct error *err);
    /* Counts jobs of one type by state; NULL: of all types. */
    bool (*count)(
        struct store *store, const char *type, int counts[JOB_STATE_COUNT], struct error *err);

    /* Pass each item to `visit`, which borrows it. To stop, `visit` sets an error and returns
     * false. */
    bool (*list)(struct store *store, const struct job_filter *filter,
        bool (*visit)(void *user, const struct job *job, struct error *err), void *user,
        struct error *err);
    bool (*list_events)(struct store *store, int64_t number, int64_t after, int limit,
        bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
        struct error *err);
};

/* Must be the first member of every kind of store. */
struct store {
    const struct store_ops *ops;
};

/* Opens a SQLite database in a folder. Both are created if needed, and locked while the store is
 * open. `folder` NULL: a database in memory, which uses no file. Errors as in queue_open. */
bool store_open_sqlite(const char *folder, struct store **out, struct error *err)
    __attribute__((warn_unused_result));

#endif
