/* Normalization of texts, compared with utf8proc's own NFC. */
#include "models/tokenizer/tokenizer_text.h"

#include "tests/check.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

static void expect_same(const char *text, const char *expected) {
    char *found = NULL;
    size_t size;
    struct error err = { 0 };
    CHECK(text_normalize(text, strlen(text), &found, &size, &err), "%s", err.message);
    CHECK_STRING(found, expected);
    CHECK(found && strlen(found) == size, "%zu bytes", size);
    free(found);
}

/* Composed and plain letters with marks of several classes in any order. None of them has a
 * lower-case form. */
static void random_texts_are_nfc(void) {
    static const int32_t characters[] = { 'a', 'e', 0xe9, 0x3b1, 0x1f82, 0x344, 0x300, 0x301, 0x302,
        0x316, 0x31b, 0x323, 0x327, 0x334, 0x345, 0x5b0, 0x5c1, 0x653, 0x93c, 0x1100, 0x1161,
        0x11a8, 0xac00, 0x1d157, 0x1d165, 0x1fbe, 0xfb2a, 0x20d0, 0x1e69 };
    unsigned state = 7;
    for (int i = 0; i < 20000; i++) {
        utf8proc_uint8_t text[40 * 4 + 1];
        size_t used = 0;
        for (int k = 0; k < i % 40; k++) {
            state = state * 1664525 + 1013904223;
            const size_t which = (state >> 8) % (sizeof(characters) / sizeof(characters[0]));
            used += (size_t)utf8proc_encode_char(characters[which], text + used);
        }
        text[used] = 0;
        utf8proc_uint8_t *expected = utf8proc_NFC(text);
        expect_same((const char *)text, (const char *)expected);
        free(expected);
    }
}

/* Half a mebibyte of combining marks in the wrong order. With quadratic sorting this would take
 * hours. */
static void many_marks_are_ordered(void) {
    const size_t marks = 1 << 18;
    char *text = malloc(2 * marks + 1), *expected = malloc(2 * marks + 1);
    for (size_t i = 0; i < marks; i++) {
        memcpy(text + 2 * i, i < marks / 2 ? "\xcc\x81" : "\xcc\x96", 2);
        memcpy(expected + 2 * i, i < marks / 2 ? "\xcc\x96" : "\xcc\x81", 2);
    }
    text[2 * marks] = expected[2 * marks] = 0;
    expect_same(text, expected);
    free(expected);
    free(text);
}

int main(void) {
    random_texts_are_nfc();
    many_marks_are_ordered();
    return check_done();
}
