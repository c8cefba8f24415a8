/* Ranks of an MPI library: the module cluster-mpi.so.
 *
 * Ranks on one machine form a group that shares memory: their windows lie in it, and the owner of
 * a part reads the others' numbers where they are. That is ten times as fast as messages. Between
 * groups, streams carry the bytes.
 *
 * MPI is initialised for calls from one thread at a time (MPI_THREAD_SERIALIZED). There are two
 * threads: the caller's, and one that sends beats while the caller is busy and therefore makes no
 * calls. `lock` orders them. That needs neither MPI_THREAD_MULTIPLE, which some builds of MPI lack
 * and all pay for, nor anything beside MPI that ranks on several machines would have to reach. */
#include "cluster/module.h"

#include "base/thread.h"
#include "cluster/streams.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define MESSAGE_BYTES (32 << 20)
#define MESSAGE_BYTES_LEAST 4096
#define MESSAGE_BYTES_MOST (1 << 30)
#define ALIGNMENT 64      /* bytes; of windows */
#define BLOCK_FLOATS 4096 /* what is added at once stays in the first-level cache */

const char cluster_mpi_version[] = LATENTD_VERSION;

/* Ranks that share memory. */
struct group {
    int count, ranks[CLUSTER_RANKS_MAX]; /* ascending */
};

struct mpi_cluster {
    struct cluster base; /* first */
    struct streams streams;
    MPI_Comm group_comm;                    /* of the group of this rank */
    int group_of[CLUSTER_RANKS_MAX];        /* of each rank: its group's lowest rank */
    struct group groups[CLUSTER_RANKS_MAX]; /* by lowest rank; others are empty */
    const struct group *group;              /* of this rank */
    float *staging;                         /* owned; what streams bring before it is added */
    int64_t staged_floats;                  /* a piece of one rank */

    pthread_t beater;
    pthread_mutex_t lock; /* of the four below, and of MPI while is_busy */
    pthread_cond_t changed;
    bool is_busy, is_ending, has_beater;
};

/* What the ranks tell each other at the start. */
struct introduction {
    char host[64];
    int32_t machine, group; /* the lowest rank of each */
    int64_t shared_ranks, message_bytes;
};

struct mpi_window {
    MPI_Win win; /* MPI_WIN_NULL: no shared memory */
    const float *of[CLUSTER_RANKS_MAX];
};

static struct mpi_cluster *mpi_of(struct cluster *c) {
    return (struct mpi_cluster *)c;
}

static bool begin(struct mpi_cluster *m, const char *call, struct error *err) {
    if (m->is_busy)
        return error_set(
            err, ERROR_INTERNAL, "%s: called while this rank says that it is busy", call);
    return streams_begin(&m->streams, call, err);
}

/* ---- small things: gather, broadcast ---- */

static bool gather_as(struct mpi_cluster *m, const char *call, enum stream_tag tag, const void *own,
    size_t bytes, void *all, struct error *err) {
    struct streams *s = &m->streams;
    if (!begin(m, call, err))
        return false;
    for (int i = 1; i < s->world; i++) {
        const int to = (s->rank + i) % s->world, from = (s->rank - i + s->world) % s->world;
        streams_send(s, to, tag, own, (int64_t)bytes);
        streams_receive(s, from, tag, (char *)all + (size_t)from * bytes, (int64_t)bytes);
    }
    if (bytes)
        memmove((char *)all + (size_t)s->rank * bytes, own, bytes);
    return streams_wait(s, err);
}

static bool gather(struct cluster *c, const void *own, size_t bytes, void *all, struct error *err) {
    return gather_as(mpi_of(c), "gather", STREAM_GATHER, own, bytes, all, err);
}

static bool broadcast(struct cluster *c, void *data, size_t bytes, int from, struct error *err) {
    struct mpi_cluster *m = mpi_of(c);
    struct streams *s = &m->streams;
    if (!begin(m, "broadcast", err))
        return false;
    if (s->rank != from)
        streams_receive(s, from, STREAM_BROADCAST, data, (int64_t)bytes);
    else
        for (int i = 1; i < s->world; i++)
            streams_send(s, (from + i) % s->world, STREAM_BROADCAST, data, (int64_t)bytes);
    return streams_wait(s, err);
}

/* ---- windows ---- */

/* MPI's own collective calls know no deadline. So all ranks meet before them; afterwards a rank
 * can only be late if it dies, and then mpirun ends the others. */
static bool meet(struct mpi_cluster *m, const char *call, enum stream_tag tag, struct error *err) {
    char nothing[1] = "";
    return gather_as(m, call, tag, nothing, 0, nothing, err);
}

/* The first multiple of ALIGNMENT. Shared memory begins at a page's start in each process, so that
 * all get the same place. */
static float *aligned(void *address) {
    const uintptr_t at = (uintptr_t)address;
    return (float *)(void *)((char *)address + (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT);
}

static bool window_alone(int64_t count, struct cluster_window *out, struct error *err) {
    const size_t bytes = ((size_t)count * sizeof(float) / ALIGNMENT + 1) * ALIGNMENT;
    out->floats = aligned_alloc(ALIGNMENT, bytes);
    if (!out->floats)
        return error_set(
            err, ERROR_NO_MEMORY, "no memory for a window of %lld floats", (long long)count);
    memset(out->floats, 0, bytes);
    return true;
}

static bool window_shared(struct mpi_cluster *m, int64_t count, struct mpi_window *w,
    struct cluster_window *out, struct error *err) {
    const MPI_Aint bytes = (MPI_Aint)count * (MPI_Aint)sizeof(float) + ALIGNMENT;
    void *own = NULL;
    int result = MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, m->group_comm, &own, &w->win);
    if (result != MPI_SUCCESS) {
        char text[MPI_MAX_ERROR_STRING] = "";
        int length;
        (void)MPI_Error_string(result, text, &length);
        w->win = MPI_WIN_NULL;
        return error_set(err, ERROR_NO_MEMORY,
            "no shared memory for a window of %lld bytes on %s: MPI: %s", (long long)bytes,
            m->streams.hosts[m->streams.rank], text);
    }
    result = MPI_Win_set_errhandler(w->win, MPI_ERRORS_RETURN);
    result = result ? result : MPI_Win_lock_all(0, w->win);
    for (int i = 0; result == MPI_SUCCESS && i < m->group->count; i++) {
        MPI_Aint size;
        int unit;
        void *floats;
        result = MPI_Win_shared_query(w->win, i, &size, &unit, &floats);
        w->of[m->group->ranks[i]] = aligned(floats);
    }
    out->floats = aligned(own);
    if (result == MPI_SUCCESS)
        memset(own, 0, (size_t)bytes);
    return streams_check(&m->streams, result, "share memory", err);
}

/* Open MPI keeps shared memory in files of this folder. If it is full, the library may wait for
 * ever on some ranks, while others get an error. */
static bool shared_memory_fits(struct mpi_cluster *m, int64_t count, struct error *err) {
    const char *given = getenv("OMPI_MCA_osc_sm_backing_directory");
    const char *folder = given ? given : "/dev/shm";
    struct statvfs room;
    const double bytes = (double)count * sizeof(float) * m->group->count;
    if (m->group->count == 1 || statvfs(folder, &room) != 0)
        return true;
    const double left = (double)room.f_bavail * (double)room.f_frsize;
    return bytes < left || error_set(err, ERROR_NO_MEMORY,
                               "windows of %.0f bytes on %s do not fit into %s, which has %.0f "
                               "bytes left; " CLUSTER_SHARED_RANKS "=1 does without shared memory",
                               bytes, m->streams.hosts[m->streams.rank], folder, left);
}

/* Memory for two pieces of every other rank, if some do not share memory with this one. */
static bool make_staging(struct mpi_cluster *m, struct error *err) {
    if (m->staging || m->group->count == m->streams.world)
        return true;
    m->staged_floats = m->streams.piece_bytes / m->streams.world / ALIGNMENT * ALIGNMENT /
                       (int64_t)sizeof(float);
    const size_t floats = 2 * (size_t)m->staged_floats * (size_t)(m->streams.world - 1);
    m->staging = aligned_alloc(ALIGNMENT, floats * sizeof(float));
    return m->staging || error_set(err, ERROR_NO_MEMORY, "no memory to receive %zu floats", floats);
}

static void free_window(struct mpi_cluster *m, struct cluster_window *window) {
    struct mpi_window *w = window->handle;
    if (w && w->win != MPI_WIN_NULL && !m->streams.is_broken) {
        (void)MPI_Win_unlock_all(w->win);
        (void)MPI_Win_free(&w->win);
    } else if (w && w->win == MPI_WIN_NULL) {
        free(window->floats);
    }
    free(w);
    *window = (struct cluster_window){ 0 };
}

/* Whether all ranks have their window, of one size. */
static bool all_have(
    struct mpi_cluster *m, const struct cluster_window *window, bool ok, struct error *err) {
    struct {
        int64_t count, failed;
    } own = { window->count, !ok }, all[CLUSTER_RANKS_MAX];
    struct error other;
    if (!gather_as(m, "open_window", STREAM_OPEN, &own, sizeof(own), all, ok ? err : &other))
        return false;
    for (int q = 0; q < m->streams.world; q++) {
        if (all[q].count != own.count)
            return error_set(err, ERROR_INTERNAL,
                "a window of %lld floats here, of %lld on rank %d", (long long)own.count,
                (long long)all[q].count, q);
        if (all[q].failed && ok)
            return error_set(err, ERROR_NO_MEMORY,
                "rank %d on %s has no memory for a window of %lld floats", q, m->streams.hosts[q],
                (long long)own.count);
        if (all[q].failed)
            return false;
    }
    return true;
}

static bool open_window(
    struct cluster *c, int64_t count, struct cluster_window *out, struct error *err) {
    struct mpi_cluster *m = mpi_of(c);
    struct mpi_window *w = calloc(1, sizeof(*w));
    *out = (struct cluster_window){ .count = count, .handle = w };
    if (w)
        w->win = MPI_WIN_NULL;
    bool ok = w ? shared_memory_fits(m, count, err) && make_staging(m, err)
                : error_set(err, ERROR_NO_MEMORY, "no memory for a window");
    if (!all_have(m, out, ok, err)) {
        free_window(m, out);
        return false;
    }
    ok = m->group->count > 1 ? window_shared(m, count, w, out, err) : window_alone(count, out, err);
    if (all_have(m, out, ok, err))
        return true;
    free_window(m, out);
    return false;
}

static void close_window(struct cluster *c, struct cluster_window *window) {
    struct mpi_cluster *m = mpi_of(c);
    if (window->handle && meet(m, "close_window", STREAM_CLOSE, NULL))
        free_window(m, window);
    *window = (struct cluster_window){ 0 };
}

/* Makes what this rank has written visible to its group, and the reverse. */
static bool window_sync(
    struct mpi_cluster *m, const struct cluster_window *window, struct error *err) {
    const struct mpi_window *w = window->handle;
    return w->win == MPI_WIN_NULL ||
           streams_check(&m->streams, MPI_Win_sync(w->win), "share memory", err);
}

/* Adds to the list: tell each rank of the group, and wait to be told. */
static void tell_group(struct mpi_cluster *m, enum stream_tag tag) {
    for (int i = 0; i < m->group->count; i++)
        if (m->group->ranks[i] != m->streams.rank) {
            streams_send(&m->streams, m->group->ranks[i], tag, NULL, 0);
            streams_receive(&m->streams, m->group->ranks[i], tag, NULL, 0);
        }
}

/* The last part of a call on windows: waits until the group has read this rank's window. */
static bool leave(struct mpi_cluster *m, const char *call, const struct cluster_window *window,
    struct error *err) {
    if (!window_sync(m, window, err) || !streams_begin(&m->streams, call, err))
        return false;
    tell_group(m, STREAM_LEAVE);
    return streams_wait(&m->streams, err);
}

/* ---- sums ---- */

/* onto[i] += from[0][i]; onto[i] += from[1][i]; ... in blocks that stay in the cache. */
static void add_in_order(
    float *restrict onto, const float *const *from, int count, int64_t floats) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < floats; block += BLOCK_FLOATS) {
        const int64_t end = block + BLOCK_FLOATS < floats ? block + BLOCK_FLOATS : floats;
        for (int q = 0; q < count; q++) {
            const float *restrict x = from[q];
            for (int64_t i = block; i < end; i++)
                onto[i] += x[i];
        }
    }
}

static bool is_there(uint64_t present, int rank) {
    return present >> rank & 1;
}

/* Lists the streams of add_to_owner. `incoming[q]` is the stream of rank q's numbers, or NULL. */
static void list_sums(struct mpi_cluster *m, const struct cluster_window *window,
    const int64_t *cuts, uint64_t present, struct stream **incoming) {
    struct streams *s = &m->streams;
    const int64_t own = cuts[s->rank + 1] - cuts[s->rank];
    const int64_t piece = m->staged_floats * (int64_t)sizeof(float);
    int remote = 0;
    for (int i = 1; i < s->world; i++) {
        const int to = (s->rank + i) % s->world, from = (s->rank - i + s->world) % s->world;
        const int64_t part = cuts[to + 1] - cuts[to];
        if (m->group_of[to] != m->group_of[s->rank] && is_there(present, s->rank) && part)
            stream_cut(streams_send(s, to, STREAM_ADD, window->floats + cuts[to],
                           part * (int64_t)sizeof(float)),
                piece);
        if (m->group_of[from] != m->group_of[s->rank] && is_there(present, from) && own) {
            incoming[from] = streams_receive(s, from, STREAM_ADD,
                m->staging + 2 * m->staged_floats * remote++, own * (int64_t)sizeof(float));
            stream_cut(incoming[from], piece);
            incoming[from]->is_ring = true;
        }
    }
}

/* Waits for round `round` of all incoming streams, while outgoing ones need nothing yet. */
static bool wait_for_round(struct mpi_cluster *m, int64_t round, struct error *err) {
    for (int i = 0; i < m->streams.count; i++) {
        struct stream *stream = &m->streams.list[i];
        if (stream->is_ring) {
            stream->allowed = round + 2 < stream->pieces ? round + 2 : stream->pieces;
            stream->needed = round + 1;
        } else {
            stream->needed = stream->tag == STREAM_ARRIVE ? stream->pieces : 0;
        }
    }
    return streams_wait(&m->streams, err);
}

static bool add_to_owner(struct cluster *c, const struct cluster_window *window,
    const int64_t *cuts, uint64_t present, float *onto, struct error *err) {
    struct mpi_cluster *m = mpi_of(c);
    struct streams *s = &m->streams;
    const struct mpi_window *w = window->handle;
    struct stream *incoming[CLUSTER_RANKS_MAX] = { 0 };
    const int64_t own = cuts[s->rank + 1] - cuts[s->rank];
    if (!begin(m, "add_to_owner", err) || !window_sync(m, window, err))
        return false;
    tell_group(m, STREAM_ARRIVE);
    list_sums(m, window, cuts, present, incoming);
    const int64_t step = m->group->count < s->world ? m->staged_floats : own;
    for (int64_t round = 0, at = 0; at < own; round++, at += step) {
        const float *from[CLUSTER_RANKS_MAX];
        int count = 0;
        if (!wait_for_round(m, round, err) || (round == 0 && !window_sync(m, window, err)))
            return false;
        for (int q = 0; q < s->world; q++)
            if (!is_there(present, q))
                continue;
            else if (incoming[q])
                from[count++] = (const float *)(const void *)incoming[q]->data +
                                round % 2 * m->staged_floats;
            else
                from[count++] = (q == s->rank ? window->floats : w->of[q]) + cuts[s->rank] + at;
        add_in_order(onto + at, from, count, own - at < step ? own - at : step);
    }
    for (int i = 0; i < s->count; i++)
        s->list[i].needed = s->list[i].pieces;
    return streams_wait(s, err) && leave(m, "the end of add_to_owner", window, err);
}

/* ---- shares ---- */

/* Which rank of a group has rank q's part in its window before the group copies it: q itself, or
 * one of the group that receives it, so that each part comes to a machine once. */
static int holder(const struct mpi_cluster *m, const struct group *group, int q) {
    return m->group_of[q] == m->group_of[group->ranks[0]] ? q : group->ranks[q % group->count];
}

static void list_shares(
    struct mpi_cluster *m, const struct cluster_window *window, const int64_t *cuts) {
    struct streams *s = &m->streams;
    const int64_t own = cuts[s->rank + 1] - cuts[s->rank];
    for (int g = 0; g < s->world; g++)
        if (m->groups[g].count && &m->groups[g] != m->group && own)
            streams_send(s, holder(m, &m->groups[g], s->rank), STREAM_SHARE,
                window->floats + cuts[s->rank], own * (int64_t)sizeof(float));
    for (int q = 0; q < s->world; q++)
        if (q != s->rank && holder(m, m->group, q) == s->rank && cuts[q + 1] > cuts[q])
            streams_receive(s, q, STREAM_SHARE, window->floats + cuts[q],
                (cuts[q + 1] - cuts[q]) * (int64_t)sizeof(float));
}

/* Copies what the others of the group hold. */
static void copy_held(
    struct mpi_cluster *m, const struct cluster_window *window, const int64_t *cuts) {
    const struct mpi_window *w = window->handle;
    for (int q = 0; q < m->streams.world; q++) {
        const int from = holder(m, m->group, q);
        if (from == m->streams.rank)
            continue;
        const float *of = w->of[from];
#pragma omp parallel for schedule(static)
        for (int64_t i = cuts[q]; i < cuts[q + 1]; i += BLOCK_FLOATS) {
            const int64_t floats = cuts[q + 1] - i < BLOCK_FLOATS ? cuts[q + 1] - i : BLOCK_FLOATS;
            memcpy(window->floats + i, of + i, (size_t)floats * sizeof(float));
        }
    }
}

static bool share(struct cluster *c, const struct cluster_window *window, const int64_t *cuts,
    struct error *err) {
    struct mpi_cluster *m = mpi_of(c);
    struct streams *s = &m->streams;
    if (!begin(m, "share", err))
        return false;
    list_shares(m, window, cuts);
    if (!streams_wait(s, err) || !window_sync(m, window, err) || !streams_begin(s, "share", err))
        return false;
    tell_group(m, STREAM_HELD);
    if (!streams_wait(s, err) || !window_sync(m, window, err))
        return false;
    copy_held(m, window, cuts);
    return leave(m, "the end of share", window, err);
}

/* ---- busy ranks ---- */

/* Sends beats while the caller is busy. */
static void *beat(void *user) {
    struct mpi_cluster *m = user;
    pthread_mutex_lock(&m->lock);
    while (!m->is_ending) {
        if (!m->is_busy) {
            pthread_cond_wait(&m->changed, &m->lock);
            continue;
        }
        streams_beat(&m->streams);
        const double interval = streams_beat_interval(&m->streams);
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        const int64_t ns = until.tv_nsec + (int64_t)(interval * 1e9);
        until.tv_sec += ns / 1000000000;
        until.tv_nsec = ns % 1000000000;
        pthread_cond_timedwait(&m->changed, &m->lock, &until);
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

static void set_busy(struct cluster *c, bool is_busy) {
    struct mpi_cluster *m = mpi_of(c);
    pthread_mutex_lock(&m->lock);
    m->is_busy = is_busy && !m->streams.is_broken;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
}

static bool start_beater(struct mpi_cluster *m, struct error *err) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&m->lock, NULL);
    const int failed = thread_start(&m->beater, "cluster-beat", beat, m);
    m->has_beater = !failed;
    return !failed || error_set_thread(err, failed);
}

static void stop_beater(struct mpi_cluster *m) {
    if (!m->has_beater)
        return;
    pthread_mutex_lock(&m->lock);
    m->is_ending = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->beater, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
}

/* ---- start and end ---- */

/* Without the others there is no orderly end of MPI: MPI_Finalize would wait for them. */
static void end(struct cluster *c) {
    struct mpi_cluster *m = mpi_of(c);
    stop_beater(m);
    m->is_busy = false;
    if (meet(m, "end", STREAM_END, NULL)) {
        (void)MPI_Comm_free(&m->group_comm);
        (void)MPI_Finalize();
        free(m->staging);
        free(m);
    }
}

static const struct cluster_ops ops = {
    .name = "mpi",
    .gather = gather,
    .broadcast = broadcast,
    .open_window = open_window,
    .close_window = close_window,
    .add_to_owner = add_to_owner,
    .share = share,
    .busy = set_busy,
    .end = end,
};

static bool read_setting(const char *name, int64_t standard, int64_t least, int64_t most,
    int64_t *out, struct error *err) {
    const char *text = getenv(name);
    char *after;
    *out = text ? strtoll(text, &after, 10) : standard;
    if (text && (*after || after == text || *out < least || *out > most))
        return error_field(
            err, name, text, "a whole number from %lld to %lld", (long long)least, (long long)most);
    return true;
}

/* Finds the lowest rank of the world in a communicator, which is ordered by rank. */
static int lowest_rank(MPI_Comm comm, int *count, int *own) {
    MPI_Group group, world;
    int first = 0, lowest = -1;
    MPI_Comm_size(comm, count);
    MPI_Comm_rank(comm, own);
    MPI_Comm_group(comm, &group);
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_translate_ranks(group, 1, &first, world, &lowest);
    MPI_Group_free(&group);
    MPI_Group_free(&world);
    return lowest;
}

/* Learns where all ranks are, and which of them share memory. */
static void take_places(struct mpi_cluster *m, const struct introduction *all) {
    struct cluster_place *place = &m->base.place;
    for (int q = 0; q < place->world; q++) {
        struct group *group = &m->groups[all[q].group];
        m->group_of[q] = all[q].group;
        group->ranks[group->count++] = q;
        memcpy(m->streams.hosts[q], all[q].host, sizeof(all[q].host));
        if (all[q].machine == q) {
            place->node += q < all[place->rank].machine;
            place->nodes++;
        }
    }
    m->group = &m->groups[all[place->rank].group];
}

static bool introduce(struct mpi_cluster *m, struct introduction *own, struct error *err) {
    struct introduction all[CLUSTER_RANKS_MAX];
    struct streams *s = &m->streams;
    MPI_Comm machine;
    int ranks;
    if (gethostname(own->host, sizeof(own->host) - 1))
        snprintf(own->host, sizeof(own->host), "?");
    if (!meet(m, "start", STREAM_START, err) ||
        !streams_check(s,
            MPI_Comm_split_type(
                MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, s->rank, MPI_INFO_NULL, &machine),
            "find the ranks of this machine", err))
        return false;
    own->machine = lowest_rank(machine, &m->base.place.local_world, &m->base.place.local_rank);
    const int color = m->base.place.local_rank / (int)own->shared_ranks;
    if (!streams_check(s, MPI_Comm_split(machine, color, s->rank, &m->group_comm),
            "form groups that share memory", err))
        return false;
    (void)MPI_Comm_free(&machine);
    (void)MPI_Comm_set_errhandler(m->group_comm, MPI_ERRORS_RETURN);
    int own_place;
    own->group = lowest_rank(m->group_comm, &ranks, &own_place);
    if (!gather_as(m, "start", STREAM_START, own, sizeof(*own), all, err))
        return false;
    for (int q = 0; q < s->world; q++)
        if (all[q].shared_ranks != all[0].shared_ranks ||
            all[q].message_bytes != all[0].message_bytes)
            return error_set(err, ERROR_CONFLICT,
                CLUSTER_SHARED_RANKS ", " CLUSTER_MESSAGE_BYTES
                                     ": %lld, %lld on rank 0, %lld, %lld on rank %d",
                (long long)all[0].shared_ranks, (long long)all[0].message_bytes,
                (long long)all[q].shared_ranks, (long long)all[q].message_bytes, q);
    take_places(m, all);
    return true;
}

static bool initialise(struct mpi_cluster *m, struct error *err) {
    struct introduction own = { 0 };
    int is_initialised = 0, provided = 0;
    if (!read_setting(CLUSTER_SHARED_RANKS, CLUSTER_RANKS_MAX, 1, CLUSTER_RANKS_MAX,
            &own.shared_ranks, err) ||
        !read_setting(CLUSTER_MESSAGE_BYTES, MESSAGE_BYTES, MESSAGE_BYTES_LEAST, MESSAGE_BYTES_MOST,
            &own.message_bytes, err))
        return false;
    MPI_Initialized(&is_initialised);
    if (is_initialised)
        return error_set(err, ERROR_INTERNAL, "MPI was initialised before");
    m->streams.call = "start";
    if (!streams_check(&m->streams, MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided),
            "initialise", err))
        return false;
    (void)MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    (void)MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &m->base.place.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &m->base.place.world);
    if (provided < MPI_THREAD_SERIALIZED)
        return error_set(err, ERROR_UNSUPPORTED,
            "the MPI library allows calls from one thread only; this needs MPI_THREAD_SERIALIZED");
    if (m->base.place.world > CLUSTER_RANKS_MAX)
        return error_set(
            err, ERROR_UNSUPPORTED, "%d ranks; at most %d", m->base.place.world, CLUSTER_RANKS_MAX);
    m->streams.rank = m->base.place.rank;
    m->streams.world = m->base.place.world;
    m->streams.piece_bytes = own.message_bytes;
    return introduce(m, &own, err);
}

struct cluster *cluster_mpi_open(double timeout_s, struct error *err) {
    struct mpi_cluster *m = calloc(1, sizeof(*m));
    if (!m) {
        error_set(err, ERROR_NO_MEMORY, "no memory for a cluster");
        return NULL;
    }
    m->base.ops = &ops;
    m->streams.timeout_s = timeout_s;
    for (int q = 0; q < CLUSTER_RANKS_MAX; q++)
        m->streams.beats[q] = MPI_REQUEST_NULL;
    if (initialise(m, err) && start_beater(m, err))
        return &m->base;
    /* MPI stays as it is: the process ends, and its launcher ends the others. */
    free(m);
    return NULL;
}
