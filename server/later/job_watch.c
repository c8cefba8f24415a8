#include "server/later/job_watch.h"

#include "base/condition.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "base/thread.h"
#include "queue/queue.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The mutex guards the list, and in each watcher the members that belong to the watch. A thread may
 * lock it while it holds the queue's lock or a watcher's own lock. The mutex is not held during
 * look(). */
struct job_watch {
    struct queue *queue; /* borrowed; may be NULL */
    struct queue_listener listener;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct watcher *first;
    int clients;   /* watchers with `release`, which are clients */
    int onlookers; /* not counting those to be dropped */
    int max;       /* maximum number of onlookers */
    bool stopping;
};

/* --- Dropping onlookers --- */

static bool is_onlooker(const struct watcher *w) {
    return w->id[0] && !w->gives_way;
}

static bool has_job_of(const struct watcher *a, const struct watcher *b) {
    return strcmp(a->id, b->id) == 0 && strcmp(a->viewer.name, b->viewer.name) == 0;
}

static bool has_caller_of(const struct watcher *a, const struct watcher *b) {
    return caller_equals(&a->caller, &b->caller);
}

typedef bool is_alike(const struct watcher *a, const struct watcher *b);

/* Counts the onlookers that are like `one`. *oldest is set to the oldest of them, or left unchanged
 * if there are none. New watchers are put first, so the oldest is the last in the list. */
static int count_alike(const struct job_watch *watch, const struct watcher *one, is_alike *alike,
    struct watcher **oldest) {
    int count = 0;
    for (struct watcher *w = watch->first; w; w = w->next)
        if (is_onlooker(w) && alike(w, one)) {
            count++;
            *oldest = w;
        }
    return count;
}

/* Finds the job or the caller with the most onlookers. Returns its oldest onlooker. */
static struct watcher *find_most(const struct job_watch *watch) {
    static is_alike *const kinds[] = { has_job_of, has_caller_of };
    struct watcher *found = NULL;
    int most = 0;
    for (const struct watcher *w = watch->first; w; w = w->next)
        for (int i = 0; i < 2 && is_onlooker(w); i++) {
            struct watcher *oldest = NULL;
            const int count = count_alike(watch, w, kinds[i], &oldest);
            if (count >= most) { /* of equals the last in the list, the oldest */
                most = count;
                found = oldest;
            }
        }
    return found;
}

/* Drops an onlooker if there is no room for the new one. Call with the lock held. */
static void make_way(struct job_watch *watch, const struct watcher *newcomer) {
    const int share = watch->max > 1 ? watch->max / 2 : 1;
    struct watcher *found = NULL;
    if (count_alike(watch, newcomer, has_job_of, &found) < share &&
        count_alike(watch, newcomer, has_caller_of, &found) < share)
        found = watch->onlookers < watch->max ? NULL : find_most(watch);
    if (!found)
        return;
    found->gives_way = found->changed = true;
    watch->onlookers--;
}

/* --- Watching --- */

static void on_change(void *user, const struct job *job, bool deleted) {
    struct job_watch *watch = user;
    (void)deleted;
    pthread_mutex_lock(&watch->mutex);
    for (struct watcher *w = watch->first; w; w = w->next)
        if (strcmp(w->id, job->id) == 0) {
            w->changed = true;
            pthread_cond_signal(&watch->changed);
        }
    pthread_mutex_unlock(&watch->mutex);
}

static void count_clients(struct job_watch *watch, const struct watcher *one, int change) {
    if (one->release)
        metric_set(METRIC_job_watchers, watch->clients += change);
}

/* Calls look() of each watcher that has changed or is due, and unlinks the watchers that are done.
 * Call with the lock held; it is released during each call. Only this thread unlinks watchers.
 * Returns when the next watcher is due, in ms of base/monotonic.h: 0 is at once, INT64_MAX is
 * never. */
static int64_t look_at_all(struct job_watch *watch) {
    int64_t next_ms = INT64_MAX;
    for (struct watcher **at = &watch->first; *at;) {
        struct watcher *w = *at;
        bool goes_on = true;
        if (w->changed || watch->stopping || (w->due_ms && monotonic_ms() >= w->due_ms)) {
            int64_t due_ms = 0;
            const bool stopping = watch->stopping || w->gives_way;
            w->changed = false;
            pthread_mutex_unlock(&watch->mutex);
            goes_on = w->look(w, stopping, &due_ms);
            pthread_mutex_lock(&watch->mutex);
            w->due_ms = due_ms;
            while (*at != w) /* new watchers were put in front */
                at = &(*at)->next;
        }
        if (!goes_on) {
            *at = w->next;
            watch->onlookers -= is_onlooker(w);
            count_clients(watch, w, -1);
            pthread_mutex_unlock(&watch->mutex);
            if (w->release)
                w->release(w);
            pthread_mutex_lock(&watch->mutex);
            at = &watch->first;
            continue;
        }
        if (w->changed)
            next_ms = 0;
        else if (w->due_ms && w->due_ms < next_ms)
            next_ms = w->due_ms;
        at = &w->next;
    }
    return next_ms;
}

static bool has_changes(const struct job_watch *watch) {
    for (const struct watcher *w = watch->first; w; w = w->next)
        if (w->changed)
            return true;
    return false;
}

static void *run(void *user) {
    struct job_watch *watch = user;
    pthread_mutex_lock(&watch->mutex);
    while (!watch->stopping || watch->first) {
        const int64_t next_ms = look_at_all(watch);
        if (has_changes(watch) || (watch->stopping && watch->first))
            continue;
        if (watch->stopping)
            break;
        (void)condition_wait_until(&watch->changed, &watch->mutex, next_ms);
    }
    pthread_mutex_unlock(&watch->mutex);
    return NULL;
}

bool job_watch_create(struct queue *queue, int max, struct job_watch **out, struct error *err) {
    struct job_watch *watch = calloc(1, sizeof(*watch));
    if (!watch)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the watch of jobs");
    watch->queue = queue;
    watch->max = max;
    watch->listener = (struct queue_listener){ .changed = on_change, .user = watch };
    pthread_mutex_init(&watch->mutex, NULL);
    condition_init(&watch->changed);
    metric_set(METRIC_job_watchers, 0);
    const int failed = thread_start(&watch->thread, "job watch", run, watch);
    if (failed) {
        pthread_cond_destroy(&watch->changed);
        pthread_mutex_destroy(&watch->mutex);
        free(watch);
        return error_set_thread(err, failed);
    }
    if (queue)
        queue_listen(queue, &watch->listener);
    *out = watch;
    return true;
}

void job_watch_stop(struct job_watch *watch) {
    pthread_mutex_lock(&watch->mutex);
    watch->stopping = true;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
}

void job_watch_destroy(struct job_watch *watch) {
    if (!watch)
        return;
    if (watch->queue)
        queue_unlisten(watch->queue, &watch->listener);
    job_watch_stop(watch);
    pthread_join(watch->thread, NULL);
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->mutex);
    free(watch);
}

bool job_watch_add(struct job_watch *watch, struct watcher *watcher, struct error *err) {
    pthread_mutex_lock(&watch->mutex);
    const bool stopping = watch->stopping;
    if (!stopping) {
        if (is_onlooker(watcher)) {
            make_way(watch, watcher);
            watch->onlookers++;
        }
        watcher->changed = true;
        watcher->next = watch->first;
        watch->first = watcher;
        count_clients(watch, watcher, 1);
        pthread_cond_signal(&watch->changed);
    }
    pthread_mutex_unlock(&watch->mutex);
    return !stopping || error_set(err, ERROR_UNAVAILABLE, "the server is stopping");
}

void job_watch_poke(struct job_watch *watch, struct watcher *watcher) {
    pthread_mutex_lock(&watch->mutex);
    watcher->changed = true;
    pthread_cond_signal(&watch->changed);
    pthread_mutex_unlock(&watch->mutex);
}
