#include "server/access/failures.h"

#include "base/limits.h"

#include <netinet/in.h>
#include <string.h>

/* Returns the 4 bytes of an IPv4 address, or of an IPv4 address mapped into IPv6 (::ffff:a.b.c.d).
 * Returns NULL for other addresses. */
static const uint8_t *ipv4_of(const struct sockaddr *address) {
    if (address && address->sa_family == AF_INET)
        return (const uint8_t *)&((const struct sockaddr_in *)address)->sin_addr;
    if (!address || address->sa_family != AF_INET6)
        return NULL;
    const struct in6_addr *ipv6 = &((const struct sockaddr_in6 *)address)->sin6_addr;
    return IN6_IS_ADDR_V4MAPPED(ipv6) ? ipv6->s6_addr + 12 : NULL;
}

struct peer peer_of(const struct sockaddr *address) {
    struct peer peer = { { 0 } };
    const uint8_t *ipv4 = ipv4_of(address);
    if (ipv4) {
        peer.bytes[0] = 4;
        memcpy(peer.bytes + 1, ipv4, 4);
    } else if (address && address->sa_family == AF_INET6) {
        peer.bytes[0] = 6;
        memcpy(peer.bytes + 1, &((const struct sockaddr_in6 *)address)->sin6_addr, 8);
    }
    return peer;
}

bool peer_is_local(const struct sockaddr *address) {
    const uint8_t *ipv4 = ipv4_of(address);
    if (ipv4)
        return ipv4[0] == 127;
    if (address && address->sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return address && address->sa_family == AF_UNIX;
}

static bool is_over(const struct failures_of *of, int64_t now_ms) {
    return of->count == 0 || now_ms - of->begun_ms >= FAILURES_WINDOW_MS;
}

static int find(const struct failures *failures, const struct peer *peer) {
    for (int i = 0; i < FAILURES_PEERS_MAX; i++)
        if (failures->of[i].count > 0 && memcmp(&failures->of[i].peer, peer, sizeof(*peer)) == 0)
            return i;
    return -1;
}

int64_t failures_wait_ms(const struct failures *failures, const struct peer *peer, int64_t now_ms) {
    const int i = find(failures, peer);
    if (i < 0 || is_over(&failures->of[i], now_ms) || failures->of[i].count < KEY_FAILURES_MAX)
        return 0;
    return failures->of[i].begun_ms + FAILURES_WINDOW_MS - now_ms;
}

void failures_add(struct failures *failures, const struct peer *peer, int64_t now_ms) {
    int i = find(failures, peer);
    if (i < 0) {
        i = 0;
        for (int k = 1; k < FAILURES_PEERS_MAX; k++)
            if (failures->of[k].count == 0 ||
                (failures->of[i].count > 0 && failures->of[k].last_ms < failures->of[i].last_ms))
                i = k;
        failures->of[i].count = 0;
    }
    struct failures_of *of = &failures->of[i];
    if (is_over(of, now_ms))
        *of = (struct failures_of){ .peer = *peer, .begun_ms = now_ms };
    of->count += of->count < KEY_FAILURES_MAX;
    of->last_ms = now_ms;
}
