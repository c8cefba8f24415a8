/* The query of a request's target: what is accepted, what is refused, and which name the error
 * gives. */
#include "server/http/query.h"
#include "tests/check.h"

static void reads(const char *target, const char *a, const char *b) {
    struct query_field fields[] = { { "a" }, { "bc" } };
    struct error err = { 0 };
    CHECK(query_parse(target, fields, 2, &err), "%s: %s", target, err.message);
    const char *expected[] = { a, b };
    for (int i = 0; i < 2; i++) {
        CHECK(fields[i].given == (expected[i] != NULL), "%s: %s", target, fields[i].name);
        CHECK(!expected[i] || strcmp(fields[i].value, expected[i]) == 0, "%s: \"%s\"", target,
            fields[i].value);
    }
}

static void refuses(const char *target, const char *param, const char *words) {
    struct query_field fields[] = { { "a" }, { "bc" } };
    struct error err = { 0 };
    CHECK(!query_parse(target, fields, 2, &err), "%s was accepted", target);
    CHECK(strcmp(err.param, param) == 0, "%s: %s", target, err.param);
    CHECK_CONTAINS(err.message, words);
}

static void integer(const char *text, bool ok, long long expected) {
    struct query_field field = { "n", .given = text };
    struct error err = { 0 };
    long long value = -7;
    snprintf(field.value, sizeof(field.value), "%s", text ? text : "");
    CHECK(query_integer(&field, 2, 50, &value, &err) == ok, "%s: %s", text, err.message);
    CHECK(value == expected, "%s: %lld", text, value);
}

int main(void) {
    char target[QUERY_VALUE_BYTES + 8] = "/x?a=";
    reads("/x", NULL, NULL);
    reads("/x?", NULL, NULL);
    reads("/x?a=1", "1", NULL);
    reads("/x?bc=2&a=1", "1", "2");
    reads("/x?a", "", NULL);
    reads("/x?a=&&bc==", "", "=");
    reads("/x?a=%41%2c+%C3%bc", "A, \xc3\xbc", NULL);
    refuses("/x?a=%4", "a", "rightly escaped");
    refuses("/x?a=%", "a", "rightly escaped");
    refuses("/x?a=%zz", "a", "rightly escaped");
    refuses(
        "/x?a=%4&bc=1", "a", "rightly escaped"); /* "%4&b" is no escape, despite its hex digits */
    refuses("/x?a=%00", "a", "rightly escaped");
    refuses("/x?a=1&a=1", "a", "given twice");
    refuses("/x?b=1", "query", "b is not allowed; one of a, bc");
    refuses("/x?bcd", "query", "bcd is not allowed");
    refuses("/x?=1", "query", "(empty) is not allowed");
    memset(target + 5, 'v', QUERY_VALUE_BYTES - 1);
    reads(target, target + 5, NULL);
    target[5 + QUERY_VALUE_BYTES - 1] = 'v';
    refuses(target, "a", "at most 255 bytes");
    struct error err = { 0 };
    CHECK(query_none("/x", &err) && query_none("/x?", &err), "a target without a query is refused");
    CHECK(!query_none("/x?a", &err), "a query is accepted where none is allowed");
    CHECK_CONTAINS(err.message, "a is not allowed; no query here");
    integer(NULL, true, -7);
    integer("2", true, 2);
    integer("50", true, 50);
    integer("007", true, 7);
    integer("1", false, -7);
    integer("51", false, -7);
    integer("", false, -7);
    integer("-3", false, -7);
    integer("+3", false, -7);
    integer(" 3", false, -7);
    integer("3x", false, -7);
    integer("99999999999999999999999999", false, -7);
    return check_done();
}
