/* Tests what ranks agree on: an error of one is everybody's at the same exchange, with its number;
 * a stop that one was asked for is known to all; the busy are waited for; a text that differs is
 * named. The ranks are threads here, whose cluster only gathers. */
#include "train/ranks/agreement.h"

#include "tests/check.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define WORLD 3

static pthread_barrier_t all_here;
static const void *told[WORLD];

static bool gather(struct cluster *c, const void *own, size_t bytes, void *all, struct error *err) {
    (void)err;
    told[c->place.rank] = own;
    pthread_barrier_wait(&all_here);
    for (int rank = 0; rank < WORLD; rank++)
        memcpy((char *)all + (size_t)rank * bytes, told[rank], bytes);
    pthread_barrier_wait(&all_here); /* then `own` may go */
    return true;
}

static const struct cluster_ops ops = { .name = "threads", .gather = gather };

struct rank {
    struct cluster cluster;
    struct agreement *agreement;
    void (*part)(struct rank *r);
};

static void *run_part(void *user) {
    struct rank *r = user;
    struct error err = { 0 };
    CHECK(agreement_create(&r->cluster, &r->agreement, &err), "%s", err.message);
    r->part(r);
    agreement_destroy(r->agreement);
    return NULL;
}

/* Runs a part of a job on all ranks. */
static void on_all_ranks(void (*part)(struct rank *r)) {
    struct rank ranks[WORLD];
    pthread_t threads[WORLD];
    pthread_barrier_init(&all_here, NULL, WORLD);
    for (int i = 0; i < WORLD; i++) {
        ranks[i] = (struct rank){ .cluster = { &ops, { .rank = i, .world = WORLD } },
            .part = part };
        CHECK(pthread_create(&threads[i], NULL, run_part, &ranks[i]) == 0, "no thread");
    }
    for (int i = 0; i < WORLD; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&all_here);
}

/* Rank 2 fails before the second exchange, rank 1 in it: the lowest counts. */
static void errors(struct rank *r) {
    const int own = r->cluster.place.rank;
    struct error err = { 0 };
    CHECK(agreement_meet(r->agreement, true, &err), "%s", err.message);
    if (own == 2) {
        error_field(&err, "rank_of", "2", "no failure");
        agreement_fail(r->agreement, &err);
    } else {
        const bool ok = own != 1 || error_set(&err, ERROR_NO_SPACE, "the disk of 1 is full");
        CHECK(!agreement_exchange(r->agreement, ok, 0.5, 2, &err), "rank %d goes on", own);
    }
    CHECK(err.code == ERROR_NO_SPACE &&
              strcmp(err.message,
                  own == 1 ? "the disk of 1 is full" : "rank 1: the disk of 1 is full") == 0,
        "rank %d: %s", own, err.message);
    /* All know: nobody exchanges anything any more, and the error stays. */
    agreement_fail(r->agreement, &err);
    CHECK(err.code == ERROR_NO_SPACE && !agreement_is_lost(r->agreement), "%s", err.message);
}

static void stops(struct rank *r) {
    const int own = r->cluster.place.rank;
    struct error err = { 0 };
    if (own == 1)
        agreement_ask_to_stop(r->agreement);
    CHECK(!agreement_stops(r->agreement), "rank %d stops before the others know", own);
    CHECK(agreement_exchange(r->agreement, true, own + 0.25, own, &err), "%s", err.message);
    CHECK(agreement_stops(r->agreement), "rank %d does not stop", own);
    for (int rank = 0; rank < WORLD; rank++)
        CHECK(
            r->agreement->words[rank].loss == rank + 0.25 && r->agreement->words[rank].rows == rank,
            "rank %d: loss %g of rank %d", own, r->agreement->words[rank].loss, rank);
}

/* Rank r works r pieces of a second. */
static void waits(struct rank *r) {
    const int own = r->cluster.place.rank;
    struct error err = { 0 };
    bool over = false;
    int pieces = 0;
    while (!over) {
        if (pieces < own)
            nanosleep(&(struct timespec){ .tv_sec = 1 }, NULL);
        pieces += pieces < own;
        CHECK(agreement_wait(r->agreement, pieces < own, &over, &err), "%s", err.message);
        CHECK(!over || pieces == own, "rank %d: over after %d pieces", own, pieces);
    }
    CHECK(agreement_meet(r->agreement, true, &err), "%s", err.message);
}

static void compares(struct rank *r) {
    struct error err = { 0 };
    CHECK(agreement_compare(r->agreement, "the tree", "oak", &err), "%s", err.message);
    CHECK(!agreement_compare(
              r->agreement, "the tree", r->cluster.place.rank == 2 ? "elm" : "oak", &err),
        "they are alike");
    CHECK(err.code == ERROR_CONFLICT &&
              strstr(err.message, "ranks differ in the tree: rank 0 on ") &&
              strstr(err.message, "oak") && strstr(err.message, "elm"),
        "%s", err.message);
    agreement_fail(r->agreement, &err);
    CHECK(err.code == ERROR_CONFLICT, "%s", err.message);
}

/* All ranks refuse a text that is too long, so nobody is lost. */
static void refuses_long_texts(struct rank *r) {
    struct error err = { 0 };
    char *text = malloc(CLUSTER_COMPARE_BYTES + 2);
    memset(text, 'x', CLUSTER_COMPARE_BYTES + 1);
    text[CLUSTER_COMPARE_BYTES + 1] = 0;
    CHECK(!agreement_compare(
              r->agreement, "the list", r->cluster.place.rank == 1 ? text : "short", &err),
        "compared");
    CHECK(err.code == ERROR_TOO_LARGE && !agreement_is_lost(r->agreement), "rank %d: lost: %s",
        r->cluster.place.rank, err.message);
    free(text);
}

static bool lose(struct cluster *c, const void *own, size_t bytes, void *all, struct error *err) {
    (void)own;
    (void)bytes;
    (void)all;
    return error_set(err, ERROR_TIMEOUT, "rank %d: the others are gone", c->place.rank);
}

/* A rank that fails while the others are gone logs its own error, and ends by the other. */
static void a_failing_rank_that_is_lost_keeps_its_error(void) {
    static const struct cluster_ops losing = { .name = "losing", .gather = lose };
    struct cluster c = { &losing, { .rank = 0, .world = WORLD } };
    struct agreement *a;
    struct error err = { 0 };
    char log[400] = "";
    FILE *to = tmpfile();
    const int before = dup(STDERR_FILENO);
    CHECK(to && agreement_create(&c, &a, &err), "%s", err.message);
    dup2(fileno(to), STDERR_FILENO);
    error_set(&err, ERROR_NO_SPACE, "the disk is full");
    agreement_fail(a, &err);
    dup2(before, STDERR_FILENO);
    close(before);
    rewind(to);
    (void)!fread(log, 1, sizeof(log) - 1, to);
    fclose(to);
    printf("%s", log);
    CHECK_CONTAINS(log, "the disk is full");
    CHECK(err.code == ERROR_TIMEOUT && agreement_is_lost(a), "%s", err.message);
    agreement_destroy(a);
}

static void one_process_agrees_with_itself(void) {
    struct error err = { 0 };
    bool over;
    CHECK(agreement_world(NULL) == 1 && agreement_is_first(NULL) && !agreement_stops(NULL) &&
              agreement_meet(NULL, true, &err) && agreement_compare(NULL, "x", "y", &err),
        "%s", err.message);
    CHECK(agreement_wait(NULL, true, &over, &err) && !over, "busy");
    CHECK(agreement_wait(NULL, false, &over, &err) && over, "done");
    error_set(&err, ERROR_IO, "own");
    CHECK(!agreement_meet(NULL, false, &err) && strcmp(err.message, "own") == 0, "%s", err.message);
    agreement_fail(NULL, &err);
    CHECK(strcmp(err.message, "own") == 0, "%s", err.message);
}

int main(void) {
    on_all_ranks(errors);
    on_all_ranks(stops);
    on_all_ranks(waits);
    on_all_ranks(compares);
    on_all_ranks(refuses_long_texts);
    a_failing_rank_that_is_lost_keeps_its_error();
    one_process_agrees_with_itself();
    return check_done();
}
