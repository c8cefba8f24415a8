#include "server/later/workers.h"

#include "base/thread.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static const int niceness[] = { 0, 10, 19 }; /* by kind */

/* The mutex guards the list, `round` and `stopping`. */
struct workers {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct work *first; /* sorted by round, then in the order of arrival */
    uint64_t round;     /* of the work that was begun last */
    bool stopping;
    enum workers_kind kind;
    int count;
    pthread_t threads[];
};

static void *work_on(void *argument) {
    struct workers *workers = argument;
    if (workers->kind != WORKERS_PLAIN) /* for this thread only; may fail without harm */
        (void)setpriority(PRIO_PROCESS, (id_t)gettid(), niceness[workers->kind]);
    pthread_mutex_lock(&workers->mutex);
    for (;;) {
        while (!workers->first && !workers->stopping)
            pthread_cond_wait(&workers->changed, &workers->mutex);
        struct work *work = workers->first;
        if (!work)
            break;
        workers->first = work->next;
        workers->round = work->round;
        pthread_mutex_unlock(&workers->mutex);
        work->run(work);
        pthread_mutex_lock(&workers->mutex);
    }
    pthread_mutex_unlock(&workers->mutex);
    return NULL;
}

bool workers_create(const char *name, int threads, enum workers_kind kind, struct workers **out,
    struct error *err) {
    struct workers *workers = calloc(1, sizeof(*workers) + (size_t)threads * sizeof(pthread_t));
    if (!workers)
        return error_set(err, ERROR_NO_MEMORY, "no memory for worker threads");
    workers->kind = kind;
    pthread_mutex_init(&workers->mutex, NULL);
    pthread_cond_init(&workers->changed, NULL);
    for (; workers->count < threads; workers->count++) {
        const int failed = thread_start(&workers->threads[workers->count], name, work_on, workers);
        if (failed) {
            workers_destroy(workers);
            return error_set_thread(err, failed);
        }
    }
    *out = workers;
    return true;
}

void workers_destroy(struct workers *workers) {
    if (!workers)
        return;
    pthread_mutex_lock(&workers->mutex);
    workers->stopping = true;
    pthread_cond_broadcast(&workers->changed);
    pthread_mutex_unlock(&workers->mutex);
    for (int i = 0; i < workers->count; i++)
        pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->changed);
    pthread_mutex_destroy(&workers->mutex);
    free(workers);
}

/* Call with the mutex held. Work goes into the round after the last one in which its caller has
 * work, but not into a round that has passed. */
static void put_in(struct workers *workers, struct work *work) {
    work->round = workers->round + 1;
    for (const struct work *w = workers->first; w; w = w->next)
        if (w->caller == work->caller)
            work->round = w->round + 1;
    struct work **at = &workers->first;
    while (*at && (*at)->round <= work->round)
        at = &(*at)->next;
    work->next = *at;
    *at = work;
}

void workers_give(struct workers *workers, struct work *work) {
    pthread_mutex_lock(&workers->mutex);
    put_in(workers, work);
    pthread_cond_signal(&workers->changed);
    pthread_mutex_unlock(&workers->mutex);
}
