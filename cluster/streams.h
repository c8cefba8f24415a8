/* Messages between ranks by MPI, in pieces, with a deadline: part of the module cluster-mpi.so.
 *
 * A stream is a run of bytes that goes from one rank to another. Both ends cut it into the same
 * pieces. A call of the cluster makes a list of streams and waits for them: the wait posts pieces,
 * at most two of a stream at a time, and polls MPI. Nobody blocks inside of MPI, therefore a
 * deadline can be kept and the ranks that are missing are known.
 *
 * The deadline counts from the beginning of a wait, from the last piece that came or went, or from
 * the last beat of another rank, whichever is latest. A beat is an empty message. A rank that is
 * busy sends beats (mpi.c), and so does a rank that waits while its own pieces move: whoever waits
 * for it has to know that the delay lies elsewhere. */
#ifndef CLUSTER_STREAMS_H
#define CLUSTER_STREAMS_H

#include "cluster/cluster.h"

#include <mpi.h>

#define STREAM_IN_FLIGHT 2
/* One out and one in for each other rank. */
#define STREAMS_MAX (2 * CLUSTER_RANKS_MAX)

/* MPI keeps the order of messages with the same tag between two ranks. Each kind of call has its
 * own, so that ranks in different calls wait for each other in vain instead of mixing up bytes. */
enum stream_tag {
    STREAM_START = 1,
    STREAM_END,
    STREAM_GATHER,
    STREAM_OPEN, /* a window */
    STREAM_CLOSE,
    STREAM_BROADCAST,
    STREAM_ARRIVE, /* of ranks that share memory: my window may be read */
    STREAM_HELD,   /* what I receive for the others is in my window */
    STREAM_LEAVE,  /* I have read the others' windows */
    STREAM_ADD,
    STREAM_SHARE,
    STREAM_BEAT,
};

struct stream {
    int peer;
    enum stream_tag tag;
    bool sends;
    bool is_ring; /* its memory is two pieces, used in turn */
    char *data;
    int64_t bytes, piece_bytes;
    int64_t pieces;       /* at least 1; the only piece may be empty */
    int64_t posted, done; /* pieces */
    int64_t allowed;      /* pieces that may be posted; of a ring, those with a free place */
    int64_t needed;       /* pieces that must be done for the wait to end */
    MPI_Request requests[STREAM_IN_FLIGHT];
};

struct streams {
    int rank, world;
    double timeout_s;
    int64_t piece_bytes;
    char hosts[CLUSTER_RANKS_MAX][64];
    bool is_broken; /* after a timeout or a failure: requests may be left over */
    double beaten_at;
    MPI_Request beats[CLUSTER_RANKS_MAX];
    const char *call; /* the call of the cluster, for messages */
    struct stream list[STREAMS_MAX];
    int count;
};

/* Begins the list of a call. ERROR_PEER_LOST if an earlier call has failed. */
bool streams_begin(struct streams *s, const char *call, struct error *err)
    __attribute__((warn_unused_result));
/* Appends a stream of `bytes` bytes (0 is fine: an empty message is sent) that is needed as a
 * whole. What is sent is not written to. */
struct stream *streams_send(
    struct streams *s, int peer, enum stream_tag tag, const void *data, int64_t bytes);
struct stream *streams_receive(
    struct streams *s, int peer, enum stream_tag tag, void *data, int64_t bytes);
/* Sets the size of a stream's pieces, other than streams.piece_bytes, before the first wait. */
void stream_cut(struct stream *stream, int64_t piece_bytes);

/* Moves all streams of the list until each has done what it needs. ERROR_TIMEOUT names the ranks
 * that are missing. ERROR_PEER_LOST if a rank sends another number of bytes. */
bool streams_wait(struct streams *s, struct error *err) __attribute__((warn_unused_result));

/* Sends a beat to every other rank, if its last one has left. */
void streams_beat(struct streams *s);
/* How often a busy rank sends beats. */
double streams_beat_interval(const struct streams *s);

/* Returns true if an MPI call succeeded. Else sets ERROR_PEER_LOST with the library's words, and
 * no further call is made. */
bool streams_check(struct streams *s, int result, const char *what, struct error *err)
    __attribute__((warn_unused_result));

#endif
