/* What is checked of every request before anything else looks at it.
 *
 * A daemon on the loopback address is reachable by every web page the user opens (DNS rebinding,
 * cross-site requests), and libmicrohttpd 0.9.75 lets through what a proxy in front may read
 * differently (two lengths, a length and chunks, two hosts, a NUL in the target). The guard says no
 * to all of them; what is not even a well-formed head is guard_head.h's business. No HTTP library
 * here: headers come in one by one, a verdict comes out.
 */
#ifndef SERVER_HTTP_GUARD_H
#define SERVER_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The headers the guard reads: how often each came, and its last value (borrowed). Zeroed to begin.
 */
struct guard_headers {
    struct guard_header {
        int count;
        const char *value;
        size_t length;
    } host, origin, sec_fetch_site, content_type, content_encoding, content_length,
        transfer_encoding, request_id, authorization;
};

/* Takes one header in, without the spaces around its value; others than the above are passed over.
 */
void guard_add_header(
    struct guard_headers *headers, const char *name, const char *value, size_t length);

/* What Content-Length says; 0 if there is not exactly one, or it is not a number below 10^18. */
uint64_t guard_body_bytes(const struct guard_headers *headers);

struct guard_request {
    const char *method;
    const char *target;   /* as it came over the wire, before any decoding */
    size_t target_length; /* it may hold NULs */
    struct guard_headers headers;
    const char
        *own_host; /* the address we listen on, allowed besides the loopback names; or NULL */
    const char *const *hosts; /* further names; ends with NULL, may be NULL */
    bool any_address;   /* every IP address in Host is allowed: we listen on all that there are */
    bool listed_origin; /* Origin is one that may call from its own pages */
    uint64_t body_max_bytes;
    bool takes_chunks; /* a body may come without a length */
    bool no_body;      /* and the method's length may be left out, since there is none */
};

struct guard_verdict {
    int status;          /* 0: let it through. Otherwise answer with it and close the connection */
    const char *code;    /* stable word */
    const char *message; /* one sentence */
};

/* Everything but what depends on the route: framing, target, Host, Origin, Sec-Fetch-Site, and the
 * request id. Strings are static. */
struct guard_verdict guard_check(const struct guard_request *request);

/* Whether a client may use this as a request id: [A-Za-z0-9][A-Za-z0-9._-]{0,63}. */
bool guard_id_is_valid(const char *text, size_t length);

#endif
