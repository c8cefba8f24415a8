/* One rank of a test. usage: cluster_test KIND TIMEOUT_S SCENE [ARGUMENT...]
 *
 * exact: all calls, against the plain fold that they stand for; any KIND, any number of ranks.
 * huge: the same of arrays of more than 2^31 bytes.
 * The other scenes go wrong on purpose; ranks.py starts them and looks at how they end:
 * late CALL RANK, idle CALL, differ RANK, long-text RANK, busy SECONDS, busy-forever, no-room,
 * unlike-sizes, mixed CALL. */
#include "cluster/cluster.h"
#include "cluster/plan.h"
#include "tests/check.h"

#include <unistd.h>

static struct cluster *c;

/* Numbers of very different sizes, so that the order of additions shows. */
static float value(int64_t i, int rank, int salt) {
    uint32_t x = (uint32_t)(i * 2654435761u) ^ (uint32_t)(rank * 40503 + salt * 977 + 17);
    x ^= x >> 13;
    x *= 0x5bd1e995u;
    x ^= x >> 15;
    return ((float)(x & 0xffffff) / 8388608.0f - 1.0f) * (float)(1 << ((x >> 24) & 7));
}

/* xorshift64: the same on every rank. */
static uint64_t state = 88172645463325252u;
static int64_t below(int64_t n) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int64_t)(state % (uint64_t)n);
}

static void must(bool ok, const struct error *err) {
    if (!ok)
        cluster_fail(c, err);
}

static void gathers(void) {
    static const size_t sizes[] = { 0, 1, 7, 4096, 100003 };
    const int world = c->place.world, rank = c->place.rank;
    struct error err = { 0 };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const size_t bytes = sizes[i];
        unsigned char *own = malloc(bytes + 1), *all = malloc(bytes * (size_t)world + 1);
        for (size_t k = 0; k < bytes; k++)
            own[k] = (unsigned char)(k * 31 + (size_t)rank * 7 + i);
        memset(all, 0xaa, bytes * (size_t)world + 1);
        must(c->ops->gather(c, own, bytes, all, &err), &err);
        size_t wrong = all[bytes * (size_t)world] != 0xaa;
        for (size_t k = 0; k < bytes * (size_t)world; k++)
            wrong += all[k] != (unsigned char)(k % bytes * 31 + k / bytes * 7 + i);
        CHECK(wrong == 0, "gather of %zu bytes: %zu wrong", bytes, wrong);
        for (int from = 0; from < world; from++) {
            for (size_t k = 0; k < bytes; k++)
                own[k] = rank == from ? (unsigned char)(k * 3 + (size_t)from) : 0xbb;
            own[bytes] = 0xaa;
            must(c->ops->broadcast(c, own, bytes, from, &err), &err);
            wrong = own[bytes] != 0xaa;
            for (size_t k = 0; k < bytes; k++)
                wrong += own[k] != (unsigned char)(k * 3 + (size_t)from);
            CHECK(wrong == 0, "broadcast of %zu bytes from %d: %zu wrong", bytes, from, wrong);
        }
        free(own);
        free(all);
    }
}

/* Fills cuts: even, all to the first, all to the last, anywhere. */
static void make_cuts(int kind, int64_t count, int64_t *cuts) {
    const int world = c->place.world;
    cuts[0] = 0;
    cuts[world] = count;
    for (int r = 1; r < world; r++)
        if (kind == 0)
            cuts[r] = count * r / world;
        else if (kind == 1)
            cuts[r] = count;
        else if (kind == 2)
            cuts[r] = 0;
        else
            cuts[r] = cuts[r - 1] + below(count - cuts[r - 1] + 1);
}

/* Whoever is not present has NaNs: they show if they are read. Returns the sums compared. */
static int64_t sum_once(struct cluster_window *w, const int64_t *cuts, uint64_t present, int salt) {
    const int rank = c->place.rank;
    const int64_t at = cuts[rank], count = cuts[rank + 1] - at;
    struct error err = { 0 };
    float *onto = malloc(((size_t)count + 1) * sizeof(float));
    for (int64_t i = 0; i < w->count; i++)
        w->floats[i] = present >> rank & 1 ? value(i, rank, salt) : NAN;
    for (int64_t i = 0; i < count; i++)
        onto[i] = value(at + i, 99, salt);
    onto[count] = 1;
    must(c->ops->add_to_owner(c, w, cuts, present, onto, &err), &err);
    for (int64_t i = 0; i < w->count; i++)
        w->floats[i] = NAN; /* allowed now: nobody reads it any more */
    int64_t wrong = onto[count] != 1;
    for (int64_t i = 0; i < count; i++) {
        float sum = value(at + i, 99, salt);
        for (int q = 0; q < c->place.world; q++)
            if (present >> q & 1)
                sum += value(at + i, q, salt);
        wrong += memcmp(&sum, &onto[i], sizeof(sum)) != 0;
    }
    CHECK(wrong == 0, "rank %d: %lld of %lld sums differ, window of %lld, present %llx", rank,
        (long long)wrong, (long long)count, (long long)w->count, (unsigned long long)present);
    free(onto);
    return count;
}

static int64_t share_once(struct cluster_window *w, const int64_t *cuts, int salt) {
    const int rank = c->place.rank;
    struct error err = { 0 };
    int64_t wrong = 0;
    for (int64_t i = 0; i < w->count; i++)
        w->floats[i] = i >= cuts[rank] && i < cuts[rank + 1] ? value(i, rank, salt) : NAN;
    must(c->ops->share(c, w, cuts, &err), &err);
    for (int q = 0; q < c->place.world; q++)
        for (int64_t i = cuts[q]; i < cuts[q + 1]; i++) {
            const float right = value(i, q, salt);
            wrong += memcmp(&right, &w->floats[i], sizeof(right)) != 0;
            w->floats[i] = NAN;
        }
    CHECK(wrong == 0, "rank %d: %lld of %lld shared floats differ", rank, (long long)wrong,
        (long long)w->count);
    return w->count;
}

static void windows(void) {
    static const int64_t counts[] = { 0, 1, 7, 255, 5000, 65537, 300007 };
    const int world = c->place.world;
    const uint64_t full = ~UINT64_C(0) >> (CLUSTER_RANKS_MAX - world);
    const int masks = world <= 6 ? 1 << world : 4; /* all, or some at random */
    int64_t sums = 0, shared = 0, calls = 0;
    for (size_t k = 0; k < sizeof(counts) / sizeof(counts[0]); k++) {
        struct cluster_window w;
        struct error err = { 0 };
        must(c->ops->open_window(c, counts[k], &w, &err), &err);
        bool is_zero = true;
        for (int64_t i = 0; i < w.count; i++)
            is_zero &= w.floats[i] == 0;
        CHECK(w.count == counts[k] && is_zero, "a new window is zero");
        CHECK((uintptr_t)w.floats % 64 == 0, "at %p", (void *)w.floats);
        for (int kind = 0; kind < 6; kind++) {
            int64_t cuts[CLUSTER_RANKS_MAX + 1];
            make_cuts(kind, w.count, cuts);
            for (int mask = 0; mask < masks; mask++) {
                const uint64_t some = (uint64_t)below(INT64_MAX) ^ (uint64_t)below(INT64_MAX) << 1;
                const uint64_t present = world <= 6 ? (uint64_t)mask : mask ? some & full : full;
                if (w.count < 60000 || present == full || present == (full & 0x5)) {
                    sums += sum_once(&w, cuts, present, (int)calls);
                    shared += share_once(&w, cuts, (int)calls++);
                }
            }
        }
        c->ops->close_window(c, &w);
        CHECK(!w.floats && !w.handle, "a closed window is zeroed");
        c->ops->close_window(c, &w);
    }
    printf("rank %d of %d, %s: %lld sums in %lld calls equal the fold in the order of ranks, %lld "
           "floats shared\n",
        c->place.rank, world, c->ops->name, (long long)sums, (long long)calls, (long long)shared);
}

static void places(void) {
    const struct cluster_place *p = &c->place;
    CHECK(p->rank >= 0 && p->rank < p->world, "rank %d of %d", p->rank, p->world);
    /* All ranks of these tests run on one machine. */
    CHECK(p->local_rank == p->rank && p->local_world == p->world && p->node == 0 && p->nodes == 1,
        "local %d of %d, node %d of %d", p->local_rank, p->local_world, p->node, p->nodes);
}

static void texts(void) {
    struct error err = { 0 };
    char *longest = malloc(CLUSTER_COMPARE_BYTES + 1);
    memset(longest, 'x', CLUSTER_COMPARE_BYTES);
    longest[CLUSTER_COMPARE_BYTES] = 0;
    CHECK(cluster_compare(c, "the level", "avx2", &err), "%s", err.message);
    CHECK(cluster_compare(c, "nothing", "", &err), "%s", err.message);
    CHECK(cluster_compare(c, "the longest", longest, &err), "%s", err.message);
    free(longest);
    cluster_busy(c, true);
    cluster_busy(c, false);
}

static int exact(void) {
    places();
    gathers();
    texts();
    windows();
    return check_done();
}

/* Two windows of more than 2^31 bytes; whole numbers, so that the sums are known at once. */
static int huge(void) {
    const int64_t count = (INT64_C(1) << 29) + 12345;
    const int rank = c->place.rank, world = c->place.world;
    int64_t cuts[CLUSTER_RANKS_MAX + 1], wrong = 0;
    struct cluster_window w;
    struct error err = { 0 };
    must(c->ops->open_window(c, count, &w, &err), &err);
    /* One owner of nearly all: its part has more than 2^31 bytes too. */
    for (int r = 0; r <= world; r++)
        cuts[r] = r < world ? r * 1000 : count;
    const int64_t at = cuts[rank], own = cuts[rank + 1] - at;
    float *onto = calloc((size_t)own + 1, sizeof(float));
    for (int64_t i = 0; i < count; i++)
        w.floats[i] = (float)(i % 4099 * (rank + 1));
    must(c->ops->add_to_owner(c, &w, cuts, ~UINT64_C(0), onto, &err), &err);
    for (int64_t i = 0; i < own; i++)
        wrong += onto[i] != (float)((at + i) % 4099 * (world * (world + 1) / 2));
    CHECK(wrong == 0, "%lld sums differ", (long long)wrong);
    memcpy(w.floats + at, onto, (size_t)own * sizeof(float));
    free(onto);
    must(c->ops->share(c, &w, cuts, &err), &err);
    wrong = 0;
    for (int64_t i = 0; i < count; i++)
        wrong += w.floats[i] != (float)(i % 4099 * (world * (world + 1) / 2));
    CHECK(wrong == 0, "%lld shared floats differ", (long long)wrong);
    c->ops->close_window(c, &w);
    printf("rank %d: %lld bytes summed and shared\n", rank, (long long)count * 4);
    return check_done();
}

/* One of the calls, on a window of its own. */
static bool call(const char *name, struct error *err) {
    char own[64] = "", all[64 * CLUSTER_RANKS_MAX];
    int64_t cuts[CLUSTER_RANKS_MAX + 1];
    static float onto[4096];
    static struct cluster_window w;
    if (strcmp(name, "gather") == 0)
        return c->ops->gather(c, own, sizeof(own), all, err);
    if (strcmp(name, "broadcast") == 0)
        return c->ops->broadcast(c, own, sizeof(own), c->place.world - 1, err);
    if (strcmp(name, "open_window") == 0)
        return c->ops->open_window(c, 4096, &(struct cluster_window){ 0 }, err);
    if (!w.floats && !c->ops->open_window(c, 4096, &w, err))
        return false;
    make_cuts(0, w.count, cuts);
    if (strcmp(name, "share") == 0)
        return c->ops->share(c, &w, cuts, err);
    return c->ops->add_to_owner(c, &w, cuts, ~UINT64_C(0), onto, err);
}

static void say_pid(void) {
    printf("rank %d is process %d\n", c->place.rank, (int)getpid());
    fflush(stdout);
}

/* The rank LATE makes the call once, as all do, but not twice. */
static int late(const char *name, int rank) {
    struct error err = { 0 };
    must(call(name, &err), &err);
    say_pid();
    while (c->place.rank == rank)
        pause();
    while (call(name, &err)) {
    }
    /* What failed once, fails at once. */
    struct error again = { 0 };
    CHECK(!call("gather", &again) && again.code == ERROR_PEER_LOST, "%s", again.message);
    CHECK(err.code == ERROR_TIMEOUT, "%s: %s", error_code_name(err.code), err.message);
    cluster_fail(c, &err);
}

/* All ranks but the last wait for it, until somebody ends one of them. */
static int idle(const char *name) {
    struct error err = { 0 };
    must(call(name, &err), &err);
    say_pid();
    while (c->place.rank == c->place.world - 1)
        pause();
    while (call(name, &err)) {
    }
    cluster_fail(c, &err);
}

static int differ(int rank) {
    struct error err = { 0 };
    char text[2000];
    memset(text, 'a', sizeof(text));
    snprintf(text + 1000, 100, c->place.rank == rank ? "winograd 4" : "winograd 2");
    CHECK(!cluster_compare(c, "the level", c->place.rank == rank ? "amx" : "avx2", &err), "same");
    printf("rank %d got %s: %s\n", c->place.rank, error_code_name(err.code), err.message);
    CHECK(!cluster_compare(c, "the tuner's choices", text, &err), "same");
    printf("rank %d got %s: %s\n", c->place.rank, error_code_name(err.code), err.message);
    return check_done();
}

static int long_text(int rank) {
    struct error err = { 0 };
    const size_t bytes = CLUSTER_COMPARE_BYTES + (c->place.rank == rank);
    char *text = calloc(1, bytes + 1);
    memset(text, 'x', bytes);
    CHECK(!cluster_compare(c, "the list", text, &err) && err.code == ERROR_TOO_LARGE, "%s",
        err.message);
    printf("rank %d got %s: %s\n", c->place.rank, error_code_name(err.code), err.message);
    free(text);
    return check_done();
}

/* Rank 0 works alone for longer than the deadline. */
static int busy(double seconds) {
    struct error err = { 0 };
    if (c->place.rank == 0) {
        cluster_busy(c, true);
        CHECK(!call("gather", &err) && err.code == ERROR_INTERNAL, "a busy rank calls: %s",
            err.message);
        usleep((useconds_t)(seconds * 1e6));
        cluster_busy(c, false);
    }
    must(call("gather", &err), &err);
    return check_done();
}

static int busy_forever(void) {
    struct error err = { 0 };
    must(call("gather", &err), &err);
    say_pid();
    if (c->place.rank == 0)
        cluster_busy(c, true);
    while (c->place.rank == 0)
        pause();
    must(call("gather", &err), &err);
    return check_done();
}

static int no_room(void) {
    struct cluster_window w;
    struct error err = { 0 };
    CHECK(!c->ops->open_window(c, INT64_C(1) << 44, &w, &err) && err.code == ERROR_NO_MEMORY,
        "64 TiB");
    printf("rank %d got %s: %s\n", c->place.rank, error_code_name(err.code), err.message);
    CHECK(!w.floats && !w.handle, "nothing is left");
    must(call("add_to_owner", &err), &err);
    return check_done();
}

static int unlike_sizes(void) {
    struct cluster_window w;
    struct error err = { 0 };
    CHECK(!c->ops->open_window(c, 100 + c->place.rank, &w, &err) && err.code == ERROR_INTERNAL,
        "%s", err.message);
    printf("rank %d got %s: %s\n", c->place.rank, error_code_name(err.code), err.message);
    return check_done();
}

/* Rank 0 makes another call than the others, whose messages have the same size ("open_window"), or
 * the same call with more bytes. It waits before it ends, so that all have their say. */
static int mixed(const char *name) {
    struct error err = { 0 };
    char own[64] = "", all[64 * CLUSTER_RANKS_MAX];
    const bool first = c->place.rank == 0;
    CHECK(
        !(first ? call(name, &err) : c->ops->gather(c, own, 16, all, &err)), "%s went well", name);
    printf("rank %d got %s: %s\n", c->place.rank, error_code_name(err.code), err.message);
    fflush(stdout);
    sleep(2);
    cluster_fail(c, &err);
}

static int play(const char *scene, const char *a, const char *b) {
    return strcmp(scene, "exact") == 0          ? exact()
           : strcmp(scene, "huge") == 0         ? huge()
           : strcmp(scene, "late") == 0         ? late(a, (int)strtol(b, NULL, 10))
           : strcmp(scene, "idle") == 0         ? idle(a)
           : strcmp(scene, "differ") == 0       ? differ((int)strtol(a, NULL, 10))
           : strcmp(scene, "long-text") == 0    ? long_text((int)strtol(a, NULL, 10))
           : strcmp(scene, "busy") == 0         ? busy(strtod(a, NULL))
           : strcmp(scene, "busy-forever") == 0 ? busy_forever()
           : strcmp(scene, "no-room") == 0      ? no_room()
           : strcmp(scene, "unlike-sizes") == 0 ? unlike_sizes()
           : strcmp(scene, "mixed") == 0        ? mixed(a)
                                                : 2;
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    if (argc < 4)
        return 2;
    c = cluster_start(argv[1], strtod(argv[2], NULL), &err);
    if (!c) {
        fprintf(stderr, "cluster_test: %s: %s\n", error_code_name(err.code), err.message);
        return 1;
    }
    const int status = play(argv[3], argc > 4 ? argv[4] : "", argc > 5 ? argv[5] : "");
    c->ops->end(c);
    return status;
}
