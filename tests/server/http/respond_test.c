/* What respond.c passes to libmicrohttpd. The test replaces libmicrohttpd's functions. */
#include "server/http/respond.h"

#include "server/http/caller.h"
#include "server/http/dialect.h"
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

const union MHD_ConnectionInfo *MHD_get_connection_info(
    struct MHD_Connection *connection, enum MHD_ConnectionInfoType type, ...) {
    (void)connection;
    (void)type;
    return NULL;
}

/* Replaces the engine's function (-Wl,--wrap); there is no engine here. */
static double wait_s;
static uint64_t asked_for;
double __wrap_engine_wait_s(struct engine *engine, uint64_t caller);
double __wrap_engine_wait_s(struct engine *engine, uint64_t caller) {
    (void)engine;
    asked_for = caller;
    return wait_s;
}

/* Returns the values of a header, joined by '|'. */
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
    struct http_server server = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    struct exchange exchange = { .server = &server, .id = "abc" };
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

/* FastAPI's form of an error, with its own status for a wrong field. */
static json_t *detail_json(const struct error *err, const char *code, int *status) {
    if (*status == 400)
        *status = 422;
    return json_pack("{s:s, s:s, s:s}", "detail", err->message, "loc", err->param, "type", code);
}

static void a_dialect_has_errors_of_its_own(void) {
    static const struct dialect dialect = { "another", detail_json };
    struct http_server server = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    char target[] = "/nope";
    struct exchange exchange = {
        .server = &server, .method_name = "GET", .target = target, .dialect = &dialect
    };
    struct error err;
    error_field(&err, "width", "-1", "64 to 2048");
    CHECK(respond_error(&exchange, &err) == MHD_YES, "nothing was answered");
    CHECK(answer.status == 422, "%u, not 422", answer.status);
    CHECK_STRING(answer.body, "{\"detail\":\"width: -1 is not allowed; 64 to 2048\","
                              "\"loc\":\"width\",\"type\":\"invalid_request\"}");
    error_set(&err, ERROR_BUSY, "the queue is full");
    CHECK(respond_error(&exchange, &err) == MHD_YES, "nothing was answered");
    CHECK(answer.status == 429, "%u, not 429", answer.status);
    CHECK_STRING(values("Retry-After"), "1");
    CHECK(respond_refusal(&exchange, 404, "not_found", "no", NULL, false) == MHD_YES,
        "nothing was answered");
    CHECK(answer.status == 404, "%u, not 404", answer.status);
    CHECK_STRING(answer.body, "{\"detail\":\"no\",\"loc\":\"\",\"type\":\"not_found\"}");
}

/* The openai package retries after a 409 and after every status above 499, unless a header tells it
 * not to. */
static void clients_are_told_not_to_retry_lasting_errors(void) {
    static const struct {
        enum error_code code;
        const char *again;
    } rows[] = { { ERROR_CONFLICT, "false" }, { ERROR_CANCELLED, "false" },
        { ERROR_TIMEOUT, "false" }, { ERROR_UNSUPPORTED, "false" }, { ERROR_BUSY, "" },
        { ERROR_UNAVAILABLE, "" }, { ERROR_DEVICE, "" } };
    struct http_server server = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    char target[] = "/nope";
    struct exchange exchange = { .server = &server, .method_name = "GET", .target = target };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        error_set(&err, rows[i].code, "no");
        CHECK(respond_error(&exchange, &err) == MHD_YES, "nothing was answered");
        CHECK_STRING(values("X-Should-Retry"), rows[i].again);
    }
}

static void a_refusal_says_how_long_the_caller_s_work_takes(void) {
    static const struct {
        enum error_code code;
        double wait_s;
        const char *header;
    } rows[] = {
        { ERROR_BUSY, 0, "1" },
        { ERROR_BUSY, 7.2, "8" },
        { ERROR_UNAVAILABLE, 150, "150" },
        { ERROR_BUSY, 1e9, "3600" },
        { ERROR_INVALID, 7.2, "" },
        { ERROR_FORBIDDEN, 7.2, "" },
    };
    struct http_server server = { .mutex = PTHREAD_MUTEX_INITIALIZER };
    char target[] = "/generate";
    struct exchange exchange = {
        .server = &server, .method_name = "POST", .target = target, .caller = "alice"
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct error err;
        wait_s = rows[i].wait_s;
        error_set(&err, rows[i].code, "no");
        CHECK(respond_error(&exchange, &err) == MHD_YES, "nothing was answered");
        CHECK_STRING(values("Retry-After"), rows[i].header);
    }
    CHECK(asked_for == caller_number("key alice"), "Retry-After was computed for another caller");
    wait_s = 0;
}

int main(void) {
    a_refusal_says_how_long_the_caller_s_work_takes();
    no_memory_for_the_answer_is_a_500();
    a_route_s_headers_replace_the_usual_ones();
    a_dialect_has_errors_of_its_own();
    clients_are_told_not_to_retry_lasting_errors();
    return check_done();
}
