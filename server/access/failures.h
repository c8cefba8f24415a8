/* Counts wrong keys for each peer: after KEY_FAILURES_MAX in a minute it must wait for the minute
 * to end. The table has a fixed size; the peer that failed longest ago is dropped. */
#ifndef SERVER_ACCESS_FAILURES_H
#define SERVER_ACCESS_FAILURES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define FAILURES_PEERS_MAX 256
#define FAILURES_WINDOW_MS 60000

/* The clients that are counted together: an address, the first 64 bits of an IPv6 address, or all
 * clients of unix sockets. */
struct peer {
    uint8_t bytes[9];
};

struct failures {
    struct failures_of {
        struct peer peer;
        int count; /* 0: unused entry */
        int64_t begun_ms, last_ms;
    } of[FAILURES_PEERS_MAX];
};

/* A NULL address is a peer too: the unknown one. */
struct peer peer_of(const struct sockaddr *address);
/* Returns whether the address is a loopback address or a unix socket: a proxy on this machine may
 * speak for many clients. */
bool peer_is_local(const struct sockaddr *address);

/* Returns how long the peer must wait; 0: not at all. */
int64_t failures_wait_ms(const struct failures *failures, const struct peer *peer, int64_t now_ms);
/* Counts one more failure. */
void failures_add(struct failures *failures, const struct peer *peer, int64_t now_ms);

#endif
