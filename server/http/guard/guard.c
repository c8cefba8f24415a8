#include "server/http/guard/guard.h"

#include "base/limits.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

#define PASS ((struct guard_verdict){ 0 })
#define REFUSE(status, code, message) ((struct guard_verdict){ status, code, message })

static bool is_space(char c) {
    return c == ' ' || c == '\t';
}

void guard_add_header(
    struct guard_headers *headers, const char *name, const char *value, size_t length) {
    const struct {
        const char *name;
        struct guard_header *header;
    } known[] = {
        { "Host", &headers->host },
        { "Origin", &headers->origin },
        { "Sec-Fetch-Site", &headers->sec_fetch_site },
        { "Content-Type", &headers->content_type },
        { "Content-Encoding", &headers->content_encoding },
        { "Content-Length", &headers->content_length },
        { "Transfer-Encoding", &headers->transfer_encoding },
        { "X-Request-Id", &headers->request_id },
        { "Authorization", &headers->authorization },
    };
    if (!value)
        value = "", length = 0;
    for (; length > 0 && is_space(value[0]); length--)
        value++;
    while (length > 0 && is_space(value[length - 1]))
        length--;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        if (strcasecmp(name, known[i].name) != 0)
            continue;
        known[i].header->count++;
        known[i].header->value = value;
        known[i].header->length = length;
    }
}

static bool is_word(const struct guard_header *header, const char *word) {
    return header->length == strlen(word) && strncasecmp(header->value, word, header->length) == 0;
}

static bool is_alphanumeric(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

/* Returns the value of a hexadecimal digit, or -1. */
static int hex_digit(unsigned char c) {
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

bool guard_id_is_valid(const char *text, size_t length) {
    if (length < 1 || length > REQUEST_ID_MAX_BYTES || !is_alphanumeric((unsigned char)text[0]))
        return false;
    for (size_t i = 1; i < length; i++)
        if (!is_alphanumeric((unsigned char)text[i]) && !strchr("._-", text[i]))
            return false;
    return memchr(text, 0, length) == NULL;
}

static bool parse_length(const struct guard_header *length, uint64_t *out) {
    *out = 0;
    if (length->count != 1 || length->length == 0 || length->length > 18)
        return false;
    uint64_t bytes = 0;
    for (size_t i = 0; i < length->length; i++) {
        if (length->value[i] < '0' || length->value[i] > '9')
            return false;
        bytes = bytes * 10 + (uint64_t)(length->value[i] - '0');
    }
    *out = bytes;
    return true;
}

uint64_t guard_body_bytes(const struct guard_headers *headers) {
    uint64_t bytes;
    (void)parse_length(&headers->content_length, &bytes);
    return bytes;
}

/* Returns whether no route has a body for this method. Methods that no route has at all are refused
 * later, with a 405. */
static bool is_bodiless(const char *method) {
    static const char *const methods[] = { "GET", "HEAD", "DELETE", "OPTIONS" };
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(method, methods[i]) == 0)
            return true;
    return false;
}

/* Checks that the end of the body is unambiguous. There must be one Content-Length, or one
 * Transfer-Encoding, which few routes accept. A proxy in front of the daemon may see the end of an
 * ambiguous request somewhere else. */
static struct guard_verdict check_framing(const struct guard_request *request) {
    const struct guard_header *length = &request->headers.content_length;
    const struct guard_header *encoding = &request->headers.transfer_encoding;
    if (length->count > 0 && encoding->count > 0)
        return REFUSE(400, "invalid_request",
            "a request has either Content-Length or Transfer-Encoding, not both");
    if (length->count > 1)
        return REFUSE(400, "invalid_request", "a request has exactly one Content-Length");
    if (encoding->count > 0) {
        bool chunked = encoding->count == 1 && is_word(encoding, "chunked");
        if (!chunked)
            return REFUSE(501, "unsupported", "no transfer encoding is supported");
        return request->takes_chunks
                   ? PASS
                   : REFUSE(411, "length_required", "send the body with a Content-Length");
    }
    bool has_body = strcmp(request->method, "POST") == 0 || strcmp(request->method, "PUT") == 0 ||
                    strcmp(request->method, "PATCH") == 0;
    if (length->count == 0)
        return has_body && !request->no_body
                   ? REFUSE(411, "length_required", "send a Content-Length")
                   : PASS;
    uint64_t bytes;
    if (!parse_length(length, &bytes))
        return REFUSE(400, "invalid_request", "Content-Length is not a number of bytes");
    if (is_bodiless(request->method) && bytes > 0)
        return REFUSE(400, "invalid_request", "this method takes no body");
    if (bytes > request->body_max_bytes)
        return REFUSE(413, "too_large", "the body is larger than this server takes");
    return PASS;
}

/* Returns whether the segment [begin, end) of a path is "." or "..", with its dots plain or as
 * %2e. */
static bool is_dot_segment(const char *begin, const char *end) {
    int dots = 0;
    while (begin < end) {
        if (*begin == '.')
            begin++;
        else if (end - begin >= 3 && begin[0] == '%' && begin[1] == '2' && (begin[2] | 0x20) == 'e')
            begin += 3;
        else
            return false;
        dots++;
    }
    return dots == 1 || dots == 2;
}

static struct guard_verdict check_target(const struct guard_request *request) {
    const char *target = request->target, *end = target + request->target_length;
    const struct guard_verdict bad = REFUSE(
        400, "invalid_request", "the request target is not a plain path and query");
    if (request->target_length == 1 && *target == '*' && strcmp(request->method, "OPTIONS") == 0)
        return PASS;
    if (request->target_length == 0 || *target != '/')
        return bad;
    for (const char *p = target; p < end; p++) {
        unsigned char c = (unsigned char)*p;
        if (c <= 0x20 || c >= 0x7f || c == '\\' || c == '#')
            return bad;
        if (c != '%')
            continue;
        if (end - p < 3 || hex_digit((unsigned char)p[1]) < 0 || hex_digit((unsigned char)p[2]) < 0)
            return bad;
        int byte = hex_digit((unsigned char)p[1]) * 16 + hex_digit((unsigned char)p[2]);
        if (byte < 0x20 || byte == 0x7f || byte == '/' || byte == '\\')
            return bad;
    }
    const char *query = memchr(target, '?', request->target_length);
    const char *path_end = query ? query : end;
    for (const char *segment = target + 1; segment <= path_end;) {
        const char *slash = memchr(segment, '/', (size_t)(path_end - segment));
        const char *segment_end = slash ? slash : path_end;
        if (is_dot_segment(segment, segment_end))
            return bad;
        segment = segment_end + 1;
    }
    return PASS;
}

/* Finds the name in "name", "name.", "name:port" or "[address]:port". Returns false for other
 * forms. */
static bool split_host(const char *text, size_t length, const char **name, size_t *name_length) {
    const char *end = text + length, *stop;
    if (length == 0)
        return false;
    if (text[0] == '[') {
        stop = memchr(text, ']', length);
        if (!stop)
            return false;
        stop++;
    } else {
        stop = memchr(text, ':', length);
        if (!stop)
            stop = end;
    }
    *name = text;
    *name_length = (size_t)(stop - text);
    if (stop < end) {
        if (*stop != ':' || end - stop < 2 || end - stop > 6)
            return false;
        for (const char *p = stop + 1; p < end; p++)
            if (*p < '0' || *p > '9')
                return false;
    }
    if (*name_length > 0 && (*name)[*name_length - 1] == '.')
        (*name_length)--;
    return *name_length > 0;
}

/* Returns whether the name is an IPv4 or IPv6 address as written in Host. An address needs no DNS,
 * so an attacker's DNS cannot point it at us. */
static bool is_address(const char *name, size_t length) {
    char text[64];
    unsigned char bytes[16];
    const bool v6 = length > 2 && name[0] == '[';
    if (length >= sizeof(text))
        return false;
    memcpy(text, name + v6, length - 2 * (size_t)v6);
    text[length - 2 * (size_t)v6] = 0;
    return inet_pton(v6 ? AF_INET6 : AF_INET, text, bytes) == 1;
}

static bool is_name(const char *allowed, const char *name, size_t length) {
    return allowed && strlen(allowed) == length && strncasecmp(name, allowed, length) == 0;
}

static bool is_listed(const struct guard_request *request, const char *name, size_t length) {
    for (const char *const *host = request->hosts; host && *host; host++)
        if (is_name(*host, name, length))
            return true;
    return false;
}

static bool host_is_allowed(const struct guard_request *request, const char *name, size_t length) {
    const char *const allowed[] = { "localhost", "127.0.0.1", "[::1]", request->own_host };
    for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
        if (is_name(allowed[i], name, length))
            return true;
    return is_listed(request, name, length) || (request->any_address && is_address(name, length));
}

/* Returns whether a page of this host made the request. https is only accepted for a listed host,
 * because TLS only comes from a proxy. */
static bool is_same_origin(const struct guard_request *request, bool listed_host) {
    const struct guard_header *host = &request->headers.host, *origin = &request->headers.origin;
    const char *const schemes[] = { "http://", listed_host ? "https://" : NULL };
    for (size_t i = 0; i < 2; i++) {
        const size_t length = schemes[i] ? strlen(schemes[i]) : 0;
        if (length && origin->length == length + host->length &&
            strncasecmp(origin->value, schemes[i], length) == 0 &&
            strncasecmp(origin->value + length, host->value, host->length) == 0)
            return true;
    }
    return false;
}

/* Returns whether Sec-Fetch-Site says that the user or a page of this host made the request. */
static bool is_own_site(const struct guard_header *site) {
    return is_word(site, "same-origin") || is_word(site, "same-site") || is_word(site, "none");
}

/* Refuses requests that pages of other sites make. The Origin of such a page is not ours. An
 * attacker's DNS can point the page's own name at us, so that its Origin fits, but that name is not
 * among our hosts. Together the checks of Host and Origin keep web pages away from a server on the
 * loopback address. */
static struct guard_verdict check_site(const struct guard_request *request) {
    const struct guard_header *host = &request->headers.host, *origin = &request->headers.origin;
    const struct guard_header *site = &request->headers.sec_fetch_site;
    const char *name;
    size_t length;
    if (host->count != 1)
        return REFUSE(400, "invalid_request", "a request has exactly one Host");
    if (!split_host(host->value, host->length, &name, &length))
        return REFUSE(400, "invalid_request", "Host is not a name with an optional port");
    if (!host_is_allowed(request, name, length))
        return REFUSE(403, "forbidden_host",
            "this Host is not served here; use localhost, 127.0.0.1, [::1] or what --host names");
    if (origin->count > 1 || site->count > 1)
        return REFUSE(400, "invalid_request", "Origin and Sec-Fetch-Site come at most once");
    if (origin->count == 1 && request->listed_origin)
        return PASS;
    if (origin->count == 1 && !is_same_origin(request, is_listed(request, name, length)))
        return REFUSE(403, "forbidden_origin", "requests from other sites are not served");
    if (site->count == 1 && !is_own_site(site))
        return REFUSE(403, "forbidden_origin", "requests from other sites are not served");
    return PASS;
}

struct guard_verdict guard_check(const struct guard_request *request) {
    struct guard_verdict verdict = check_framing(request);
    if (verdict.status)
        return verdict;
    verdict = check_target(request);
    if (verdict.status)
        return verdict;
    verdict = check_site(request);
    if (verdict.status)
        return verdict;
    const struct guard_header *type = &request->headers.content_type;
    const struct guard_header *id = &request->headers.request_id;
    const struct guard_header *encoding = &request->headers.content_encoding;
    if (encoding->count > 1 || (encoding->count == 1 && !is_word(encoding, "identity")))
        return REFUSE(415, "unsupported_media_type", "send the body without a Content-Encoding");
    if (type->count > 1)
        return REFUSE(400, "invalid_request", "Content-Type comes at most once");
    if (request->headers.authorization.count > 1)
        return REFUSE(400, "invalid_request", "Authorization comes at most once");
    if (id->count > 1 || (id->count == 1 && !guard_id_is_valid(id->value, id->length)))
        return REFUSE(400, "invalid_request",
            "X-Request-Id is 1 to 64 letters, digits, '.', '_' and '-', the first a letter or "
            "digit");
    return PASS;
}
