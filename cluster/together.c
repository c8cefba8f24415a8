/* What ranks do together or alone by means of an implementation's calls. */
#include "cluster/cluster.h"

#include "base/log.h"
#include "cluster/launcher.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_BYTES 64
/* An excerpt of a text that differs: what stands before the difference, and all in all. */
#define EXCERPT_BEFORE 24
#define EXCERPT_BYTES 160

struct described {
    char host[HOST_BYTES];
    uint64_t bytes; /* of the text */
};

static void own_host(char host[HOST_BYTES]) {
    memset(host, 0, HOST_BYTES);
    if (gethostname(host, HOST_BYTES - 1))
        snprintf(host, HOST_BYTES, "this machine");
}

void cluster_busy(struct cluster *c, bool busy) {
    c->ops->busy(c, busy);
}

/* Writes the part of a text around the byte `at`. */
static void excerpt(const char *text, size_t bytes, size_t at, char out[EXCERPT_BYTES]) {
    const size_t from = bytes < EXCERPT_BYTES - 6 || at < EXCERPT_BEFORE ? 0 : at - EXCERPT_BEFORE;
    const size_t left = bytes - from, most = EXCERPT_BYTES - 7;
    snprintf(out, EXCERPT_BYTES, "%s%.*s%s", from ? "..." : "", (int)(left < most ? left : most),
        text + from, left > most ? "..." : "");
}

static bool differs(const char *label, const struct described *all, const char *texts, size_t room,
    int other, struct error *err) {
    const char *a = texts, *b = texts + (size_t)other * room;
    size_t at = 0;
    while (a[at] == b[at])
        at++;
    char first[EXCERPT_BYTES], second[EXCERPT_BYTES];
    excerpt(a, all[0].bytes, at, first);
    excerpt(b, all[other].bytes, at, second);
    return error_set(err, ERROR_CONFLICT,
        "ranks differ in %s: rank 0 on %s has %s, rank %d on %s has %s", label, all[0].host, first,
        other, all[other].host, second);
}

/* `all` and `texts` have room for all ranks; each text takes `room` bytes. */
static bool compare_texts(struct cluster *c, const char *label, const char *text,
    const struct described *all, size_t room, char *texts, struct error *err) {
    char *own = calloc(1, room);
    if (!own)
        return error_set(err, ERROR_NO_MEMORY, "no memory to compare %s", label);
    memcpy(own, text, strlen(text));
    const bool ok = c->ops->gather(c, own, room, texts, err);
    free(own);
    if (!ok)
        return false;
    for (int q = 1; q < c->place.world; q++)
        if (memcmp(texts, texts + (size_t)q * room, room) != 0)
            return differs(label, all, texts, room, q, err);
    return true;
}

bool cluster_compare(struct cluster *c, const char *label, const char *text, struct error *err) {
    struct described own = { .bytes = strlen(text) }, all[CLUSTER_RANKS_MAX];
    own_host(own.host);
    if (!c->ops->gather(c, &own, sizeof(own), all, err))
        return false;
    size_t longest = 0;
    for (int q = 0; q < c->place.world; q++) {
        if (all[q].bytes > CLUSTER_COMPARE_BYTES)
            return error_set(err, ERROR_TOO_LARGE,
                "%s of rank %d has %llu bytes; at most %d can be compared", label, q,
                (unsigned long long)all[q].bytes, CLUSTER_COMPARE_BYTES);
        longest = all[q].bytes > longest ? all[q].bytes : longest;
    }
    const size_t room = longest + 1;
    char *texts = malloc(room * (size_t)c->place.world);
    if (!texts)
        return error_set(err, ERROR_NO_MEMORY, "no memory to compare %s", label);
    const bool ok = compare_texts(c, label, text, all, room, texts, err);
    free(texts);
    return ok;
}

void cluster_fail(const struct cluster *c, const struct error *err) {
    char host[HOST_BYTES];
    own_host(host);
    struct launcher launcher = { 0 };
    struct cluster_place place = { .world = 1 };
    if (c)
        place = c->place;
    else if (launcher_read(launcher_environment, NULL, &launcher, NULL) && launcher.name)
        place = (struct cluster_place){ .rank = launcher.rank, .world = launcher.world };
    log_error("rank %d of %d on %s: %s; ending with status %d: start the job again", place.rank,
        place.world, host, err->message, CLUSTER_EXIT_AGAIN);
    _exit(CLUSTER_EXIT_AGAIN);
}
