#include "cluster/streams.h"

#include "base/monotonic.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#define NAMED_MAX 6 /* missing ranks that a message names */

bool streams_check(struct streams *s, int result, const char *what, struct error *err) {
    if (result == MPI_SUCCESS)
        return true;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (MPI_Error_string(result, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", result);
    s->is_broken = true;
    return error_set(err, ERROR_PEER_LOST, "%s: MPI: %s: %s", s->call, what, text);
}

bool streams_begin(struct streams *s, const char *call, struct error *err) {
    if (s->is_broken)
        return error_set(
            err, ERROR_PEER_LOST, "%s: an earlier call between the ranks has failed", call);
    s->call = call;
    s->count = 0;
    return true;
}

void stream_cut(struct stream *stream, int64_t piece_bytes) {
    stream->piece_bytes = piece_bytes;
    stream->pieces = stream->bytes ? (stream->bytes + piece_bytes - 1) / piece_bytes : 1;
    stream->allowed = stream->needed = stream->pieces;
}

static struct stream *append(
    struct streams *s, int peer, enum stream_tag tag, bool sends, void *data, int64_t bytes) {
    struct stream *stream = &s->list[s->count++];
    *stream =
        (struct stream){ .peer = peer, .tag = tag, .sends = sends, .data = data, .bytes = bytes };
    stream_cut(stream, s->piece_bytes);
    return stream;
}

struct stream *streams_send(
    struct streams *s, int peer, enum stream_tag tag, const void *data, int64_t bytes) {
    return append(s, peer, tag, true, (void *)(uintptr_t)data, bytes);
}

struct stream *streams_receive(
    struct streams *s, int peer, enum stream_tag tag, void *data, int64_t bytes) {
    return append(s, peer, tag, false, data, bytes);
}

static int bytes_of_piece(const struct stream *stream, int64_t piece) {
    const int64_t left = stream->bytes - piece * stream->piece_bytes;
    return (int)(left < stream->piece_bytes ? left : stream->piece_bytes);
}

static bool post(struct streams *s, struct stream *stream, struct error *err) {
    const int64_t piece = stream->posted, at = piece * stream->piece_bytes;
    char *data = stream->data + (stream->is_ring ? piece % 2 * stream->piece_bytes : at);
    const int bytes = bytes_of_piece(stream, piece);
    MPI_Request *request = &stream->requests[piece % STREAM_IN_FLIGHT];
    stream->posted++;
    if (stream->sends)
        return streams_check(s,
            MPI_Isend(data, bytes, MPI_BYTE, stream->peer, stream->tag, MPI_COMM_WORLD, request),
            "send", err);
    return streams_check(s,
        MPI_Irecv(data, bytes, MPI_BYTE, stream->peer, stream->tag, MPI_COMM_WORLD, request),
        "receive", err);
}

/* Whether a message brought the whole piece. MPI itself refuses one that brings more. */
static bool is_whole(
    struct streams *s, const struct stream *stream, MPI_Status *status, struct error *err) {
    const int expected = bytes_of_piece(stream, stream->done);
    int bytes = 0;
    if (!streams_check(s, MPI_Get_count(status, MPI_BYTE, &bytes), "count bytes", err))
        return false;
    if (bytes == expected)
        return true;
    s->is_broken = true;
    return error_set(err, ERROR_PEER_LOST,
        "%s: rank %d on %s sent %d bytes, not %d: it makes another call", s->call, stream->peer,
        s->hosts[stream->peer], bytes, expected);
}

/* Posts what may be posted and collects what is done. */
static bool move(struct streams *s, struct stream *stream, bool *moved, struct error *err) {
    for (;;) {
        while (stream->posted < stream->allowed && stream->posted - stream->done < STREAM_IN_FLIGHT)
            if (!post(s, stream, err))
                return false;
        if (stream->done == stream->posted)
            return true;
        int is_done = 0;
        MPI_Request *request = &stream->requests[stream->done % STREAM_IN_FLIGHT];
        MPI_Status status;
        const int result = MPI_Test(request, &is_done, &status);
        if (!streams_check(s, result, stream->sends ? "send" : "receive", err))
            return false;
        if (!is_done)
            return true;
        if (!stream->sends && !is_whole(s, stream, &status, err))
            return false;
        stream->done++;
        *moved = true;
    }
}

static bool move_all(struct streams *s, bool *moved, bool *is_done, struct error *err) {
    *is_done = true;
    *moved = false;
    for (int i = 0; i < s->count; i++) {
        if (!move(s, &s->list[i], moved, err))
            return false;
        *is_done &= s->list[i].done >= s->list[i].needed;
    }
    return true;
}

void streams_beat(struct streams *s) {
    s->beaten_at = monotonic_seconds();
    for (int q = 0; q < s->world; q++) {
        int is_gone = 1;
        if (q == s->rank || MPI_Test(&s->beats[q], &is_gone, MPI_STATUS_IGNORE) != MPI_SUCCESS ||
            !is_gone)
            continue;
        /* A failure shows in the next call; a beat has nobody to tell. */
        (void)MPI_Isend(NULL, 0, MPI_BYTE, q, STREAM_BEAT, MPI_COMM_WORLD, &s->beats[q]);
    }
}

double streams_beat_interval(const struct streams *s) {
    return s->timeout_s / 4 < 5 ? s->timeout_s / 4 : 5;
}

/* Takes all beats that have come; *came says whether there was one. */
static bool take_beats(struct streams *s, bool *came, struct error *err) {
    for (*came = false;; *came = true) {
        int is_there = 0;
        MPI_Status status;
        if (!streams_check(s,
                MPI_Iprobe(MPI_ANY_SOURCE, STREAM_BEAT, MPI_COMM_WORLD, &is_there, &status),
                "look for beats", err))
            return false;
        if (!is_there)
            return true;
        if (!streams_check(s,
                MPI_Recv(NULL, 0, MPI_BYTE, status.MPI_SOURCE, STREAM_BEAT, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE),
                "receive a beat", err))
            return false;
    }
}

/* Returns the ranks that keep the wait from ending. Who has not sent what is needed is missing.
 * If all have sent, those that have not received are. */
static uint64_t missing_ranks(const struct streams *s) {
    uint64_t senders = 0, receivers = 0;
    for (int i = 0; i < s->count; i++) {
        const struct stream *stream = &s->list[i];
        if (stream->done < stream->needed)
            *(stream->sends ? &receivers : &senders) |= UINT64_C(1) << stream->peer;
    }
    return senders ? senders : receivers;
}

static bool say_missing(struct streams *s, struct error *err) {
    const uint64_t missing = missing_ranks(s);
    char names[512] = "";
    size_t used = 0;
    int count = 0;
    for (int q = 0; q < s->world; q++) {
        if (!(missing >> q & 1))
            continue;
        if (count++ < NAMED_MAX)
            used += (size_t)snprintf(names + used, sizeof(names) - used, "%srank %d%s%s",
                used ? ", " : "", q, s->hosts[q][0] ? " on " : "", s->hosts[q]);
    }
    if (count > NAMED_MAX)
        snprintf(names + used, sizeof(names) - used, " and %d more", count - NAMED_MAX);
    s->is_broken = true;
    return error_set(
        err, ERROR_TIMEOUT, "%s: waited %g s in vain for %s", s->call, s->timeout_s, names);
}

/* Leaves the processor to others, the longer the wait, the more: ranks may share processors, and
 * they compute for seconds between two calls. */
static void pause_after(double idle_s) {
    if (idle_s < 0.001) {
        sched_yield();
        return;
    }
    const struct timespec nap = { .tv_nsec = idle_s < 0.05 ? 50000 : 500000 };
    nanosleep(&nap, NULL);
}

bool streams_wait(struct streams *s, struct error *err) {
    double since = monotonic_seconds(), moved_at = since;
    for (;;) {
        bool moved, is_done, beat_came;
        if (!move_all(s, &moved, &is_done, err))
            return false;
        if (is_done)
            return true;
        if (!take_beats(s, &beat_came, err))
            return false;
        const double now = monotonic_seconds();
        if (moved || beat_came)
            since = now;
        if (moved)
            moved_at = now;
        if (moved && now - s->beaten_at > streams_beat_interval(s))
            streams_beat(s);
        if (now - since > s->timeout_s)
            return say_missing(s, err);
        if (!moved)
            pause_after(now - moved_at);
    }
}
