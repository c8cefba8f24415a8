/* How often a peer has presented a wrong key lately: KEY_FAILURES_MAX in a minute, then it has to
 * wait for the minute to end. The table has a fixed size; who failed longest ago leaves it. */
#ifndef SERVER_ACCESS_FAILURES_H
#define SERVER_ACCESS_FAILURES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define FAILURES_PEERS_MAX 256
#define FAILURES_WINDOW_MS 60000

/* Who is counted together: an address, of IPv6 its first 64 bits, all clients of unix sockets. */
struct peer {
    uint8_t bytes[9];
};

struct failures {
    struct failures_of {
        struct peer peer;
        int count; /* 0: nobody */
        int64_t begun_ms, last_ms;
    } of[FAILURES_PEERS_MAX];
};

/* NULL is a peer too: one that is not known. */
struct peer peer_of(const struct sockaddr *address);
/* This machine's own processes, among which a proxy may speak for all others. */
bool peer_is_local(const struct sockaddr *address);

/* Milliseconds for which the peer has to wait; 0: it need not. */
int64_t failures_wait_ms(const struct failures *failures, const struct peer *peer, int64_t now_ms);
/* One more. */
void failures_add(struct failures *failures, const struct peer *peer, int64_t now_ms);

#endif
