#include "server/http/caller.h"

#include "base/sha256.h"
#include "server/http/exchange.h"
#include "server/keys/keys.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

const struct sockaddr *caller_address(const struct exchange *exchange) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(
        exchange->http, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return info ? info->client_addr : NULL;
}

static void put_ipv4(struct caller *caller, const void *address) {
    char text[INET_ADDRSTRLEN];
    inet_ntop(AF_INET, address, text, sizeof(text));
    snprintf(caller->text, sizeof(caller->text), "ip %s", text);
}

static void put_ipv6(struct caller *caller, struct in6_addr address) {
    char text[INET6_ADDRSTRLEN];
    if (IN6_IS_ADDR_V4MAPPED(&address)) {
        put_ipv4(caller, address.s6_addr + 12);
        return;
    }
    memset(address.s6_addr + 8, 0, 8);
    inet_ntop(AF_INET6, &address, text, sizeof(text));
    snprintf(caller->text, sizeof(caller->text), "ip %s/64", text);
}

struct caller caller_make(const char *key_name, const struct sockaddr *address) {
    struct caller caller;
    if (key_name[0])
        snprintf(caller.text, sizeof(caller.text), "key %s", key_name);
    else if (address && address->sa_family == AF_INET)
        put_ipv4(&caller, &((const struct sockaddr_in *)address)->sin_addr);
    else if (address && address->sa_family == AF_INET6)
        put_ipv6(&caller, ((const struct sockaddr_in6 *)address)->sin6_addr);
    else
        snprintf(caller.text, sizeof(caller.text), "unix");
    return caller;
}

struct caller caller_of(const struct exchange *exchange) {
    return caller_make(exchange->caller, caller_address(exchange));
}

uint64_t caller_number(const char *text) {
    const struct digest digest = sha256_of(text, strlen(text));
    uint64_t number;
    memcpy(&number, digest.bytes, sizeof(number));
    return number;
}

struct viewer viewer_of(const struct exchange *exchange) {
    struct viewer viewer = { .sees_all = exchange->rights & KEY_MAY_ALL_JOBS };
    snprintf(viewer.name, sizeof(viewer.name), "%s", exchange->caller);
    return viewer;
}

bool viewer_sees(const struct viewer *viewer, const char *owner) {
    return viewer->sees_all || strcmp(viewer->name, owner) == 0;
}

bool caller_equals(const struct caller *a, const struct caller *b) {
    return strcmp(a->text, b->text) == 0;
}
