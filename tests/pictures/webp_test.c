/* WebP files of all kinds decode to the same bytes as with Pillow, which tests/reference/webps.py
 * recorded; animated and damaged files are refused with a reason. */
#include "base/sha256.h"
#include "pictures/picture.h"
#include "tests/check.h"
#include "tests/pictures/read_whole.h"

#include <stdlib.h>

struct line {
    char name[64], rest[160];
    size_t size;
};

/* Reads the next line of a table; returns false at its end. */
static bool next_line(const char **table, struct line *line) {
    int used = 0;
    const bool there = sscanf(*table, "%63s %zu %159[^\n]\n%n", line->name, &line->size, line->rest,
                           &used) == 3;
    *table += used;
    return there;
}

/* Returns a copy in a block of exactly its size, so that sanitizers detect a read past the end. */
static char *copy_of(const char *bytes, size_t size) {
    char *copy = malloc(size ? size : 1);
    memcpy(copy, bytes, size);
    return copy;
}

/* Writes the number of white pixels of the transparency and the sum of their positions. */
static void count_holes(const char *file, size_t size, char *out, size_t out_size) {
    struct picture holes = { 0 };
    struct error err = { 0 };
    long long sum = 0;
    int count = 0;
    if (picture_decode_transparency(file, size, &holes, &err)) {
        for (int i = 0; i < holes.width * holes.height; i++)
            if (holes.pixels[3 * i]) {
                count++;
                sum += i + 1;
            }
    } else {
        CHECK_CONTAINS(err.message, "no pixel of it is fully transparent");
    }
    snprintf(out, out_size, "%d %lld", count, sum);
    picture_finish(&holes);
}

static bool is_what_pillow_reads(const struct line *line, const char *bytes) {
    struct picture picture = { 0 };
    struct picture_info info = { 0 };
    struct error err = { 0 };
    char digest[DIGEST_TEXT_BYTES] = "", holes[48], found[160];
    char *copy = copy_of(bytes, line->size);
    if (picture_decode(copy, line->size, &picture, &err)) {
        const struct digest sum = sha256_of(
            picture.pixels, (size_t)picture.width * (size_t)picture.height * 3);
        digest_to_text(&sum, digest);
    }
    CHECK(picture_examine(copy, line->size, &info, &err) && info.format == PICTURE_WEBP &&
              info.width == picture.width && info.height == picture.height,
        "%s: %dx%d before decoding; %s", line->name, info.width, info.height, err.message);
    count_holes(copy, line->size, holes, sizeof(holes));
    snprintf(found, sizeof(found), "%d %d %s %s", picture.width, picture.height, digest, holes);
    const bool is_right = strcmp(found, line->rest) == 0;
    CHECK(is_right, "%s: %s; Pillow's: %s; %s", line->name, found, line->rest, err.message);
    picture_finish(&picture);
    free(copy);
    return is_right;
}

static void files_are_what_pillow_reads(void) {
    size_t size, at = 0;
    char *files = read_whole("webps.bin", &size), *table = read_whole("webps.tsv", &(size_t){ 0 });
    const char *next = table;
    int count = 0, equal = 0;
    for (struct line line; next_line(&next, &line) && line.size <= size - at; count++) {
        equal += is_what_pillow_reads(&line, files + at);
        at += line.size;
    }
    printf("%d of %d files: every byte and every hole is Pillow's\n", equal, count);
    CHECK(count == 102 && at == size && !*next, "%d files, %zu of %zu bytes", count, at, size);
    free(files);
    free(table);
}

static void broken_files_are_refused_by_name(void) {
    size_t size, at = 0;
    char *files = read_whole("broken.bin", &size),
         *table = read_whole("broken.tsv", &(size_t){ 0 });
    const char *next = table;
    int count = 0;
    for (struct line line; next_line(&next, &line) && line.size <= size - at; count++) {
        struct picture picture;
        struct error err = { 0 };
        char *copy = copy_of(files + at, line.size);
        const bool ok = picture_decode(copy, line.size, &picture, &err);
        CHECK(!ok && err.code == ERROR_INVALID, "%s was accepted", line.name);
        CHECK(strstr(err.message, line.rest), "%s: \"%s\" does not say %s", line.name, err.message,
            line.rest);
        picture_finish(&picture);
        at += line.size;
        free(copy);
    }
    printf("%d broken files are refused\n", count);
    CHECK(count == 18 && at == size, "%d files, %zu of %zu bytes", count, at, size);
    free(files);
    free(table);
}

/* A file that is cut anywhere, or has any bit changed, gives an error or a picture and never a
 * crash. A large side in a damaged header is refused before anything is allocated. */
static void damage_does_no_harm(void) {
    size_t size, at = 0;
    char *files = read_whole("webps.bin", &size), *table = read_whole("webps.tsv", &(size_t){ 0 });
    const char *next = table;
    int taken = 0, refused = 0;
    for (struct line line; next_line(&next, &line); at += line.size) {
        if (strncmp(line.name, "7x5", 3) != 0)
            continue;
        for (size_t i = 0; i < 2 * line.size; i++) {
            struct picture picture;
            struct error err = { 0 };
            char *copy = copy_of(files + at, line.size);
            if (i >= line.size)
                copy[i - line.size] ^= (char)(1 << i % 8);
            const bool ok = picture_decode(copy, i < line.size ? i : line.size, &picture, &err);
            CHECK(ok || err.message[0], "%s cut to %zu bytes: refused without a message", line.name,
                i);
            taken += ok;
            refused += !ok;
            picture_finish(&picture);
            free(copy);
        }
    }
    printf("of damaged files %d refused, %d taken\n", refused, taken);
    CHECK(refused > 1000 && taken > 100, "%d, %d", refused, taken);
    free(files);
    free(table);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    folder = argv[1];
    files_are_what_pillow_reads();
    broken_files_are_refused_by_name();
    damage_does_no_harm();
    return check_done();
}
