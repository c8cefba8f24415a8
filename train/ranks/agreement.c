#include "train/ranks/agreement.h"

#include "base/log.h"
#include "base/monotonic.h"

#include <stdlib.h>

/* How long a busy rank works before it exchanges words again. */
#define EXCHANGE_EVERY_S 2

bool agreement_create(struct cluster *cluster, struct agreement **out, struct error *err) {
    struct agreement *a = calloc(1, sizeof(*a));
    *out = NULL;
    if (a)
        a->words = calloc((size_t)cluster->place.world, sizeof(*a->words));
    if (!a || !a->words) {
        free(a);
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d ranks", cluster->place.world);
    }
    a->cluster = cluster;
    *out = a;
    return true;
}

void agreement_destroy(struct agreement *a) {
    if (!a)
        return;
    free(a->words);
    free(a);
}

int agreement_rank(const struct agreement *a) {
    return a ? a->cluster->place.rank : 0;
}

int agreement_world(const struct agreement *a) {
    return a ? a->cluster->place.world : 1;
}

int agreement_host_ranks(const struct agreement *a) {
    return a ? a->cluster->place.local_world : 1;
}

bool agreement_is_first(const struct agreement *a) {
    return agreement_rank(a) == 0;
}

bool agreement_lose(struct agreement *a) {
    a->lost = true;
    return false;
}

bool agreement_is_lost(const struct agreement *a) {
    return a && a->lost;
}

void agreement_ask_to_stop(struct agreement *a) {
    a->asked = true;
}

bool agreement_stops(const struct agreement *a) {
    return a && a->stops;
}

/* Takes the error of the lowest rank that has one. Returns whether none has. */
static bool none_failed(struct agreement *a, struct error *err) {
    const int own = a->cluster->place.rank, world = a->cluster->place.world;
    int rank = 0;
    while (rank < world && a->words[rank].error.code == ERROR_NONE)
        rank++;
    if (rank == world)
        return true;
    a->failed = true;
    if (err)
        *err = a->words[rank].error;
    if (rank != own)
        error_prefix(err, "rank %d", rank);
    return false;
}

static bool exchange(struct agreement *a, bool ok, struct agreement_word *word, struct error *err) {
    const struct cluster *c = a->cluster;
    if (a->failed || a->lost)
        return false; /* *err says why since then */
    word->asked = a->asked;
    if (!ok) {
        word->error = *err;
        if (err->code == ERROR_NONE)
            error_set(&word->error, ERROR_INTERNAL, "a failure without an error");
    }
    struct error why = { 0 };
    if (!c->ops->gather(a->cluster, word, sizeof(*word), a->words, &why)) {
        /* *err becomes the error of the exchange, by which the process ends. */
        if (!ok)
            log_error("this rank had failed before: %s", word->error.message);
        if (err)
            *err = why;
        return agreement_lose(a);
    }
    a->exchanged_s = monotonic_seconds();
    for (int rank = 0; rank < c->place.world; rank++)
        a->stops = a->stops || a->words[rank].asked;
    return none_failed(a, err);
}

bool agreement_meet(struct agreement *a, bool ok, struct error *err) {
    struct agreement_word word = { 0 };
    return a ? exchange(a, ok, &word, err) : ok;
}

void agreement_fail(struct agreement *a, struct error *err) {
    (void)!agreement_meet(a, false, err);
}

bool agreement_wait(struct agreement *a, bool busy, bool *over, struct error *err) {
    struct agreement_word word = { .busy = busy };
    *over = !busy;
    if (!a || (busy && monotonic_seconds() - a->exchanged_s < EXCHANGE_EVERY_S))
        return true;
    if (!exchange(a, true, &word, err))
        return false;
    for (int rank = 0; rank < a->cluster->place.world; rank++)
        *over = *over && !a->words[rank].busy;
    return true;
}

bool agreement_exchange(
    struct agreement *a, bool ok, double loss, int64_t rows, struct error *err) {
    struct agreement_word word = { .loss = loss, .rows = rows };
    return exchange(a, ok, &word, err);
}

bool agreement_compare(
    struct agreement *a, const char *label, const char *text, struct error *err) {
    struct error why = { 0 };
    if (!a)
        return true;
    if (!agreement_meet(a, true, err))
        return false;
    if (cluster_compare(a->cluster, label, text, &why))
        return true;
    if (err)
        *err = why;
    /* These two every rank has found. */
    a->failed = why.code == ERROR_CONFLICT || why.code == ERROR_TOO_LARGE;
    a->lost = !a->failed;
    return false;
}

void agreement_begin_alone(struct agreement *a) {
    if (a)
        cluster_busy(a->cluster, true);
}

void agreement_end_alone(struct agreement *a) {
    if (a)
        cluster_busy(a->cluster, false);
}

bool agreement_take_first(struct agreement *a, void *data, size_t bytes, struct error *err) {
    return !a || a->cluster->ops->broadcast(a->cluster, data, bytes, 0, err) || agreement_lose(a);
}
