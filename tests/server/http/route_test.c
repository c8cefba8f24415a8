/* Routes: paths, methods and content types. */
#include "server/routes/routes.h"

#include "tests/check.h"

static enum MHD_Result nothing(struct exchange *exchange) {
    (void)exchange;
    return MHD_NO;
}

static const char *const text_or_json[] = { "text/plain", "application/json", NULL };
static const struct route folder = {
    .path = "/files/",
    .is_prefix = true,
    .methods = { { "GET", .handle = nothing }, { "PUT", text_or_json, .handle = nothing } },
};
static const char *const file_or_none[] = { "application/octet-stream", "", NULL };
static const struct route_method file = { "PUT", file_or_none, .handle = nothing };
static const struct route all = {
    .path = "/all",
    .methods = { { "GET", .handle = nothing }, { "PUT", .handle = nothing },
        { "POST", content_types_json, .handle = nothing }, { "DELETE", .handle = nothing } },
};

static void paths_are_exact_or_prefixes(void) {
    CHECK(route_matches(&folder, "/files/"), "itself");
    CHECK(route_matches(&folder, "/files/a/b"), "below");
    CHECK(!route_matches(&folder, "/files"), "the folder's path without its slash matches");
    CHECK(!route_matches(&folder, "/file/a"), "another folder's path matches");
    CHECK(route_matches(&all, "/all"), "itself");
    CHECK(!route_matches(&all, "/all/"), "a path below an exact one matches");
    CHECK(!route_matches(&all, "/alle"), "a longer path matches");
}

static void a_suffix_follows_one_piece(void) {
    static const struct route tail = {
        .path = "/files/", .suffix = "/tail", .methods = { { "GET", .handle = nothing } }
    };
    size_t length;
    CHECK(route_matches(&tail, "/files/a/tail"), "a path with one piece does not match");
    CHECK(!route_matches(&tail, "/files//tail"), "a path with an empty piece matches");
    CHECK(!route_matches(&tail, "/files/a/b/tail"), "a path with two pieces matches");
    CHECK(!route_matches(&tail, "/files/a"), "a path without the suffix matches");
    CHECK(!route_matches(&tail, "/files/a/tails"), "a path with another suffix matches");
    CHECK(!route_matches(&tail, "/files/tail"), "a path of only the suffix matches");
    CHECK(!route_matches(&tail, "/other/a/tail"), "another folder's path matches");
    CHECK(strcmp(route_piece(&tail, "/files/ab/tail?x=/tail", &length), "ab/tail?x=/tail") == 0 &&
              length == 2,
        "%zu bytes", length);
    CHECK(strcmp(route_piece(&folder, "/files/a/b?c", &length), "a/b?c") == 0 && length == 3,
        "%zu bytes", length);
}

static void a_suffix_may_have_more_below(void) {
    static const struct route parts = {
        .path = "/files/", .suffix = "/parts/", .methods = { { "GET", .handle = nothing } }
    };
    const char *target = "/files/ab/parts/c/d?x=/";
    size_t length;
    CHECK(route_matches(&parts, "/files/ab/parts/c/d"), "below");
    CHECK(route_matches(&parts, "/files/ab/parts/"), "itself");
    CHECK(!route_matches(&parts, "/files/ab/parts"), "a path without the slash matches");
    CHECK(!route_matches(&parts, "/files//parts/c"), "a path with an empty piece matches");
    CHECK(!route_matches(&parts, "/files/a/b/parts/c"), "a path with two pieces matches");
    CHECK(route_piece(&parts, target, &length) == target + 7 && length == 2, "%zu bytes", length);
    CHECK(route_below(&parts, target, &length) == target + 16 && length == 3, "%zu bytes", length);
}

static void methods_are_found_and_listed(void) {
    char text[64];
    CHECK(route_find_method(&folder, "HEAD") == &folder.methods[0],
        "HEAD is not answered by GET's handler");
    CHECK(route_find_method(&folder, "PUT") == &folder.methods[1], "PUT");
    CHECK(!route_find_method(&folder, "POST"), "POST is found, which the route does not have");
    CHECK(!route_find_method(&folder, "get"), "a method in small letters is found");
    CHECK(route_find_method(&all, "DELETE") == &all.methods[3],
        "the last method of a full list is not found");
    CHECK(!route_find_method(&all, "PATCH"), "a method behind the end of a full list is found");
    CHECK_STRING(route_allow(&folder, text, sizeof(text)), "GET, HEAD, PUT, OPTIONS");
    CHECK_STRING(route_allow(&all, text, sizeof(text)), "GET, HEAD, PUT, POST, DELETE, OPTIONS");
}

static void content_types_are_compared_whole(void) {
    static const struct {
        const char *type;
        bool json, either;
    } rows[] = {
        { NULL, false, false },
        { "", false, false },
        { "application/json", true, true },
        { "Application/JSON", true, true },
        { "application/json ", true, true },
        { "application/json; charset=UTF-8", true, true },
        { "application/json;charset=\"utf-8\"", true, true },
        { "application/json; charset=latin1", false, false },
        { "application/json; charset=utf-8; a=b", false, false },
        { "application/json, text/plain", false, false },
        { "application/jsonp", false, false },
        { "text/plain", false, true },
        { "text/plain; application/json", false, false },
        { "application/x-www-form-urlencoded", false, false },
        { "multipart/form-data; boundary=x", false, false },
    };
    const struct route_method *json = &all.methods[2], *either = &folder.methods[1];
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        CHECK(route_takes(json, rows[i].type) == rows[i].json, "JSON: %s", rows[i].type);
        CHECK(route_takes(either, rows[i].type) == rows[i].either, "either: %s", rows[i].type);
        CHECK(!route_takes(&all.methods[0], rows[i].type), "GET accepts a body of type %s",
            rows[i].type);
        CHECK(route_takes(&file, rows[i].type) == !rows[i].type, "a file: %s", rows[i].type);
    }
    CHECK(route_takes(&file, "application/octet-stream"),
        "application/octet-stream is refused for a file");
}

/* RFC 2046, 5.1.1, without the characters that only a quoted boundary may have. */
static void forms_have_a_boundary(void) {
    static const struct {
        const char *type;
        bool taken;
    } rows[] = {
        { "multipart/form-data; boundary=xy", true },
        { "multipart/form-data; boundary=x", false },
        { "Multipart/Form-Data;boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW", true },
        { "multipart/form-data; boundary=\"a.b:c\"", true },
        { "multipart/form-data", false },
        { "multipart/form-data; boundary=", false },
        { "multipart/form-data; boundary=\"\"", false },
        { "multipart/form-data; boundary=\"a", false },
        { "multipart/form-data; boundary=a\"", false },
        { "multipart/form-data; boundary=a b", false },
        { "multipart/form-data; boundary=a; charset=utf-8", false },
        { "multipart/form-data; charset=utf-8", false },
        { "multipart/mixed; boundary=a", false },
        { "multipart/form-data; boundary="
          "0123456789012345678901234567890123456789012345678901234567890123456789",
            true },
        { "multipart/form-data; boundary="
          "01234567890123456789012345678901234567890123456789012345678901234567890",
            false },
    };
    static const char *const types[] = { content_type_form, NULL };
    const struct route_method form = { .name = "POST", .content_types = types };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        CHECK(route_takes(&form, rows[i].type) == rows[i].taken, "%s", rows[i].type);
}

static void the_daemon_s_paths_are_there(void) {
    static const char *const paths[] = { "/generate", "/health", "/health/ready", "/info",
        "/schedulers", "/loras", "/loras/rescan", "/metrics", "/jobs", "/train" };
    static const char *const of_a_job[] = { "/events", "/cancel", "/pause", "/resume" };
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
        const struct route *route = route_find(paths[i]);
        CHECK(route && strcmp(route->path, paths[i]) == 0, "%s", paths[i]);
    }
    const struct route *lora = route_find("/loras/rescan2");
    CHECK(lora && strcmp(lora->path, "/loras/") == 0,
        "a name below /loras/ does not lead to its route");
    CHECK(route_find("/") && !route_find("/a"), "/ is not found, or /a is");
    CHECK(!route_find("/nope"), "an unknown path is found");
    for (size_t i = 0; i < sizeof(of_a_job) / sizeof(of_a_job[0]); i++) {
        char path[32];
        snprintf(path, sizeof(path), "/jobs/a%s", of_a_job[i]);
        const struct route *route = route_find(path);
        CHECK(route && route->suffix && strcmp(route->suffix, of_a_job[i]) == 0, "%s", path);
    }
    const struct route *job = route_find("/jobs/a");
    CHECK(job && !job->suffix && job->is_prefix, "/jobs/a");
}

int main(void) {
    paths_are_exact_or_prefixes();
    a_suffix_follows_one_piece();
    a_suffix_may_have_more_below();
    methods_are_found_and_listed();
    content_types_are_compared_whole();
    forms_have_a_boundary();
    the_daemon_s_paths_are_there();
    return check_done();
}
