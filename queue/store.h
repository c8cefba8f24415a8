/* Where the queue keeps its rows (queue/sqlite.c). What a job may become and when is written once,
 * above it, in queue/queue.c.
 *
 * One call at a time. Each call that changes something happens as a whole or not at all, and has
 * reached the disk, where there is one, when it returns true.
 */
#ifndef QUEUE_STORE_H
#define QUEUE_STORE_H

#include "queue/job.h"

#include <stddef.h>

/* Which jobs; zeroed: all of them, oldest first. */
struct job_filter {
    unsigned states;   /* a bit (1u << state) each; 0: any */
    const char *type;  /* NULL: any */
    const char *owner; /* as struct job has it; NULL: any */
    bool newest_first;
    int64_t after; /* the number that the one before the first has; 0: from the beginning */
    int limit;     /* 0: none */
};

struct store;

struct store_ops {
    void (*close)(struct store *store);

    /* A new job, whose `number` it fills in, with its first event. */
    bool (*insert)(
        struct store *store, struct job *job, const struct job_event *event, struct error *err);
    /* All that can change of a job, and, unless NULL, one more event, whose number is job->events.
     * Of its events the last JOB_EVENTS_KEPT are kept. */
    bool (*save)(struct store *store, const struct job *job, const struct job_event *event,
        struct error *err);
    bool (*erase)(struct store *store, int64_t number, struct error *err);

    /* *found says whether *out is one, the caller's to finish. By its id, by the key that its owner
     * gave it among those of its type, or the next queued one of a type: the highest priority; of
     * those one of the caller with the fewest running jobs of that type, or, of several such
     * callers, the one whose last job began longest ago; of that caller's the oldest. */
    bool (*find)(
        struct store *store, const char *id, struct job *out, bool *found, struct error *err);
    bool (*find_key)(struct store *store, const char *owner, const char *type, const char *key,
        struct job *out, bool *found, struct error *err);
    bool (*find_next)(
        struct store *store, const char *type, struct job *out, bool *found, struct error *err);

    /* How many queued jobs of its type find_next would take before this one, if no running job
     * ended meanwhile. */
    bool (*count_before)(struct store *store, const struct job *job, int *out, struct error *err);
    /* Of one type; NULL: of all. */
    bool (*count)(
        struct store *store, const char *type, int counts[JOB_STATE_COUNT], struct error *err);

    /* Shows each to `visit`, which borrows it; false ends it, with the error that it has set. */
    bool (*list)(struct store *store, const struct job_filter *filter,
        bool (*visit)(void *user, const struct job *job, struct error *err), void *user,
        struct error *err);
    bool (*list_events)(struct store *store, int64_t number, int64_t after, int limit,
        bool (*visit)(void *user, const struct job_event *event, struct error *err), void *user,
        struct error *err);
};

/* The first member of each kind of store. */
struct store {
    const struct store_ops *ops;
};

/* A SQLite database in a folder; both are made if they are not there, and locked while it is open.
 * NULL: a database in memory, which touches no file. Errors as queue_open's. */
bool store_open_sqlite(const char *folder, struct store **out, struct error *err)
    __attribute__((warn_unused_result));

#endif
