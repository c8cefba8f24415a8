/* Key files, the key in an Authorization header (digests made with sha256sum, base64 with base64),
 * the comparison with all digests, the counting of failures, and which requests count as one
 * caller. */
#include "server/access/authorization.h"
#include "server/access/failures.h"
#include "server/http/caller.h"
#include "server/keys/keys.h"

#include "tests/check.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* printf %s alice-key | sha256sum */
#define ALICE "72ee9d4355ccb9d3a4c9dbf37382e38e75c1b1a225b5bd1f729ee91bbda30c20"

static char *file_of(int count) {
    char *text = malloc((size_t)count * 96 + 1);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        char secret[32], digest[DIGEST_TEXT_BYTES];
        snprintf(secret, sizeof(secret), "secret %d", i);
        const struct digest of = sha256_of(secret, strlen(secret));
        digest_to_text(&of, digest);
        used += (size_t)snprintf(text + used, 96, "key%d %s\n", i, digest);
    }
    return text;
}

static void every_key_is_found_and_no_other(void) {
    const int count = 300;
    char *text = file_of(count);
    struct api_keys *keys;
    struct error err = { 0 };
    CHECK(api_keys_parse(text, strlen(text), &keys, &err), "%s", err.message);
    CHECK(api_keys_count(keys) == count, "%d keys", api_keys_count(keys));
    int found = 0, flipped = 0;
    unsigned rights;
    for (int i = 0; i < count; i++) {
        char secret[32], name[32];
        snprintf(secret, sizeof(secret), "secret %d", i);
        snprintf(name, sizeof(name), "key%d", i);
        struct digest digest = sha256_of(secret, strlen(secret));
        const char *is = api_keys_find(keys, &digest, &rights);
        found += is && strcmp(is, name) == 0;
        for (int bit = 0; bit < 256; bit++) { /* every bit of the digest must be compared */
            digest.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            flipped += api_keys_find(keys, &digest, &rights) != NULL;
            digest.bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
    }
    CHECK(found == count, "%d of %d found", found, count);
    CHECK(flipped == 0, "%d digests with one other bit found", flipped);
    const struct digest zero = { { 0 } };
    CHECK(!api_keys_find(keys, &zero, &rights), "a digest of zeros is found");
    printf("%d keys found by name, %d digests one bit away are not\n", found, count * 256);
    api_keys_destroy(keys);
    free(text);
}

static void equality_looks_at_every_byte(void) {
    struct digest a = sha256_of("a", 1), b = a;
    CHECK(digest_equals(&a, &b), "a digest is not itself");
    int equal = 0;
    for (int byte = 0; byte < 32; byte++)
        for (int other = 0; other < 256; other++) {
            b = a;
            b.bytes[byte] = (uint8_t)other;
            equal += digest_equals(&a, &b);
        }
    CHECK(equal == 32, "%d of 8192 are equal, not 32", equal);
}

static void wrong_files_are_refused_by_line(void) {
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "alice", "line 1: behind the name" },
        { "alice 12", "line 1: behind the name" },
        { "# all\n\nalice " ALICE "0\n", "line 3: behind the name" },
        { "alice " ALICE " more\n", "line 1: behind the digest may come priority and all-jobs" },
        { "alice " ALICE " priority all-jobs\n", "line 1: behind the digest" },
        { "alice " ALICE " priority,\n", "line 1: behind the digest" },
        { "alice " ALICE " priority,priority\n", "line 1: behind the digest" },
        { "ali:ce " ALICE "\n", "line 1: a name is" },
        { ".alice " ALICE "\n", "line 1: a name is" },
        { "al\xc3\xa9 " ALICE "\n", "line 1: a name is" },
        { "alice " ALICE "\nalice 0" ALICE "\n", "line 2: behind" },
        { "alice " ALICE "\nbob " ALICE "\n", "line 2: this key" },
        { "alice " ALICE "\nalice " ALICE "\n", "line 2: this name" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct api_keys *keys = NULL;
        struct error err = { 0 };
        CHECK(!api_keys_parse(rows[i].text, strlen(rows[i].text), &keys, &err), "row %zu", i);
        CHECK(strstr(err.message, rows[i].says), "row %zu: %s", i, err.message);
    }
    struct api_keys *keys = NULL;
    struct error err = { 0 };
    const char *right = "# keys\r\n\r\n  alice\t " ALICE " \r\nbob.2_- " ALICE "";
    char text[256];
    snprintf(text, sizeof(text), "%s", right);
    text[strlen(text) - 1] ^= 1; /* changes a digit */
    CHECK(api_keys_parse(text, strlen(text), &keys, &err), "%s", err.message);
    CHECK(api_keys_count(keys) == 2 && api_keys_has_name(keys, "bob.2_-"),
        "the file's two keys are not read");
    api_keys_destroy(keys);
    CHECK(api_keys_parse("", 0, &keys, &err) && api_keys_count(keys) == 0,
        "an empty file is refused or has keys");
    api_keys_destroy(keys);
}

static void keys_have_rights(void) {
    static const struct {
        const char *text;
        unsigned rights;
    } rows[] = {
        { "", 0 },
        { " priority", KEY_MAY_PRIORITY },
        { "\t all-jobs \r", KEY_MAY_ALL_JOBS },
        { " priority,all-jobs", KEY_MAY_EVERYTHING },
        { " all-jobs,priority", KEY_MAY_EVERYTHING },
    };
    const struct digest digest = sha256_of("secret", 6);
    char text[DIGEST_TEXT_BYTES], line[200];
    digest_to_text(&digest, text);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct api_keys *keys = NULL;
        struct error err = { 0 };
        unsigned rights = 99;
        snprintf(line, sizeof(line), "alice %s%s\n", text, rows[i].text);
        CHECK(api_keys_parse(line, strlen(line), &keys, &err), "row %zu: %s", i, err.message);
        CHECK(keys && api_keys_find(keys, &digest, &rights) && rights == rows[i].rights,
            "row %zu: rights %u, not %u", i, rights, rows[i].rights);
        api_keys_destroy(keys);
    }
    printf("%zu sets of rights\n", sizeof(rows) / sizeof(rows[0]));
}

static void headers_present_keys(void) {
    struct digest alice;
    char text[DIGEST_TEXT_BYTES] = "";
    if (authorization_digest("Bearer alice-key", 16, &alice))
        digest_to_text(&alice, text);
    CHECK(strcmp(text, ALICE) == 0, "%s", text);
    char longest[KEY_MAX_BYTES + 16], too_long[KEY_MAX_BYTES + 16];
    snprintf(longest, sizeof(longest), "Bearer %0*d", KEY_MAX_BYTES, 7);
    snprintf(too_long, sizeof(too_long), "Bearer %0*d", KEY_MAX_BYTES + 1, 7);
    const struct {
        const char *value, *key; /* NULL: no key in it */
    } rows[] = {
        { "Bearer alice-key", "alice-key" },
        { "bEARER   alice-key", "alice-key" },
        { "Bearer a.b_c~d+e/f==", "a.b_c~d+e/f==" },
        { longest, longest + 7 },
        { too_long, NULL },
        { "Bearer", NULL },
        { "Bearer ", NULL },
        { "Bearer =", NULL },
        { "Bearer two words", NULL },
        { "Bearer a=b", NULL },
        { "Bearer k\xc3\xa9y", NULL },
        { "Bearertoken", NULL },
        { "alice-key", NULL },
        { "", NULL },
        { "Token alice-key", NULL },
        { "Digest username=\"a\"", NULL },
        { "Basic YWxpY2Uta2V5", "alice-key" },         /* alice-key */
        { "basic OmFsaWNlLWtleQ==", "alice-key" },     /* :alice-key */
        { "Basic dXNlcjphbGljZS1rZXk=", "alice-key" }, /* user:alice-key */
        { "Basic dXNlcjphOmI=", "a:b" },               /* user:a:b */
        { "Basic dXNlcjprw6l5", "k\xc3\xa9y" },        /* user:kéy */
        { "Basic dXNlcjo=", NULL },                    /* user: */
        { "Basic dXNlcjphAGI=", NULL },                /* user:a\0b */
        { "Basic dXNlcjphbGljZS1rZXk", NULL },         /* without its padding */
        { "Basic user:alice-key", NULL },
        { "Basic ", NULL },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct digest digest;
        const bool presents = authorization_digest(rows[i].value, strlen(rows[i].value), &digest);
        CHECK(presents == (rows[i].key != NULL), "row %zu: %.40s", i, rows[i].value);
        const struct digest wanted = sha256_of(
            rows[i].key ? rows[i].key : "", strlen(rows[i].key ? rows[i].key : ""));
        CHECK(!presents || digest_equals(&digest, &wanted), "row %zu: %.40s", i, rows[i].value);
    }
}

static struct sockaddr_storage address_from(const char *text) {
    struct sockaddr_storage address = { 0 };
    struct sockaddr_in *v4 = (struct sockaddr_in *)&address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&address;
    address.ss_family = AF_INET;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1)
        return address;
    address.ss_family = AF_INET6;
    CHECK(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1, "%s", text);
    return address;
}

static struct peer peer_from(const char *text, bool *local) {
    const struct sockaddr_storage address = address_from(text);
    *local = peer_is_local((const struct sockaddr *)&address);
    return peer_of((const struct sockaddr *)&address);
}

static void peers_are_counted_by_address(void) {
    static const struct {
        const char *a, *b;
        bool same, local;
    } rows[] = {
        { "10.0.0.1", "10.0.0.1", true, false },
        { "10.0.0.1", "10.0.0.2", false, false },
        { "10.0.0.1", "::ffff:10.0.0.1", true, false },
        { "2001:db8::1", "2001:db8::ffff:0:0:2", true, false }, /* one network */
        { "2001:db8::1", "2001:db8:0:1::1", false, false },
        { "127.0.0.1", "127.0.0.2", false, true },
        { "::1", "::ffff:127.0.0.1", false, true },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool local_a, local_b;
        const struct peer a = peer_from(rows[i].a, &local_a), b = peer_from(rows[i].b, &local_b);
        CHECK((memcmp(&a, &b, sizeof(a)) == 0) == rows[i].same, "%s, %s", rows[i].a, rows[i].b);
        CHECK(local_a == rows[i].local && local_b == rows[i].local, "%s", rows[i].a);
    }
}

static void failures_make_a_peer_wait_out_its_minute(void) {
    static struct failures failures;
    bool local;
    const struct peer bad = peer_from("10.0.0.1", &local), good = peer_from("10.0.0.2", &local);
    for (int i = 0; i < KEY_FAILURES_MAX; i++) {
        CHECK(failures_wait_ms(&failures, &bad, 1000 + i) == 0, "failure %d", i);
        failures_add(&failures, &bad, 1000 + i);
    }
    CHECK(
        failures_wait_ms(&failures, &bad, 2000) == 59000, "the wait is not the rest of the minute");
    CHECK(failures_wait_ms(&failures, &good, 2000) == 0, "another peer has to wait");
    CHECK(failures_wait_ms(&failures, &bad, 61000) == 0, "the peer has to wait after the minute");
    failures_add(&failures, &bad, 61000);
    CHECK(failures_wait_ms(&failures, &bad, 61001) == 0,
        "a failure after the minute is not counted as the first");
    for (int i = 0; i < KEY_FAILURES_MAX; i++)
        failures_add(&failures, &bad, 62000);
    for (int i = 0; i < 2 * FAILURES_PEERS_MAX; i++) { /* many peers that fail once each */
        struct peer other = { { 4, 11, 0, (uint8_t)(i >> 8), (uint8_t)i } };
        failures_add(&failures, &other, 63000 + i);
        failures_add(&failures, &bad, 63000 + i);
    }
    CHECK(failures_wait_ms(&failures, &bad, 64000) > 0,
        "a peer that fails often is forgotten for others");
}

static void a_caller_is_a_key_or_else_an_address(void) {
    static const struct {
        const char *key, *address, *caller;
    } rows[] = {
        { "alice", "10.0.0.1", "key alice" },
        { "alice", NULL, "key alice" },
        { "", "10.0.0.1", "ip 10.0.0.1" },
        { "", "::ffff:10.0.0.1", "ip 10.0.0.1" },
        { "", "2001:db8:1:2:3:4:5:6", "ip 2001:db8:1:2::/64" },
        { "", "2001:db8:1:2:ffff::1", "ip 2001:db8:1:2::/64" },
        { "", "2001:db8:1:3::1", "ip 2001:db8:1:3::/64" },
        { "", NULL, "unix" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct sockaddr_storage address;
        if (rows[i].address)
            address = address_from(rows[i].address);
        const struct caller caller = caller_make(
            rows[i].key, rows[i].address ? (const struct sockaddr *)&address : NULL);
        CHECK(strcmp(caller.text, rows[i].caller) == 0, "'%s', not '%s'", rows[i].caller,
            caller.text);
    }
}

int main(void) {
    every_key_is_found_and_no_other();
    equality_looks_at_every_byte();
    wrong_files_are_refused_by_line();
    keys_have_rights();
    headers_present_keys();
    peers_are_counted_by_address();
    failures_make_a_peer_wait_out_its_minute();
    a_caller_is_a_key_or_else_an_address();
    return check_done();
}
