/* What respond.c hands to libmicrohttpd, whose functions stand in for it here. */
#include "server/http/respond.h"

#include "tests/check.h"

#include <stdlib.h>
#include <strings.h>

#define HEADERS_MAX 16

static struct {
    unsigned status;
    char body[512];
    char headers[HEADERS_MAX][2][64];
    int header_count;
} answer;

struct MHD_Response *MHD_create_response_from_buffer(
    size_t size, void *buffer, enum MHD_ResponseMemoryMode mode) {
    memset(&answer, 0, sizeof(answer));
    snprintf(answer.body, sizeof(answer.body), "%.*s", (int)size, (char *)buffer);
    if (mode == MHD_RESPMEM_MUST_FREE)
        free(buffer);
    return (struct MHD_Response *)&answer;
}

enum MHD_Result MHD_add_response_header(
    struct MHD_Response *response, const char *name, const char *value) {
    (void)response;
    if (answer.header_count == HEADERS_MAX)
        return MHD_NO;
    char(*header)[64] = answer.headers[answer.header_count++];
    snprintf(header[0], sizeof(header[0]), "%s", name);
    snprintf(header[1], sizeof(header[1]), "%s", value);
    return MHD_YES;
}

enum MHD_Result MHD_queue_response(
    struct MHD_Connection *connection, unsigned status, struct MHD_Response *response) {
    (void)connection;
    (void)response;
    answer.status = status;
    return MHD_YES;
}

void MHD_destroy_response(struct MHD_Response *response) {
    (void)response;
}

/* The values of a header, joined by '|'. */
static const char *values(const char *name) {
    static char text[256];
    text[0] = 0;
    for (int i = 0; i < answer.header_count; i++)
        if (strcasecmp(answer.headers[i][0], name) == 0) {
            size_t used = strlen(text);
            snprintf(
                text + used, sizeof(text) - used, "%s%s", used ? "|" : "", answer.headers[i][1]);
        }
    return text;
}

static void no_memory_for_the_answer_is_a_500(void) {
    struct exchange exchange = { .id = "abc" };
    CHECK(respond_json(&exchange, 200, NULL) == MHD_YES, "nothing was answered");
    CHECK(answer.status == 500, "%u, not 500", answer.status);
    CHECK(exchange.status == 500, "%d, not 500", exchange.status);
    CHECK_CONTAINS(answer.body, "\"code\":\"internal_error\"");
    CHECK_STRING(values("Content-Type"), "application/json");
    CHECK_STRING(values("X-Request-Id"), "abc");
}

static void a_route_s_headers_replace_the_usual_ones(void) {
    static const struct answer_header page[] = {
        { "Content-Security-Policy", "default-src 'self'" },
        { "cache-control", "max-age=60" },
        { "Vary", "Accept" },
        { NULL, NULL },
    };
    struct http_server server = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    char target[] = "/nope";
    static const struct route route = { .path = "/", .headers = page };
    struct exchange exchange = { .server = &server, .method_name = "GET", .target = target };
    CHECK(respond_json(&exchange, 200, json_object()) == MHD_YES, "nothing was answered");
    CHECK_STRING(values("Content-Security-Policy"), "default-src 'none'");
    CHECK_STRING(values("Cache-Control"), "no-store");
    CHECK_STRING(values("X-Content-Type-Options"), "nosniff");
    exchange.route = &route;
    CHECK(respond_json(&exchange, 200, json_object()) == MHD_YES, "nothing was answered");
    CHECK_STRING(values("Content-Security-Policy"), "default-src 'self'");
    CHECK_STRING(values("Cache-Control"), "max-age=60");
    CHECK_STRING(values("X-Content-Type-Options"), "nosniff");
    CHECK_STRING(values("Vary"), "Accept");
    CHECK(respond_refusal(&exchange, 404, "not_found", "no", NULL, true) == MHD_YES,
        "nothing was answered");
    CHECK_STRING(values("Content-Security-Policy"), "default-src 'none'");
    CHECK_STRING(values("Cache-Control"), "no-store");
    CHECK_STRING(values("Connection"), "close");
}

int main(void) {
    no_memory_for_the_answer_is_a_500();
    a_route_s_headers_replace_the_usual_ones();
    return check_done();
}
