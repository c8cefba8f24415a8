/* Multipart forms as clients send them, cut into pieces of every length, and broken forms. RFC 7578
 * and RFC 2046 are the reference. */
#include "server/http/multipart.h"

#include "tests/check.h"
#define FORM_TYPE "multipart/form-data; boundary=\"xYz\""
#include "tests/server/openai/form.h"

#include <stdlib.h>

static char seen[4096];

static void note(const char *text, size_t size) {
    const size_t used = strlen(seen);
    snprintf(seen + used, sizeof(seen) - used, "%.*s", (int)size, text);
}

static bool begin(void *user, const char *name, const char *file_name, struct error *err) {
    (void)user;
    note("[", 1);
    note(name, strlen(name));
    if (file_name) {
        note("|", 1);
        note(file_name, strlen(file_name));
    }
    note("]", 1);
    return strcmp(name, "no") != 0 || error_field(err, "no", "", "nothing");
}

static bool write_part(void *user, const void *bytes, size_t size, struct error *err) {
    (void)user;
    (void)err;
    note(bytes, size);
    return true;
}

static bool read_form(const char *body, size_t size, size_t piece, struct error *err) {
    static const struct multipart_receiver receiver = { begin, write_part, NULL };
    memset(err, 0, sizeof(*err));
    seen[0] = 0;
    return form_read(body, size, piece, &receiver, err);
}

#define PART "Content-Disposition: form-data; name="

static void forms_come_apart_however_they_are_cut(void) {
    static const struct {
        const char *body, *seen;
    } rows[] = {
        { "--xYz\r\n" PART "\"prompt\"\r\n\r\na cat\r\n--xYz--\r\n", "[prompt]a cat" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n1\r\n--xYz\r\n" PART "\"b\"; filename=\"c.png\"\r\n"
          "Content-Type: image/png\r\n\r\nP\r\nN\r\n--\r\n--xY G\r\n--xYz--\r\n",
            "[a]1[b|c.png]P\r\nN\r\n--\r\n--xY G" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n\r\n--xYz\r\n" PART "\"b\"\r\n\r\n2\r\n--xYz--\r\n",
            "[a][b]2" },
        { "before\r\n--xYz\r\n" PART "\"a\"\r\n\r\n1\r\n--xYz--\r\n", "[a]1" },
        { "--xYz\r\n" PART "\"a\"\r\nContent-Transfer-Encoding: binary\r\n\r\n1\r\n--xYz--\r\n",
            "[a]1" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n1\r\n--xYz\r\n" PART "\"a\"\r\n\r\n2\r\n--xYz--\r\n",
            "[a]1[a]2" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t piece = 1; piece <= strlen(rows[i].body); piece++) {
            struct error err;
            CHECK(read_form(rows[i].body, strlen(rows[i].body), piece, &err), "%zu in %zu: %s", i,
                piece, err.message);
            CHECK(strcmp(seen, rows[i].seen) == 0, "%zu in %zu: %s", i, piece, seen);
        }
}

static void broken_forms_are_refused(void) {
    static const struct {
        const char *body, *words;
    } rows[] = {
        { "", "there is no part" },
        { "--xYz--\r\n", "there is no part" },
        { "{\"prompt\": \"a\"}", "there is no part" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n1", "its last boundary is missing" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n1\r\n--xYz\r\n", "its last boundary is missing" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n1\r\n--xYz", "its last boundary is missing" },
        { "--xYz\r\n" PART "\"a\"\r\n\r\n1\r\n--xYz--\r\nmore", "broken" },
        { "--xYz\r\n\r\n1\r\n--xYz--\r\n", "names" },
        { "--xYz\r\n" PART "\"\"\r\n\r\n1\r\n--xYz--\r\n", "names" },
        { "--xYz\r\n" PART "a\r\n\r\n1\r\n--xYz--\r\n", "names" },
        { "--xYz\r\n" PART "\"a\"\r\nContent-Transfer-Encoding: base64\r\n\r\nMQ==\r\n--xYz--\r\n",
            "parts as they are" },
        { "--xYz\r\n" PART "\"no\"\r\n\r\n1\r\n--xYz--\r\n", "nothing" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (size_t piece = 1; piece <= 64; piece *= 4) {
            struct error err;
            CHECK(!read_form(rows[i].body, strlen(rows[i].body), piece, &err),
                "row %zu was accepted", i);
            CHECK(err.code == ERROR_INVALID, "%zu: %d", i, err.code);
            CHECK_CONTAINS(err.message, rows[i].words);
        }
}

static void heads_and_parts_have_limits(void) {
    struct error err;
    const size_t size = 200000;
    char *body = malloc(size);
    int used = snprintf(body, size, "--xYz\r\n" PART "\"");
    memset(body + used, 'a', 70000);
    used += 70000;
    used += snprintf(body + used, size - (size_t)used, "\"\r\n\r\n1\r\n--xYz--\r\n");
    CHECK(!read_form(body, (size_t)used, 4096, &err),
        "a part with a name of 70000 bytes was accepted");
    CHECK_CONTAINS(err.message, "broken");
    used = snprintf(body, size, "--xYz\r\n" PART "\"%0129d\"\r\n\r\n1\r\n--xYz--\r\n", 0);
    CHECK(
        !read_form(body, (size_t)used, 4096, &err), "a part with a name of 129 bytes was accepted");
    CHECK_CONTAINS(err.message, "at most 128 bytes");
    used = 0;
    for (int i = 0; i < 65; i++)
        used += snprintf(
            body + used, size - (size_t)used, "--xYz\r\n" PART "\"p%d\"\r\n\r\n1\r\n", i);
    used += snprintf(body + used, size - (size_t)used, "--xYz--\r\n");
    CHECK(!read_form(body, (size_t)used, 4096, &err), "65 parts");
    CHECK_CONTAINS(err.message, "at most 64");
    free(body);
}

/* Two bodies of 32 MiB without a part: one of text without a boundary, which is searched byte by
 * byte, and one of header lines. Each must be refused early, and parsing must not take quadratic
 * time. */
static void there_is_a_part_soon(void) {
    static const char *const bodies[][2] = { { "", "-" }, { "--xYz\r\n", "a\n" } };
    const size_t size = 32 << 20;
    char *body = malloc(size);
    for (size_t i = 0; i < 2; i++) {
        const size_t begin = strlen(bodies[i][0]), length = strlen(bodies[i][1]);
        memcpy(body, bodies[i][0], begin);
        for (size_t at = begin; at < size; at++)
            body[at] = bodies[i][1][(at - begin) % length];
        for (size_t piece = 4096; piece <= size; piece *= 64) {
            struct error err;
            CHECK(!read_form(body, size, piece, &err), "row %zu was accepted", i);
            CHECK_CONTAINS(err.message, "no part in 65536 bytes");
        }
    }
    free(body);
}

int main(void) {
    forms_come_apart_however_they_are_cut();
    broken_forms_are_refused();
    heads_and_parts_have_limits();
    there_is_a_part_soon();
    return check_done();
}
