/* The texts in picture files that Pillow wrote (tests/reference/picture_texts.py), and in our
 * own. */
#include "pictures/texts.h"

#include "pictures/encode.h"
#include "tests/check.h"
#include "tests/pictures/chunks.h"
#include "tests/pictures/read_whole.h"

#include <stdlib.h>

#define LATIN "a caf\xc3\xa9\nSteps: 20"
#define WIDE "ein B\xc3\xa4r, \xe7\x8c\xab \xf0\x9f\x90\x88\nSteps: 20"

static void files_of_others(void) {
    static const struct {
        const char *name, *keyword, *text;
        size_t count;
    } rows[] = {
        { "plain.png", "parameters", LATIN, 2 },
        { "plain.png", "Software", "x", 2 },
        { "wide.png", "parameters", WIDE, 1 },
        { "packed.png", "parameters", LATIN, 2 },
        { "twice.png", "parameters", "second", 2 },
        { "behind.png", "parameters", "behind the pixels", 2 },
        { "behind.png", "Comment", "before", 2 },
        { "none.png", NULL, NULL, 0 },
        { "comment.jpg", "parameters", WIDE, 1 },
        { "big.jpg", "parameters", WIDE, 1 },
        { "ascii.jpg", "parameters", "a cat", 1 },
        { "comment.webp", "parameters", WIDE, 1 },
        { "none.jpg", NULL, NULL, 0 },
        { "none.webp", NULL, NULL, 0 },
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct picture_text_list texts = { 0 };
        struct error err = { 0 };
        size_t size = 0;
        char *bytes = read_whole(rows[i].name, &size);
        CHECK(picture_read_texts(bytes, size, &texts, &err), "%s: %s", rows[i].name, err.message);
        CHECK(texts.count == rows[i].count, "%s: %zu texts", rows[i].name, texts.count);
        if (rows[i].keyword)
            CHECK_STRING(picture_text_list_find(&texts, rows[i].keyword), rows[i].text);
        CHECK(!picture_text_list_find(&texts, "nothing"), "%s", rows[i].name);
        picture_text_list_finish(&texts);
        free(bytes);
    }
}

static void our_own_come_back(void) {
    static const uint8_t rgb[16 * 16 * 3];
    for (int format = 0; format < PICTURE_FORMATS; format++) {
        const struct picture_encoding encoding = { (enum picture_format)format, 90,
            { WIDE, "{\"a\":1}" } };
        struct picture_text_list texts = { 0 };
        struct error err = { 0 };
        uint8_t *file = NULL;
        size_t size = 0;
        CHECK(picture_encode(rgb, 16, 16, &encoding, &file, &size, &err), "%s", err.message);
        CHECK(picture_read_texts(file, size, &texts, &err), "%s", err.message);
        CHECK_STRING(picture_text_list_find(&texts, "parameters"), WIDE);
        CHECK_STRING(
            picture_text_list_find(&texts, format == PICTURE_PNG ? "latentd" : "ImageDescription"),
            "{\"a\":1}");
        picture_text_list_finish(&texts);
        free(file);
    }
}

/* Each file cut at every byte, and with every byte changed, is refused or read. Sanitizers detect
 * bad accesses. */
static void damaged_ones_do_no_harm(void) {
    static const char *const names[] = { "plain.png", "packed.png", "comment.jpg", "comment.webp" };
    int read = 0, refused = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        size_t size = 0;
        char *bytes = read_whole(names[i], &size);
        for (size_t at = 0; at < size; at++) {
            struct picture_text_list texts;
            struct error err = { 0 };
            char *cut = malloc(at + 1); /* an exact copy, so sanitizers see overruns */
            memcpy(cut, bytes, at);
            if (picture_read_texts(cut, at, &texts, &err)) {
                picture_text_list_finish(&texts);
                read++;
            } else {
                CHECK(err.message[0], "%s cut at %zu", names[i], at);
                refused++;
            }
            free(cut);
            bytes[at] = (char)(bytes[at] ^ 0xff);
            if (picture_read_texts(bytes, size, &texts, &err))
                picture_text_list_finish(&texts);
            bytes[at] = (char)(bytes[at] ^ 0xff);
        }
        free(bytes);
    }
    printf("cut files: %d read, %d refused\n", read, refused);
    struct picture_text_list texts;
    struct error err = { 0 };
    CHECK(!picture_read_texts("GIF89a", 6, &texts, &err), "a GIF");
    CHECK_STRING(err.message, "it is no PNG, JPEG or WebP file");
}

static void packed_texts_have_a_limit(void) {
    struct png_file one = png_file_with_texts(7 << 20, 0), many = png_file_with_texts(7 << 20, 200);
    struct picture_text_list texts;
    struct error err = { 0 };
    const size_t before = memory_peak_bytes();
    CHECK(!picture_read_texts(many.bytes, many.size, &texts, &err), "texts of 1.4 GiB are read");
    const size_t more = memory_peak_bytes() - before;
    CHECK(err.code == ERROR_TOO_LARGE, "%s", err.message);
    CHECK(more < 500 << 20, "%zu MiB", more >> 20); /* usually 49 MiB, more with ThreadSanitizer */
    printf("a PNG of %zu bytes with 201 texts of 7 MiB: %zu MiB, then %s\n", many.size, more >> 20,
        err.message);
    CHECK(picture_read_texts(one.bytes, one.size, &texts, &err), "%s", err.message);
    CHECK(texts.count == 1 && strlen(texts.items[0].text) == 7 << 20,
        "one text of 7 MiB is not read in full");
    picture_text_list_finish(&texts);
    free(many.bytes);
    free(one.bytes);
}

int main(int argc, char **argv) {
    folder = argc == 2 ? argv[1] : ".";
    files_of_others();
    our_own_come_back();
    damaged_ones_do_no_harm();
    packed_texts_have_a_limit();
    return check_done();
}
