/* The watch: one thread that serves everything that waits for news of a job. These are onlookers,
 * the clients of GET /jobs/{id}?wait=S and of a job's events; the streams of generations, which
 * need heartbeats; and the server's own work that has its time. The thread looks at a watcher when
 * its job has changed or its time has come. So neither the queue nor an HTTP thread waits for a
 * client or for the disk.
 *
 * There may be `max` onlookers, and half of that for one job or for one caller. A new one is always
 * accepted; if there are too many, another gives way: the oldest of the same job or caller if that
 * has reached its half, else the oldest of the job or caller with the most. Onlookers of the same
 * job with different keys count as different jobs, so that none gives way to a key that may not see
 * the job. Streams of generations do not count: the engine's queue bounds them. */
#ifndef SERVER_LATER_JOB_WATCH_H
#define SERVER_LATER_JOB_WATCH_H

#include "base/error.h"
#include "server/http/caller.h"

#include <stdbool.h>
#include <stdint.h>

struct deferred;
struct job_watch;
struct queue;

struct watcher {
    char id[64];          /* of the job; "": no job, so not an onlooker */
    struct caller caller; /* for onlookers */
    struct viewer viewer; /* the same caller, as a viewer of the job */
    /* Called on the watch thread; do not change it after job_watch_add. Returns true to stay
     * watched. If `stopping`, it must return false. *due_ms is the latest time of the next call, by
     * the monotonic clock; 0: none. */
    bool (*look)(struct watcher *watcher, bool stopping, int64_t *due_ms);
    struct deferred
        *deferred; /* set by deferred_watch (server/later/deferred.h), as `release` is */
    /* Called once, after the last look. NULL: it is no client's, and not counted as one. */
    void (*release)(struct watcher *watcher);

    /* The rest belongs to the watch. */
    bool changed, gives_way;
    int64_t due_ms;
    struct watcher *next;
};

/* `queue` may be NULL; `max` is at least 1. */
bool job_watch_create(struct queue *queue, int max, struct job_watch **out, struct error *err)
    __attribute__((warn_unused_result));
/* Ends all watchers and accepts no more. Returns at once. */
void job_watch_stop(struct job_watch *watch);
/* Stops it and waits for its thread. NULL is fine. */
void job_watch_destroy(struct job_watch *watch);

/* Adds a watcher; the watch looks at it at once. ERROR_UNAVAILABLE after job_watch_stop: then
 * `release` is not called. */
bool job_watch_add(struct job_watch *watch, struct watcher *watcher, struct error *err)
    __attribute__((warn_unused_result));
/* Asks the watch to look soon at a watcher that is still watched. */
void job_watch_poke(struct job_watch *watch, struct watcher *watcher);

#endif
