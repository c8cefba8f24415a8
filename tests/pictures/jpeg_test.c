/* JPEG files of all kinds decode to the same bytes as with Pillow, which tests/reference/jpegs.py
 * recorded. */
#include "base/sha256.h"
#include "pictures/picture.h"
#include "tests/check.h"
#include "tests/pictures/chunks.h"
#include "tests/pictures/read_whole.h"

#include <stdlib.h>

struct line {
    char name[64], digest[DIGEST_TEXT_BYTES];
    size_t size;
    int width, height;
};

/* Returns whether the file decodes to the recorded picture. Its bytes are first copied to a block
 * of exactly their size, so that sanitizers detect a read past the end. */
static bool is_what_pillow_reads(const struct line *line, const char *bytes) {
    struct picture picture = { 0 };
    struct error err = { 0 };
    char found[DIGEST_TEXT_BYTES] = "";
    char *copy = malloc(line->size);
    memcpy(copy, bytes, line->size);
    if (picture_decode(copy, line->size, &picture, &err)) {
        const struct digest digest = sha256_of(
            picture.pixels, (size_t)picture.width * (size_t)picture.height * 3);
        digest_to_text(&digest, found);
    }
    free(copy);
    const bool is_right = picture.width == line->width && picture.height == line->height &&
                          strcmp(found, line->digest) == 0;
    CHECK(is_right, "%s: %dx%d px, %s; Pillow's are %dx%d px, %s; %s", line->name, picture.width,
        picture.height, found, line->width, line->height, line->digest, err.message);
    picture_finish(&picture);
    return is_right;
}

/* Reads the next line of the table; returns false at its end. */
static bool next_line(const char **table, struct line *line) {
    int used = 0;
    const bool there = sscanf(*table, "%63s %zu %d %d %64s\n%n", line->name, &line->size,
                           &line->width, &line->height, line->digest, &used) == 5;
    *table += used;
    return there;
}

static void files_are_what_pillow_reads(const char *table, const char *files, size_t size) {
    size_t at = 0;
    int count = 0, equal = 0;
    for (struct line line; next_line(&table, &line) && line.size <= size - at; count++) {
        equal += is_what_pillow_reads(&line, files + at);
        at += line.size;
    }
    printf("%d of %d files: every byte is Pillow's\n", equal, count);
    CHECK(count >= 200 && at == size && !*table, "%d files, %zu of %zu bytes, left: %.40s", count,
        at, size, table);
}

/* Returns a copy of the file `name` whose header states a size of side_px x side_px. The caller
 * frees it. */
static uint8_t *enlarged(
    const char *name, int side_px, const char *table, const char *files, size_t *size) {
    static const uint8_t frame[] = { 0xff, 0xc2 };
    struct line line;
    while (next_line(&table, &line) && strcmp(line.name, name) != 0)
        files += line.size;
    CHECK_STRING(line.name, name);
    uint8_t *copy = malloc(line.size);
    memcpy(copy, files, line.size);
    uint8_t *at = memmem(copy, line.size, frame, sizeof(frame));
    CHECK(at != NULL, "%s: no progressive frame", name);
    for (int i = 0; at && i < 2; i++) {
        at[5 + 2 * i] = (uint8_t)(side_px >> 8);
        at[6 + 2 * i] = (uint8_t)side_px;
    }
    *size = line.size;
    return copy;
}

/* libjpeg keeps progressive pictures whole in memory. Decoding them must not take more than the
 * estimate. */
static void large_pictures_take_what_was_said(const char *table, const char *files) {
    static const struct {
        const char *name;
        int side_px; /* increasing, because peak memory never falls */
    } rows[] = { { "33x31_grey_progressive", 2000 }, { "33x31_420_progressive", 3000 },
        { "33x31_444_progressive", 4000 }, { "cmyk_progressive", 5000 } };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        size_t size;
        uint8_t *file = enlarged(rows[i].name, rows[i].side_px, table, files, &size);
        struct picture picture = { 0 };
        struct picture_info info = { 0 };
        struct error err = { 0 };
        const size_t before = memory_peak_bytes();
        CHECK(picture_examine(file, size, &info, &err), "%s", err.message);
        CHECK(picture_decode(file, size, &picture, &err), "%s: %s", rows[i].name, err.message);
        const size_t more = memory_peak_bytes() - before;
        printf("%s of %d px: %zu MiB more, %zu MiB were said\n", rows[i].name, rows[i].side_px,
            more >> 20, info.decode_bytes >> 20);
        CHECK(more <= info.decode_bytes, "%zu bytes, %zu were said", more, info.decode_bytes);
        picture_finish(&picture);
        free(file);
    }
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    folder = argv[1];
    size_t size, table_size;
    char *table = read_whole("jpegs.tsv", &table_size), *files = read_whole("jpegs.bin", &size);
    files_are_what_pillow_reads(table, files, size);
    large_pictures_take_what_was_said(table, files);
    free(files);
    free(table);
    return check_done();
}
