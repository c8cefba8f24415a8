#include "kernels/team.h"

#include "base/limits.h"
#include "kernels/available.h"

#include <omp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define UNWINDER_STACK_BYTES (256 << 10)

static void *just_exit(void *unused) {
    (void)unused;
    pthread_exit(NULL);
}

/* The first pthread_exit of a process loads the unwinder, and aborts if there is no memory for it.
 * Loads it in a thread with a small stack, before the stacks of a team take the memory. */
static bool load_unwinder(struct error *err) {
    pthread_attr_t small;
    pthread_t thread;
    int failed = pthread_attr_init(&small);
    if (!failed) {
        (void)pthread_attr_setstacksize(&small, UNWINDER_STACK_BYTES);
        failed = pthread_create(&thread, &small, just_exit, NULL);
        pthread_attr_destroy(&small);
    }
    if (!failed)
        pthread_join(thread, NULL);
    return !failed ||
           error_set(err, ERROR_NO_MEMORY, "the system gives no thread: %s", strerror(failed));
}

/* The body of a thread that is only tried. Waits until all of them exist, then ends with
 * pthread_exit, as the threads of a team do. */
static void *wait_for_the_others(void *gate) {
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    pthread_exit(NULL);
}

/* Creates as many threads as the team will have besides this one, with the same stacks, so that all
 * of these exist at once. Then the threads end. */
static bool try_threads(int count, pthread_t *threads, struct error *err) {
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    int made = 0, refused = 0;
    pthread_mutex_lock(&gate);
    while (made < count && !refused) {
        refused = pthread_create(&threads[made], NULL, wait_for_the_others, &gate);
        made += !refused;
    }
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < made; i++)
        pthread_join(threads[i], NULL);
    if (!refused)
        return true;
    struct available left;
    available_read("", &left);
    return error_set(err, ERROR_NO_MEMORY,
        "the system gives %d threads of the %d to compute with: %s; %s; OMP_NUM_THREADS=%d would "
        "ask for fewer",
        made + 1, count + 1, strerror(refused), left.why, made + 1);
}

bool team_start(struct error *err) {
    const int others = omp_get_max_threads() - 1;
    pthread_t *threads = calloc((size_t)others + 1, sizeof(*threads));
    if (!threads)
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d threads", others);
    /* The first check is for what the trial itself loads, the second for what the team takes
     * besides stacks. */
    const bool ok = available_headroom(TEAM_HEADROOM_BYTES, "starting threads", err) &&
                    (others == 0 || load_unwinder(err)) && try_threads(others, threads, err) &&
                    available_headroom(TEAM_HEADROOM_BYTES, "starting threads", err);
    free(threads);
    if (!ok)
        return false;
    int started = 0;
#pragma omp parallel reduction(+ : started)
    started++;
    return started > 0;
}

int team_leave(void) {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    return threads;
}

void team_rejoin(int threads) {
    omp_set_num_threads(threads);
}
