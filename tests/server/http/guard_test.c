/* The guard's verdict on single requests. Each row is a case of RFC 9112, of the Fetch standard, or
 * of what libmicrohttpd lets through. guard_socket.py runs the same rows over real sockets. */
#include "server/http/guard/guard.h"

#include "tests/check.h"

#define MAX_HEADERS 6

struct guard_case {
    const char *what, *method, *target;
    size_t target_length; /* 0: strlen */
    const char *headers[MAX_HEADERS][2];
    int status;                            /* 0: passes */
    enum { HELD, STREAMED, NO_BODY } body; /* how the route takes its body */
};

#define HOST                                                                                       \
    { "Host", "localhost:8188" }
#define JSON                                                                                       \
    { "Content-Type", "application/json" }

static const struct guard_case cases[] = {
    { "plain GET", "GET", "/health", 0, { HOST }, 0 },
    { "plain POST", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "2" } }, 0 },
    { "charset", "POST", "/generate", 0,
        { HOST, { "content-type", "application/json; charset=UTF-8" }, { "Content-Length", "2" } },
        0 },
    { "query", "GET", "/health?a=%20b/../c", 0, { HOST }, 0 },
    { "escaped path", "GET", "/a%20b", 0, { HOST }, 0 },
    { "dots in a name", "GET", "/a..b/...", 0, { HOST }, 0 },
    { "OPTIONS *", "OPTIONS", "*", 0, { HOST }, 0 },
    /* framing */
    { "length and chunks", "POST", "/generate", 0,
        { HOST, JSON, { "Content-Length", "6" }, { "Transfer-Encoding", "chunked" } }, 400 },
    { "two lengths", "POST", "/generate", 0,
        { HOST, JSON, { "Content-Length", "5" }, { "Content-Length", "0" } }, 400 },
    { "two equal lengths", "POST", "/generate", 0,
        { HOST, JSON, { "Content-Length", "5" }, { "Content-Length", "5" } }, 400 },
    { "negative length", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "-1" } }, 400 },
    { "plus sign", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "+1" } }, 400 },
    { "list of lengths", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "1, 1" } },
        400 },
    { "empty length", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "" } }, 400 },
    { "length past 64 bits", "POST", "/generate", 0,
        { HOST, JSON, { "Content-Length", "18446744073709551617" } }, 400 },
    { "too large", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "1001" } }, 413 },
    { "largest", "POST", "/generate", 0, { HOST, JSON, { "Content-Length", "1000" } }, 0 },
    { "chunked", "POST", "/generate", 0, { HOST, JSON, { "Transfer-Encoding", "chunked" } }, 411 },
    { "other coding", "POST", "/generate", 0,
        { HOST, JSON, { "Transfer-Encoding", "gzip, chunked" } }, 501 },
    { "chunked twice", "POST", "/generate", 0,
        { HOST, JSON, { "Transfer-Encoding", "chunked" }, { "Transfer-Encoding", "chunked" } },
        501 },
    { "chunked GET", "GET", "/health", 0, { HOST, { "Transfer-Encoding", "chunked" } }, 411 },
    { "chunked where it is streamed", "PUT", "/loras/a", 0,
        { HOST, { "Transfer-Encoding", "chunked" } }, 0, STREAMED },
    { "length and chunks, streamed", "PUT", "/loras/a", 0,
        { HOST, { "Content-Length", "6" }, { "Transfer-Encoding", "chunked" } }, 400, STREAMED },
    { "other coding, streamed", "PUT", "/loras/a", 0,
        { HOST, { "Transfer-Encoding", "gzip, chunked" } }, 501, STREAMED },
    { "no length, streamed", "PUT", "/loras/a", 0, { HOST }, 411, STREAMED },
    { "too large, streamed", "PUT", "/loras/a", 0, { HOST, { "Content-Length", "1001" } }, 413,
        STREAMED },
    { "no length and no body", "POST", "/loras/rescan", 0, { HOST }, 0, NO_BODY },
    { "chunked and no body", "POST", "/loras/rescan", 0,
        { HOST, { "Transfer-Encoding", "chunked" } }, 411, NO_BODY },
    { "no length", "POST", "/generate", 0, { HOST, JSON }, 411 },
    { "GET with a body", "GET", "/health", 0, { HOST, { "Content-Length", "3" } }, 400 },
    { "DELETE with a body", "DELETE", "/loras/a", 0, { HOST, { "Content-Length", "3" } }, 400 },
    { "a method of no route, with a body", "TRACE", "/health", 0,
        { HOST, { "Content-Length", "3" } }, 0 },
    { "GET with an empty body", "GET", "/health", 0, { HOST, { "Content-Length", "0" } }, 0 },
    /* Host */
    { "no Host", "GET", "/health", 0, { { "Accept", "*/*" } }, 400 },
    { "two Hosts", "GET", "/health", 0, { HOST, HOST }, 400 },
    { "empty Host", "GET", "/health", 0, { { "Host", "" } }, 400 },
    { "rebinding", "GET", "/health", 0, { { "Host", "evil.example:8188" } }, 403 },
    { "prefix", "GET", "/health", 0, { { "Host", "localhost.evil.example" } }, 403 },
    { "its beginning", "GET", "/health", 0, { { "Host", "local" } }, 403 },
    { "an address's beginning", "GET", "/health", 0, { { "Host", "127.0.0" } }, 403 },
    { "suffix", "GET", "/health", 0, { { "Host", "evil-localhost" } }, 403 },
    { "user info", "GET", "/health", 0, { { "Host", "localhost@evil.example" } }, 403 },
    { "user and port", "GET", "/health", 0, { { "Host", "localhost:80@evil.example" } }, 400 },
    { "upper case", "GET", "/health", 0, { { "Host", "LocalHost:8188" } }, 0 },
    { "trailing dot", "GET", "/health", 0, { { "Host", "localhost.:8188" } }, 0 },
    { "no port", "GET", "/health", 0, { { "Host", "127.0.0.1" } }, 0 },
    { "IPv6", "GET", "/health", 0, { { "Host", "[::1]:8188" } }, 0 },
    { "own address", "GET", "/health", 0, { { "Host", "127.0.0.9:1" } }, 0 },
    { "IPv6 unclosed", "GET", "/health", 0, { { "Host", "[::1" } }, 400 },
    { "port of letters", "GET", "/health", 0, { { "Host", "localhost:http" } }, 400 },
    { "empty port", "GET", "/health", 0, { { "Host", "localhost:" } }, 400 },
    { "zero address", "GET", "/health", 0, { { "Host", "0.0.0.0:8188" } }, 403 },
    /* Origin */
    { "own origin", "GET", "/health", 0, { HOST, { "Origin", "http://localhost:8188" } }, 0 },
    { "other origin", "GET", "/health", 0, { HOST, { "Origin", "https://evil.example" } }, 403 },
    { "other port", "GET", "/health", 0, { HOST, { "Origin", "http://localhost:3000" } }, 403 },
    { "null origin", "GET", "/health", 0, { HOST, { "Origin", "null" } }, 403 },
    { "empty origin", "GET", "/health", 0, { HOST, { "Origin", "" } }, 403 },
    { "two origins", "GET", "/health", 0,
        { HOST, { "Origin", "http://localhost:8188" }, { "Origin", "http://localhost:8188" } },
        400 },
    { "cross-site", "GET", "/health", 0, { HOST, { "Sec-Fetch-Site", "cross-site" } }, 403 },
    { "same-origin", "GET", "/health", 0, { HOST, { "Sec-Fetch-Site", "same-origin" } }, 0 },
    { "no words of the Fetch standard", "GET", "/health", 0,
        { HOST, { "Sec-Fetch-Site", "cross-site, none" } }, 403 },
    { "empty site", "GET", "/health", 0, { HOST, { "Sec-Fetch-Site", "" } }, 403 },
    { "same-site", "GET", "/health", 0, { HOST, { "Sec-Fetch-Site", "Same-Site" } }, 0 },
    { "spaces around values", "GET", "/health", 0,
        { { "Host", " \tlocalhost\t " }, { "Sec-Fetch-Site", " none" } }, 0 },
    { "compressed", "POST", "/generate", 0,
        { HOST, JSON, { "Content-Length", "2" }, { "Content-Encoding", "gzip" } }, 415 },
    { "not compressed", "POST", "/generate", 0,
        { HOST, JSON, { "Content-Length", "2" }, { "Content-Encoding", "identity" } }, 0 },
    { "typed address", "GET", "/health", 0, { HOST, { "Sec-Fetch-Site", "none" } }, 0 },
    { "two types", "POST", "/generate", 0, { HOST, JSON, JSON, { "Content-Length", "2" } }, 400 },
    /* target */
    { "escaped NUL", "GET", "/f%00g", 0, { HOST }, 400 },
    { "raw NUL", "GET", "/f\0g", 4, { HOST }, 400 },
    { "escaped slash", "GET", "/a%2fb", 0, { HOST }, 0 },
    { "escaped SLASH", "GET", "/a%2Fb", 0, { HOST }, 0 },
    { "escaped backslash", "GET", "/a%5cb", 0, { HOST }, 400 },
    { "backslash", "GET", "/a\\b", 0, { HOST }, 400 },
    { "escaped newline", "GET", "/a%0d%0ab", 0, { HOST }, 400 },
    { "control", "GET",
        "/a\x01"
        "b",
        0, { HOST }, 400 },
    { "not ASCII", "GET", "/\xc3\xa4", 0, { HOST }, 400 },
    { "half an escape", "GET", "/a%2", 0, { HOST }, 400 },
    { "no hex", "GET", "/a%zz", 0, { HOST }, 400 },
    { "up", "GET", "/a/../b", 0, { HOST }, 400 },
    { "up at the end", "GET", "/a/..", 0, { HOST }, 400 },
    { "escaped up", "GET", "/a/%2e%2E/b", 0, { HOST }, 400 },
    { "half escaped up", "GET", "/.%2e/b", 0, { HOST }, 400 },
    { "here", "GET", "/./health", 0, { HOST }, 400 },
    { "fragment", "GET", "/a#b", 0, { HOST }, 400 },
    { "absolute form", "GET", "http://localhost/health", 0, { HOST }, 400 },
    { "asterisk", "GET", "*", 0, { HOST }, 400 },
    { "empty", "GET", "", 0, { HOST }, 400 },
    /* request id */
    { "id", "GET", "/health", 0, { HOST, { "X-Request-Id", "a.B-9_z" } }, 0 },
    { "id with a line break", "GET", "/health", 0, { HOST, { "X-Request-Id", "a\nb" } }, 400 },
    { "empty id", "GET", "/health", 0, { HOST, { "X-Request-Id", "" } }, 400 },
    { "id that is an option", "GET", "/health", 0, { HOST, { "X-Request-Id", "-rf" } }, 400 },
    { "long id", "GET", "/health", 0,
        { HOST, { "X-Request-Id", "0123456789012345678901234567890123456789012345678901234567890123"
                                  "4" } },
        400 },
    { "two ids", "GET", "/health", 0, { HOST, { "X-Request-Id", "a" }, { "X-Request-Id", "b" } },
        400 },
};

int main(void) {
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct guard_case *c = &cases[i];
        struct guard_request request = {
            .method = c->method,
            .target = c->target,
            .target_length = c->target_length ? c->target_length : strlen(c->target),
            .own_host = "127.0.0.9",
            .body_max_bytes = 1000,
            .takes_chunks = c->body == STREAMED,
            .no_body = c->body == NO_BODY,
        };
        for (int h = 0; h < MAX_HEADERS && c->headers[h][0]; h++)
            guard_add_header(
                &request.headers, c->headers[h][0], c->headers[h][1], strlen(c->headers[h][1]));
        struct guard_verdict verdict = guard_check(&request);
        CHECK(verdict.status == c->status, "%s: %d (%s), not %d", c->what, verdict.status,
            verdict.message ? verdict.message : "passed", c->status);
        CHECK(!verdict.status == !verdict.message,
            "%s: a refusal without a message, or a message without a refusal", c->what);
    }
    return check_done();
}
