/* Tests base64 with the test vectors of RFC 4648 (section 10), and with input that is not
 * base64. */
#include "base/text/base64.h"
#include "tests/check.h"

#include <stdint.h>
#include <stdlib.h>

static const struct {
    const char *bytes, *text;
} vectors[] = { { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" }, { "foo", "Zm9v" },
    { "foob", "Zm9vYg==" }, { "fooba", "Zm9vYmE=" }, { "foobar", "Zm9vYmFy" } };

static void vectors_both_ways(void) {
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        size_t length, size, wrong;
        void *bytes;
        char *text = base64_encode(vectors[i].bytes, strlen(vectors[i].bytes), &length);
        CHECK_STRING(text, vectors[i].text);
        CHECK(base64_decode(vectors[i].text, strlen(vectors[i].text), &bytes, &size, &wrong),
            "%s: wrong at %zu", vectors[i].text, wrong);
        CHECK(size == strlen(vectors[i].bytes) && memcmp(bytes, vectors[i].bytes, size) == 0,
            "%s: %zu bytes", vectors[i].text, size);
        free(bytes);
        free(text);
    }
}

/* Every byte value at every position in a group of three. */
static void all_bytes_come_back(void) {
    uint8_t bytes[259];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(i * 7);
    for (size_t from = 0; from < 3; from++) {
        size_t length, size, wrong;
        void *back;
        char *text = base64_encode(bytes + from, sizeof(bytes) - from, &length);
        CHECK(base64_decode(text, length, &back, &size, &wrong), "wrong at %zu", wrong);
        CHECK(size == sizeof(bytes) - from && memcmp(back, bytes + from, size) == 0, "%zu", size);
        free(back);
        free(text);
    }
}

static void what_is_wrong_is_found(void) {
    static const struct {
        const char *text;
        size_t wrong;
    } cases[] = { { "A", 1 }, { "AA", 2 }, { "AAA", 3 }, { "=", 1 }, { "A===", 1 }, { "====", 0 },
        { "AB==", 1 }, { "AAB=", 2 }, { "AA=A", 2 }, { "AAA=AAAA", 3 }, { "AA AA", 2 },
        { "AAAA\n", 4 }, { "AA-_", 2 }, { "AAAAA", 5 } };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t size, wrong = 99;
        void *bytes;
        CHECK(!base64_decode(cases[i].text, strlen(cases[i].text), &bytes, &size, &wrong),
            "\"%s\" was taken", cases[i].text);
        CHECK(wrong == cases[i].wrong, "\"%s\": wrong at %zu, not %zu", cases[i].text, wrong,
            cases[i].wrong);
    }
}

/* RFC 4648, section 3.5: the last digit's unused bits must be 0. "XX==" has four of them, "XXX="
 * has two. */
static void bits_that_no_byte_takes_are_zero(void) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    int taken[3] = { 0 };
    for (int padding = 1; padding <= 2; padding++)
        for (int value = 0; value < 64; value++) {
            char text[5] = "QQ==";
            size_t size, wrong;
            void *bytes;
            if (padding == 1)
                text[2] = 'Q';
            text[3 - padding] = digits[value];
            const bool ok = base64_decode(text, 4, &bytes, &size, &wrong);
            const int rest = value & (padding == 2 ? 15 : 3);
            CHECK(ok == (rest == 0), "\"%s\" was %s", text, ok ? "taken" : "refused");
            taken[padding] += ok;
            if (ok)
                free(bytes);
        }
    printf("of 64 last digits %d are taken before \"==\", %d before \"=\"\n", taken[2], taken[1]);
}

int main(void) {
    vectors_both_ways();
    bits_that_no_byte_takes_are_zero();
    all_bytes_come_back();
    what_is_wrong_is_found();
    return check_done();
}
