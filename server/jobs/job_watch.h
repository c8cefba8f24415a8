/* Who waits for news of a job: clients of GET /jobs/{id}?wait=S and of its events (onlookers); and
 * the streams of generations, for signs of life. One thread for all of them, which looks for each
 * when its job has changed, or when its time has come; so neither the queue nor a thread of the
 * HTTP library ever waits for a client, nor for the disk.
 *
 * Of onlookers there may be `max`, of one job or of one caller half of that. One more is always
 * taken, and another gives way: the oldest of its job or of its caller, where that has its half;
 * else the oldest of the job or the caller that has most. A job is another one for each key, so
 * that nobody gives way to a key that may not see it. The streams of generations do not count: the
 * engine's queue bounds them. */
#ifndef SERVER_JOBS_JOB_WATCH_H
#define SERVER_JOBS_JOB_WATCH_H

#include "base/error.h"
#include "server/access/caller.h"

#include <stdbool.h>
#include <stdint.h>

struct job_watch;
struct queue;

struct watcher {
    char id[64];          /* of the job; "": of none, and it is no onlooker */
    struct caller caller; /* of an onlooker */
    struct viewer viewer; /* the same, who may see the job or not */
    /* Constant once it is watched; from the watch's thread. Says whether it goes on, and if not, it
     * is no longer watched. `stopping`: it must not. *due_ms, by the monotonic clock, is when it
     * wants to be called again at the latest; 0: whenever. */
    bool (*look)(struct watcher *watcher, bool stopping, int64_t *due_ms);
    void (*release)(struct watcher *watcher); /* once, the last that is heard of it */

    /* The watch's. */
    bool changed, gives_way;
    int64_t due_ms;
    struct watcher *next;
};

/* `queue` may be NULL; `max` is 1 or more. */
bool job_watch_create(struct queue *queue, int max, struct job_watch **out, struct error *err)
    __attribute__((warn_unused_result));
/* Ends all, and takes no more. */
void job_watch_stop(struct job_watch *watch);
/* NULL is fine. */
void job_watch_destroy(struct job_watch *watch);

/* Looks for it at once. ERROR_UNAVAILABLE once it stops; then it is not released. */
bool job_watch_add(struct job_watch *watch, struct watcher *watcher, struct error *err)
    __attribute__((warn_unused_result));
/* Looks soon, for one that is still watched. */
void job_watch_poke(struct job_watch *watch, struct watcher *watcher);

#endif
