/* Worker threads run all work given to them, and callers take turns. */
#include "server/later/workers.h"

#include "tests/check.h"

#include <pthread.h>
#include <stdatomic.h>

#define JOBS 100

static struct job {
    struct work work;
    int number;
} jobs[JOBS];

static int order[JOBS];
static atomic_int done;
static pthread_barrier_t together;

static struct workers *create(int threads) {
    struct error err = { 0 };
    struct workers *workers = NULL;
    CHECK(workers_create("workers", threads, WORKERS_PLAIN, &workers, &err), "%s", err.message);
    return workers;
}

static void give_all(struct workers *workers, int count, void (*run)(struct work *work)) {
    atomic_store(&done, 0);
    for (int i = 0; i < count; i++) {
        jobs[i] = (struct job){ .work.run = run, .number = i };
        workers_give(workers, &jobs[i].work);
    }
}

static void note(struct work *work) {
    order[atomic_fetch_add(&done, 1)] = ((struct job *)work)->number;
}

static void one_thread_keeps_their_order(void) {
    struct workers *workers = create(1);
    give_all(workers, JOBS, note);
    workers_destroy(workers); /* returns after all work is done */
    CHECK(done == JOBS, "%d of %d", done, JOBS);
    for (int i = 0; i < done; i++)
        CHECK(order[i] == i, "%d at %d", order[i], i);
    printf("compared: %d jobs in their order\n", done);
}

static void wait_together(struct work *work) {
    (void)work;
    pthread_barrier_wait(&together);
}

/* Work waits behind another piece: six of caller 1, then two of caller 2, then one of caller 3. The
 * callers take turns. */
static void callers_take_turns(void) {
    static const uint64_t callers[] = { 1, 1, 1, 1, 1, 1, 2, 2, 3 };
    static const int expected[] = { 0, 6, 8, 1, 7, 2, 3, 4, 5 };
    const int count = sizeof(callers) / sizeof(callers[0]);
    struct work first = { .run = wait_together };
    struct workers *workers = create(1);
    pthread_barrier_init(&together, NULL, 2);
    workers_give(workers, &first);
    atomic_store(&done, 0);
    for (int i = 0; i < count; i++) {
        jobs[i] = (struct job){ .work = { .run = note, .caller = callers[i] }, .number = i };
        workers_give(workers, &jobs[i].work);
    }
    pthread_barrier_wait(&together);
    workers_destroy(workers);
    pthread_barrier_destroy(&together);
    printf("begun:");
    for (int i = 0; i < done; i++) {
        printf(" %d", order[i]);
        CHECK(order[i] == expected[i], "%d, not %d, at %d", order[i], expected[i], i);
    }
    printf("\n");
    CHECK(done == count, "%d of %d", done, count);
}

static void meet(struct work *work) {
    (void)work;
    pthread_barrier_wait(&together);
    atomic_fetch_add(&done, 1);
}

/* Three pieces of work that wait for each other can end only if each has a thread of its own. */
static void threads_work_beside_each_other(void) {
    struct workers *workers = create(3);
    pthread_barrier_init(&together, NULL, 3);
    give_all(workers, 9, meet);
    workers_destroy(workers);
    CHECK(done == 9, "%d", done);
    pthread_barrier_destroy(&together);
}

static struct workers *again;

static void give_again(struct work *work) {
    struct job *job = (struct job *)work;
    if (atomic_fetch_add(&done, 1) + 1 < JOBS)
        workers_give(again, &job->work);
}

/* The thread that has run a piece of work may give it to the workers again. */
static void work_may_be_given_by_a_worker(void) {
    struct workers *workers = create(2);
    again = workers;
    give_all(workers, 1, give_again);
    while (atomic_load(&done) < JOBS)
        continue;
    workers_destroy(workers);
    CHECK(done == JOBS, "%d", done);
}

int main(void) {
    one_thread_keeps_their_order();
    callers_take_turns();
    threads_work_beside_each_other();
    work_may_be_given_by_a_worker();
    workers_destroy(NULL);
    return check_done();
}
