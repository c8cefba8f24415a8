/* Counts wrong keys for each peer. After KEY_FAILURES_MAX in a minute, the peer must wait until the
 * minute ends. The table has a fixed size. When it is full, a new peer replaces the peer whose last
 * failure is the oldest. */
#ifndef SERVER_ACCESS_FAILURES_H
#define SERVER_ACCESS_FAILURES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define FAILURES_PEERS_MAX 256
#define FAILURES_WINDOW_MS 60000

/* The clients whose failures are counted together: all clients of one IPv4 address, of one IPv6
 * prefix of 64 bits, or of unix sockets. */
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

/* Returns the peer of an address. A NULL address (unknown) is the same peer as unix sockets. */
struct peer peer_of(const struct sockaddr *address);
/* Returns whether the address is a loopback address or a unix socket. Such a peer may be a proxy
 * that speaks for many clients. */
bool peer_is_local(const struct sockaddr *address);

/* Returns how long the peer must wait; 0: not at all. */
int64_t failures_wait_ms(const struct failures *failures, const struct peer *peer, int64_t now_ms);
/* Counts one more failure. */
void failures_add(struct failures *failures, const struct peer *peer, int64_t now_ms);

#endif
