/* The head of a request, as arbitrary bytes from a client. It is split as libmicrohttpd 0.9.75 does
 * it (a bare LF ends a line, a NUL ends a value) and given to the guard. Every accepted head is
 * then parsed again from its bytes, strictly by RFC 9112, with code that shares nothing with the
 * guard. It must be a head that every other parser understands in the same way, addressed to a host
 * of ours, and not sent by another site. */
#include "server/http/guard/guard_head.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LINES_MAX 128

/* --- As the library splits it --- */

/* Returns the next line, NUL-terminated in place; NULL if it has no end. */
static char *cut_line(char **at, const char *end) {
    char *line = *at;
    for (char *p = line; p < end; p++) {
        const bool crlf = p + 1 < end && p[0] == '\r' && p[1] == '\n';
        if (!crlf && *p != '\n')
            continue;
        *p++ = 0;
        if (crlf)
            *p++ = 0;
        *at = p;
        return line;
    }
    return NULL;
}

/* Splits the request line. Returns false if the library itself refuses it. */
static bool cut_request_line(char *line, size_t length, struct guard_request *request,
    const char **target, const char **version) {
    char *space = memchr(line, ' ', length), *end = line + length, *last = end;
    if (!space || space == line)
        return false;
    *space = 0;
    char *begin = space + 1;
    while (begin < end && *begin == ' ')
        begin++;
    while (last > begin && last[-1] != ' ')
        last--;
    if (last <= begin + 1 || end - last != 8 || memcmp(last, "HTTP/1.", 7) != 0 || last[7] < '0' ||
        last[7] > '9')
        return false;
    last[-1] = 0;
    *target = begin;
    *version = last;
    request->method = line;
    request->target = begin;
    request->target_length = strlen(begin);
    return true;
}

static bool cut_header(char *line, struct guard_head *head, struct guard_headers *headers) {
    char *colon = strchr(line, ':');
    if (!colon)
        return false;
    *colon = 0;
    char *value = colon + 1 + strspn(colon + 1, " \t");
    guard_head_add(head, line, strlen(line), value, strlen(value));
    guard_add_header(headers, line, value, strlen(value));
    return true;
}

/* Gets the guard's verdict on a head. *size becomes the head's length. Returns false if the head
 * has no end or the library refuses it. */
static bool judge(char *bytes, size_t *size, struct guard_verdict *verdict) {
    static const char *const listed[] = { "sd.example", NULL };
    struct guard_request request = {
        .own_host = "127.0.0.9", .hosts = listed, .body_max_bytes = 1000
    };
    struct guard_headers headers = { 0 };
    struct guard_head head = { 0 };
    const char *target, *version;
    char *lines[LINES_MAX], *at = bytes;
    size_t count = 0, first_length = 0;
    for (;;) {
        char *line = cut_line(&at, bytes + *size);
        if (!line || count == LINES_MAX)
            return false;
        if (count == 0)
            first_length = (size_t)(at - line) - (at - line > 1 && !at[-2] ? 2 : 1);
        if (!*line)
            break;
        lines[count++] = line;
    }
    *size = (size_t)(at - bytes);
    if (count == 0 || !cut_request_line(lines[0], first_length, &request, &target, &version))
        return false;
    guard_head_begin(&head, lines[0], *size, target, request.target_length, version);
    for (size_t i = 1; i < count; i++) {
        const bool folded = *lines[i] == ' ' || *lines[i] == '\t';
        if (folded || !cut_header(lines[i], &head, &headers))
            return false; /* the library copies a folded header to other memory, which this target
            does not imitate; guard_socket.py tests that */
    }
    request.headers = headers;
    *verdict = guard_head_end(&head);
    if (!verdict->status)
        *verdict = guard_check(&request);
    return true;
}

/* --- By RFC 9112 --- */

static void require(bool promise) {
    if (!promise)
        abort();
}

struct text {
    const char *begin, *end;
};

static bool is(struct text t, const char *word) {
    return (size_t)(t.end - t.begin) == strlen(word) &&
           strncasecmp(t.begin, word, strlen(word)) == 0;
}

static struct text trimmed(struct text t) {
    while (t.begin < t.end && (*t.begin == ' ' || *t.begin == '\t'))
        t.begin++;
    while (t.begin < t.end && (t.end[-1] == ' ' || t.end[-1] == '\t'))
        t.end--;
    return t;
}

/* Requires a host name of ours. Returns true for one that the operator has listed: its origin may
 * be https, behind a TLS proxy. */
static bool check_host(struct text host) {
    static const char *const ours[] = { "localhost", "127.0.0.1", "[::1]", "127.0.0.9",
        "sd.example" };
    struct text name = host;
    const char *port = host.end;
    while (port > host.begin && port[-1] >= '0' && port[-1] <= '9')
        port--;
    if (port > host.begin && port < host.end && port[-1] == ':')
        name.end = port - 1;
    if (name.end > name.begin && name.end[-1] == '.')
        name.end--;
    bool found = false;
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
        found = found || is(name, ours[i]);
    require(found);
    return is(name, "sd.example");
}

static void check_origin(struct text origin, struct text host, bool listed) {
    const size_t length = (size_t)(host.end - host.begin);
    const size_t all = (size_t)(origin.end - origin.begin);
    const char *scheme = listed && all == 8 + length ? "https://" : "http://";
    require(all == strlen(scheme) + length);
    require(strncasecmp(origin.begin, scheme, strlen(scheme)) == 0);
    require(strncasecmp(origin.begin + strlen(scheme), host.begin, length) == 0);
}

/* The headers seen so far, with the values of Host and Origin. */
struct seen {
    struct text host, origin;
    int hosts, origins, lengths;
};

static void check_header(struct text line, struct seen *seen) {
    const char *colon = memchr(line.begin, ':', (size_t)(line.end - line.begin));
    require(colon && colon > line.begin);
    const struct text name = { line.begin, colon };
    const struct text value = trimmed((struct text){ colon + 1, line.end });
    for (const char *p = name.begin; p < name.end; p++)
        require(*p > 0x20 && *p < 0x7f && !strchr("\"(),/:;<=>?@[\\]{}", *p));
    require(!is(name, "Transfer-Encoding"));
    require(!is(name, "Content-Encoding") || is(value, "identity"));
    if (is(name, "Host") && ++seen->hosts)
        seen->host = value;
    if (is(name, "Origin") && ++seen->origins)
        seen->origin = value;
    seen->lengths += is(name, "Content-Length");
    if (is(name, "Sec-Fetch-Site"))
        require(is(value, "none") || is(value, "same-origin") || is(value, "same-site"));
}

static bool may_end_line(const char *head, const char *cut, size_t i) {
    return !cut[i] && (!head[i] || head[i] == '\r' || head[i] == '\n');
}

/* The library replaces line ends by NULs. Two adjacent NULs may stand for CR LF, or for a bare LF
 * and one other byte before or after it (guard_head.h). Writes CR LF into `head` wherever `cut` has
 * two adjacent NULs that may be line ends. */
static void write_out_line_ends(char *head, const char *cut, size_t size) {
    for (size_t i = 0; i + 1 < size; i++) {
        if (!may_end_line(head, cut, i) || !may_end_line(head, cut, i + 1))
            continue;
        head[i++] = '\r';
        head[i] = '\n';
    }
}

/* `head` ends with its empty line. */
static void check_by_the_letter(const char *head, size_t size) {
    struct seen seen = { 0 };
    const char *end = head + size;
    require(size >= 4 && memcmp(end - 4, "\r\n\r\n", 4) == 0);
    for (const char *p = head; p < end; p++) {
        require(*p != 0x7f && ((unsigned char)*p >= 0x20 || (*p && strchr("\t\r\n", *p))));
        require((*p == '\r') == (p + 1 < end && p[1] == '\n'));
    }
    const char *line = memchr(head, '\n', size);
    int spaces = 0;
    for (const char *p = head; p < line; p++)
        spaces += *p == ' ';
    require(spaces == 2);
    for (line++; *line != '\r';) {
        const char *line_end = memchr(line, '\r', (size_t)(end - line));
        check_header((struct text){ line, line_end }, &seen);
        line = line_end + 2;
    }
    require(seen.hosts == 1 && seen.origins <= 1 && seen.lengths <= 1);
    const bool listed = check_host(seen.host);
    if (seen.origins)
        check_origin(seen.origin, seen.host, listed);
}

static void judge_twice(char *bytes, char *again, size_t size) {
    size_t skipped = 0; /* the library skips empty lines before a request */
    while (skipped < size && (bytes[skipped] == '\n' || strncmp(bytes + skipped, "\r\n", 2) == 0))
        skipped++;
    size_t head_size = size - skipped;
    struct guard_verdict verdict = { 0 };
    if (!judge(bytes + skipped, &head_size, &verdict))
        return;
    require(!verdict.status == !verdict.message);
    require(!verdict.status || (verdict.status >= 400 && verdict.status < 600));
    if (verdict.status)
        return;
    write_out_line_ends(again + skipped, bytes + skipped, head_size);
    check_by_the_letter(again + skipped, head_size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *bytes = malloc(size + 1), *again = malloc(size + 1);
    if (bytes && again) {
        memcpy(bytes, data, size);
        memcpy(again, data, size);
        bytes[size] = again[size] = 0;
        judge_twice(bytes, again, size);
    }
    free(bytes);
    free(again);
    return 0;
}
