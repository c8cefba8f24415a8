/* Which onlookers are dismissed when too many wait for news of jobs. */
#include "server/later/job_watch.h"

#include "tests/check.h"

#include <pthread.h>

#define MAX 8

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

static struct onlooker {
    struct watcher watcher; /* must be the first member */
    bool told, over;        /* told: to leave; over: not polled any more */
    bool leaves;            /* when it is polled for the first time */
    int looks;
} onlookers[64];

static bool look(struct watcher *watcher, bool stopping, int64_t *due_ms) {
    struct onlooker *o = (struct onlooker *)watcher;
    pthread_mutex_lock(&mutex);
    o->told |= stopping;
    o->looks++;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
    *due_ms = 0;
    return !stopping && !o->leaves;
}

static void release(struct watcher *watcher) {
    pthread_mutex_lock(&mutex);
    ((struct onlooker *)watcher)->over = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&mutex);
}

/* Adds an onlooker. The first letter of `who` is its job ('-': the stream of a drawing), the second
 * its caller, the third the caller's key. */
static void add_one(struct job_watch *watch, int index, const char *who, bool leaves) {
    struct error err = { 0 };
    struct onlooker *o = &onlookers[index];
    *o = (struct onlooker){ .watcher = { .look = look, .release = release }, .leaves = leaves };
    if (who[0] != '-')
        snprintf(o->watcher.id, sizeof(o->watcher.id), "job %c", who[0]);
    snprintf(o->watcher.caller.text, sizeof(o->watcher.caller.text), "key %c", who[1]);
    snprintf(o->watcher.viewer.name, sizeof(o->watcher.viewer.name), "%s", who + 2);
    CHECK(job_watch_add(watch, &o->watcher, &err), "%d, %s: %s", index, who, err.message);
}

static void add(struct job_watch *watch, int index, const char *who) {
    add_one(watch, index, who, false);
}

/* Waits until the onlookers marked x have left. The others must not have been told to leave. */
static void check_gone(int count, const char *gone) {
    char found[65] = "";
    for (int i = 0; i < count; i++) {
        pthread_mutex_lock(&mutex);
        while (gone[i] == 'x' && !onlookers[i].over)
            pthread_cond_wait(&changed, &mutex);
        found[i] = onlookers[i].told ? 'x' : '.';
        pthread_mutex_unlock(&mutex);
    }
    const char *seen = found;
    CHECK_STRING(seen, gone);
}

static void the_oldest_of_those_with_most_give_way(void) {
    static const struct {
        const char *who[12], *gone;
    } rows[] = {
        /* One caller follows many jobs: its own oldest onlooker leaves, before all places are
         * taken. */
        { { "aA", "bA", "cA", "dA", "eA" }, "x...." },
        /* Many callers follow one job: its oldest onlookers leave. */
        { { "zZ", "aA", "aB", "aC", "aD", "aE", "aF" }, ".xx...." },
        /* Onlookers of one job with different keys (k and l) are counted separately. */
        { { "aAk", "aBk", "aCk", "aDk", "aEl", "aFk" }, "x....." },
        /* All places are taken: the oldest onlooker of the job with the most onlookers (b) leaves,
         * whatever job the new one follows. */
        { { "aA", "aB", "bA", "bB", "bC", "cC", "dD", "dE", "eF" }, "..x......" },
        /* All places are taken: the oldest onlooker of the caller with the most onlookers (A)
         * leaves. */
        { { "aB", "bA", "cA", "dA", "eC", "eB", "fD", "gE", "hF" }, ".x......." },
        /* The streams of drawings take no place and are not dismissed. */
        { { "-A", "-A", "-A", "-A", "-A", "-A", "-A", "-A", "-A", "aA", "-A" }, "..........." },
        { { "-A", "aA", "bA", "-A", "cA", "dA", "-A", "eA", "-A" }, ".x......." },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err = { 0 };
        struct job_watch *watch;
        int count = 0;
        CHECK(job_watch_create(NULL, MAX, &watch, &err), "%s", err.message);
        for (; rows[i].who[count]; count++)
            add(watch, count, rows[i].who[count]);
        check_gone(count, rows[i].gone);
        printf("row %zu: %d came, gave way: %s\n", i, count, rows[i].gone);
        job_watch_destroy(watch);
        for (int k = 0; k < count; k++)
            CHECK(onlookers[k].over, "onlooker %d is not ended with the watch", k);
    }
}

/* An onlooker that has left or was dismissed frees its place. */
static void places_come_back(void) {
    struct error err = { 0 };
    struct job_watch *watch;
    CHECK(job_watch_create(NULL, 2, &watch, &err), "%s", err.message);
    static const char *const who[] = { "aA", "bB", "cC", "dD", "eE" };
    for (int i = 0; i < 5; i++)
        add(watch, i, who[i]);
    check_gone(5, "xxx..");
    job_watch_destroy(watch);
}

/* After the end of its job an onlooker leaves by itself, and then it no longer takes a place. */
static void who_has_left_has_no_place(void) {
    struct error err = { 0 };
    struct job_watch *watch;
    CHECK(job_watch_create(NULL, 2, &watch, &err), "%s", err.message);
    static const char *const who[] = { "aA", "bB", "cC", "dD", "eE", "fF" };
    for (int i = 0; i < 6; i++) {
        add_one(watch, i, who[i], i < 4);
        pthread_mutex_lock(&mutex);
        while (i < 4 && !onlookers[i].over)
            pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
    }
    /* The newest is polled first, so by its second poll all others were polled once. */
    for (int looks = 1; looks <= 2; looks++) {
        pthread_mutex_lock(&mutex);
        while (onlookers[5].looks < looks)
            pthread_cond_wait(&changed, &mutex);
        pthread_mutex_unlock(&mutex);
        job_watch_poke(watch, &onlookers[5].watcher);
    }
    check_gone(6, "......");
    printf("four have left: two have room for two, and nobody gave way\n");
    job_watch_destroy(watch);
}

int main(void) {
    the_oldest_of_those_with_most_give_way();
    places_come_back();
    who_has_left_has_no_place();
    return check_done();
}
