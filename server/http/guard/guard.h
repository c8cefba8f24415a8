/* The guard: checks every request before anything else looks at it.
 *
 * Every web page the user opens can reach a daemon on the loopback address (DNS rebinding,
 * cross-site requests). libmicrohttpd 0.9.75 also accepts requests that a proxy in front of it may
 * read differently (two lengths, a length and chunks, two hosts, a NUL in the target). The guard
 * refuses all of these. guard_head.h checks that the head is well-formed. No HTTP library here: the
 * caller adds the headers one by one and gets a verdict.
 */
#ifndef SERVER_HTTP_GUARD_GUARD_H
#define SERVER_HTTP_GUARD_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The headers that the guard reads: the number of times each was sent, and its last value
 * (borrowed). Zero-initialise. */
struct guard_headers {
    struct guard_header {
        int count;
        const char *value;
        size_t length;
    } host, origin, sec_fetch_site, content_type, content_encoding, content_length,
        transfer_encoding, request_id, authorization;
};

/* Adds one header, without the spaces around its value. Ignores headers that are not listed
 * above. */
void guard_add_header(
    struct guard_headers *headers, const char *name, const char *value, size_t length);

/* Returns the value of Content-Length if there is exactly one and it is a number below 10^18;
 * otherwise 0. */
uint64_t guard_body_bytes(const struct guard_headers *headers);

struct guard_request {
    const char *method;
    const char *target;   /* as sent, before any decoding */
    size_t target_length; /* may contain NULs */
    struct guard_headers headers;
    const char *own_host;     /* the bound address, allowed like loopback names; or NULL */
    const char *const *hosts; /* further names; ends with NULL; may be NULL */
    bool any_address;   /* the daemon listens on all addresses, so Host may be any IP address */
    bool listed_origin; /* the operator has listed this Origin */
    uint64_t body_max_bytes;
    bool takes_chunks; /* a body without a length is allowed */
    bool no_body;      /* POST, PUT and PATCH may come without a body and length */
};

struct guard_verdict {
    int status;          /* 0: pass; else answer with this status and close the connection */
    const char *code;    /* a stable code word */
    const char *message; /* one sentence */
};

/* Checks framing, target, Host, Origin, Sec-Fetch-Site, Content-Encoding and the request id. Also
 * checks that there is at most one Content-Type and one Authorization. The verdict's strings are
 * static. */
struct guard_verdict guard_check(const struct guard_request *request);

/* Returns whether a client may use this as a request id: [A-Za-z0-9][A-Za-z0-9._-]{0,63}. */
bool guard_id_is_valid(const char *text, size_t length);

#endif
