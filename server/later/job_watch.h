/* The watch: one thread that calls its watchers when a job has changed or at a time that they have
 * set. Watchers are of three kinds: onlookers, which are the clients of GET /jobs/{id}?wait=S and
 * of a job's events; streams of generations, which need heartbeats; and timed work of the server
 * itself. The thread looks at a watcher when its job has changed or its time has come. So neither
 * the queue nor an HTTP thread waits for a client or for the disk.
 *
 * There may be `max` onlookers, and half as many for one job or one caller. A new onlooker is
 * always accepted. If there are too many, another onlooker is dropped. If the new one's job or
 * caller has its half already, the oldest onlooker of this job or caller is dropped. Otherwise the
 * oldest onlooker of the job or caller with the most onlookers is dropped. Onlookers of the same
 * job with different keys count as onlookers of different jobs, so that a key that may not see the
 * job cannot displace them. Streams of generations do not count, because the engine's queue limits
 * their number. */
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
    char id[64];          /* the job's id; "": not an onlooker */
    struct caller caller; /* only used for onlookers */
    struct viewer viewer; /* the same caller, as a viewer of the job */
    /* Called on the watch thread; do not change it after job_watch_add. Returns true if the watcher
     * is to stay watched; if `stopping`, it must return false. *due_ms is the latest time of the
     * next call, in ms of base/monotonic.h; 0: no limit. */
    bool (*look)(struct watcher *watcher, bool stopping, int64_t *due_ms);
    struct deferred
        *deferred; /* set by deferred_watch (server/later/deferred.h), as `release` is */
    /* Called once, after the last look. NULL: the watcher is not a client, and not counted as
     * one. */
    void (*release)(struct watcher *watcher);

    /* The rest is used by the watch only. */
    bool changed, gives_way;
    int64_t due_ms;
    struct watcher *next;
};

/* `queue` may be NULL; `max` is at least 1. */
bool job_watch_create(struct queue *queue, int max, struct job_watch **out, struct error *err)
    __attribute__((warn_unused_result));
/* Ends all watchers and accepts no more. Returns at once. */
void job_watch_stop(struct job_watch *watch);
/* Stops the watch and waits for its thread. NULL is fine. */
void job_watch_destroy(struct job_watch *watch);

/* Adds a watcher, and looks at it at once. After job_watch_stop it returns ERROR_UNAVAILABLE, and
 * `release` is not called. */
bool job_watch_add(struct job_watch *watch, struct watcher *watcher, struct error *err)
    __attribute__((warn_unused_result));
/* Makes the watch look soon at a watcher. Call it only while the watcher is watched. */
void job_watch_poke(struct job_watch *watch, struct watcher *watcher);

#endif
