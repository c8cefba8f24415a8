/* SHA-256 against the examples of FIPS 180-4 (NIST's "SHA_All", and a million times "a"), hashed in
 * one piece and in many. */
#include "base/sha256.h"
#include "tests/check.h"

#include <stdlib.h>

static void digest_is(const struct digest *digest, const char *wanted) {
    char text[DIGEST_TEXT_BYTES];
    digest_to_text(digest, text);
    CHECK(strcmp(text, wanted) == 0, "%s is not %s", text, wanted);
}

int main(void) {
    static const struct {
        const char *text, *digest;
    } rows[] = {
        { "", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855" },
        { "abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" },
        { "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1" },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct digest digest = sha256_of(rows[i].text, strlen(rows[i].text));
        digest_is(&digest, rows[i].digest);
    }
    char *many = malloc(1000000);
    memset(many, 'a', 1000000);
    for (size_t piece = 1; piece <= 1000000; piece = piece * 3 + 1) {
        struct sha256 sha;
        sha256_begin(&sha);
        for (size_t at = 0; at < 1000000; at += piece)
            sha256_add(&sha, many + at, at + piece < 1000000 ? piece : 1000000 - at);
        const struct digest digest = sha256_end(&sha);
        digest_is(&digest, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
    free(many);
    return check_done();
}
