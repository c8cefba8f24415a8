/* Reading and resizing pictures, compared with Pillow: tests/reference/pictures.py recorded the
 * results. */
#include "base/sha256.h"
#include "pictures/picture.h"
#include "pictures/resize.h"
#include "tests/check.h"
#include "tests/pictures/chunks.h"
#include "tests/pictures/read_whole.h"

#include <stdlib.h>

/* Returns the largest difference between two pictures, in levels. */
static int compare(const struct picture *picture, const uint8_t *expected) {
    const size_t bytes = (size_t)picture->width * (size_t)picture->height * 3;
    int most = 0;
    for (size_t i = 0; i < bytes; i++) {
        const int one = abs(picture->pixels[i] - expected[i]);
        most = one > most ? one : most;
    }
    return most;
}

static bool decode(const char *name, struct picture *out, struct error *err) {
    size_t size;
    char *bytes = read_whole(name, &size);
    const bool ok = picture_decode(bytes, size, out, err);
    struct picture_info info;
    if (ok) {
        CHECK(picture_examine(bytes, size, &info, err), "%s", err->message);
        CHECK(info.width == out->width && info.height == out->height,
            "%s: %dx%d before, %dx%d after decoding", name, info.width, info.height, out->width,
            out->height);
    }
    free(bytes);
    return ok;
}

/* Exactly. */
static void files_are_what_pillow_reads(void) {
    size_t size;
    char *table = read_whole("pictures.tsv", &size), *line = table, *rest;
    uint8_t *pixels = (uint8_t *)read_whole("pictures.bin", &size), *at = pixels;
    int count = 0, worst = 0;
    for (; *line; line = rest) {
        char name[64];
        int width, height, used;
        struct picture picture;
        struct error err = { 0 };
        if (sscanf(line, "%63s %d %d\n%n", name, &width, &height, &used) != 3)
            break;
        rest = line + used;
        CHECK(decode(name, &picture, &err), "%s: %s", name, err.message);
        const bool right = picture.width == width && picture.height == height;
        CHECK(right, "%s: %dx%d, not %dx%d", name, picture.width, picture.height, width, height);
        if (right) {
            const int most = compare(&picture, at);
            CHECK(most == 0, "%s: %d levels apart", name, most);
            worst = most > worst ? most : worst;
        }
        at += width * height * 3;
        picture_finish(&picture);
        count++;
    }
    printf("%d files: at most %d levels from Pillow's\n", count, worst);
    CHECK(count == 48, "%d files", count);
    free(pixels);
    free(table);
}

/* Returns the number of white pixels in a file's transparency, and the sum of their positions; 0 if
 * the file is refused. */
static int count_holes(const char *name, long long *sum) {
    size_t size;
    struct picture holes = { 0 };
    struct error err = { 0 };
    char *bytes = read_whole(name, &size);
    const bool ok = picture_decode_transparency(bytes, size, &holes, &err);
    int count = 0;
    *sum = 0;
    for (int i = 0; i < holes.width * holes.height; i++) {
        const uint8_t *p = holes.pixels + 3 * i;
        CHECK(p[0] == p[1] && p[1] == p[2] && (p[0] == 0 || p[0] == 255), "%s: %d", name, p[0]);
        *sum += p[0] ? i + 1 : 0;
        count += p[0] != 0;
    }
    CHECK(ok == (count > 0), "%s: %d", name, count);
    if (!ok)
        CHECK_CONTAINS(err.message, strstr(name, ".jpg") ? "only a PNG" : "fully transparent");
    picture_finish(&holes);
    free(bytes);
    return count;
}

static void transparency_is_pillows(void) {
    size_t size;
    char *table = read_whole("transparent.tsv", &size), *all = read_whole("pictures.tsv", &size);
    int files = 0, pixels = 0;
    char *expected = table;
    for (char *line = all, *next; (next = strchr(line, '\n')); line = next + 1) {
        char name[64], known[64] = "";
        int count = 0, used = 0;
        long long sum = 0, found_sum;
        if (sscanf(line, "%63s", name) != 1)
            break;
        if (sscanf(expected, "%63s %d %lld\n%n", known, &count, &sum, &used) == 3 &&
            strcmp(known, name) == 0)
            expected += used;
        else
            count = 0, sum = 0;
        const int found = count_holes(name, &found_sum);
        CHECK(found == count && found_sum == sum, "%s: %d pixels (%lld), not %d (%lld)", name,
            found, found_sum, count, sum);
        files += count > 0;
        pixels += count;
    }
    printf("%d transparent pixels of %d files are where Pillow has them\n", pixels, files);
    CHECK(files >= 4 && *expected == 0, "%d files, left: %s", files, expected);
    free(table);
    free(all);
}

static enum resize_filter filter_named(const char *name) {
    return strcmp(name, "lanczos") == 0    ? RESIZE_LANCZOS
           : strcmp(name, "bilinear") == 0 ? RESIZE_BILINEAR
                                           : RESIZE_BICUBIC;
}

static void resizing_is_pillows(void) {
    size_t size;
    char *table = read_whole("resized.tsv", &size), *line = table, *rest;
    uint8_t *pixels = (uint8_t *)read_whole("resized.bin", &size), *at = pixels;
    struct picture photo, resized;
    struct error err = { 0 };
    int count = 0, worst = 0;
    CHECK(decode("photo.png", &photo, &err), "%s", err.message);
    for (; *line; line = rest) {
        char filter[16];
        int width, height, used;
        if (sscanf(line, "%d %d %15s\n%n", &width, &height, filter, &used) != 3)
            break;
        rest = line + used;
        CHECK(picture_resize(&photo, width, height, filter_named(filter), &resized, &err), "%s",
            err.message);
        const int most = compare(&resized, at);
        CHECK(most == 0, "%dx%d %s: %d levels apart", width, height, filter, most);
        worst = most > worst ? most : worst;
        at += width * height * 3;
        picture_finish(&resized);
        count++;
    }
    printf("%d sizes: at most %d levels from Pillow's\n", count, worst);
    CHECK(count == 22 && (size_t)(at - pixels) == size, "%d sizes", count);
    picture_finish(&photo);
    free(pixels);
    free(table);
}

/* Resized noise must have the same bytes as with Pillow, over enough pixels that every rounding
 * occurs. */
static void noise_resizes_to_pillows_bytes(void) {
    size_t size;
    char *table = read_whole("noise.tsv", &size);
    struct picture noise, resized;
    struct error err = { 0 };
    int count = 0;
    CHECK(picture_create(640, 480, 3, &noise, &err), "%s", err.message);
    uint32_t state = 1;
    for (int i = 0; i < 640 * 480 * 3; i++)
        noise.pixels[i] = (uint8_t)((state = 1664525u * state + 1013904223u) >> 24);
    for (const char *line = table; *line; count++) {
        char filter[16], want[DIGEST_TEXT_BYTES], got[DIGEST_TEXT_BYTES];
        int width, height, used;
        if (sscanf(line, "%d %d %15s %64s\n%n", &width, &height, filter, want, &used) != 4)
            break;
        line += used;
        CHECK(picture_resize(&noise, width, height, filter_named(filter), &resized, &err), "%s",
            err.message);
        const struct digest digest = sha256_of(resized.pixels, (size_t)width * (size_t)height * 3);
        digest_to_text(&digest, got);
        CHECK(strcmp(got, want) == 0, "noise in %dx%d by %s: not Pillow's bytes", width, height,
            filter);
        picture_finish(&resized);
    }
    printf("noise in %d sizes and filters: Pillow's bytes\n", count);
    CHECK(count == 9, "%d", count);
    picture_finish(&noise);
    free(table);
}

static void grey_pictures_resize_as_one_channel_of_colour_does(void) {
    struct picture photo, grey, small, small_grey;
    struct error err = { 0 };
    CHECK(decode("grey.png", &photo, &err) && decode("grey.png", &grey, &err), "%s", err.message);
    CHECK(picture_to_grey(&grey, &err) && grey.channels == 1, "%s", err.message);
    CHECK(picture_resize(&photo, 13, 31, RESIZE_LANCZOS, &small, &err), "%s", err.message);
    CHECK(picture_resize(&grey, 13, 31, RESIZE_LANCZOS, &small_grey, &err), "%s", err.message);
    for (int i = 0; i < 13 * 31; i++)
        CHECK(small_grey.pixels[i] == small.pixels[3 * i], "pixel %d: %d and %d", i,
            small_grey.pixels[i], small.pixels[3 * i]);
    picture_finish(&photo);
    picture_finish(&grey);
    picture_finish(&small);
    picture_finish(&small_grey);
}

static void broken_files_are_refused_by_name(void) {
    size_t size;
    char *table = read_whole("broken.tsv", &size), *line = table;
    int count = 0;
    while (*line) {
        char *tab = strchr(line, '\t'), *end = strchr(line, '\n');
        struct picture picture;
        struct error err = { 0 };
        *tab = *end = 0;
        CHECK(!decode(line, &picture, &err), "%s is accepted", line);
        CHECK_CONTAINS(err.message, tab + 1);
        CHECK(err.code == ERROR_INVALID || err.code == ERROR_TOO_LARGE, "%s: code %d", line,
            err.code);
        CHECK(!picture.pixels, "%s: pixels are left", line);
        printf("%s: %s\n", line, err.message);
        line = end + 1;
        count++;
    }
    CHECK(count == 22, "%d files", count);
    free(table);
}

/* A file that is cut anywhere, or has any byte changed, gives an error or a picture and never a
 * crash. */
static void damage_does_no_harm(void) {
    static const char *const names[] = { "palette_interlaced.png", "turned6.png", "jpeg_cmyk.jpg",
        "jpeg420_progressive.jpg" };
    int taken = 0, refused = 0;
    for (size_t n = 0; n < sizeof(names) / sizeof(names[0]); n++) {
        size_t size;
        char *bytes = read_whole(names[n], &size);
        for (size_t i = 0; i < 2 * size; i++) {
            struct picture picture;
            struct error err = { 0 };
            char *copy = malloc(size);
            memcpy(copy, bytes, size);
            if (i >= size)
                copy[i - size] ^= (char)(1 << i % 8);
            const bool ok = picture_decode(copy, i < size ? i : size, &picture, &err);
            CHECK(ok || err.message[0], "%s cut to %zu bytes: refused without a message", names[n],
                i);
            CHECK(!ok || i >= size, "%s: accepted when cut to %zu of its %zu bytes", names[n], i,
                size);
            taken += ok;
            refused += !ok;
            picture_finish(&picture);
            free(copy);
        }
        free(bytes);
    }
    printf("of damaged files %d refused, %d taken\n", refused, taken);
}

/* 200 texts of 7 MiB each, packed into 1.4 MB. The decoder does not need the texts, so unpacking
 * them must not take memory. */
static void packed_texts_take_no_memory(void) {
    struct png_file file = png_file_with_texts(7 << 20, 200);
    struct picture picture;
    struct error err = { 0 };
    const size_t before = memory_peak_bytes();
    CHECK(picture_decode(file.bytes, file.size, &picture, &err), "%s", err.message);
    const size_t more = memory_peak_bytes() - before;
    CHECK(more < 64 << 20, "%zu MiB", more >> 20);
    printf("a PNG of %zu bytes with 200 texts of 7 MiB: %zu MiB\n", file.size, more >> 20);
    picture_finish(&picture);
    free(file.bytes);
}

/* Files with data after the last row. Some writers leave a few bytes there, and these are accepted.
 * Too many are refused, because packed zeros could unpack to a thousand times the bytes that were
 * sent. */
static void pixels_end_with_the_last_row(void) {
    static const struct {
        int rows;
        bool ok;
    } files[] = { { 8, true }, { 9, true }, { 2000, true }, { 6000, false } };
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct png_file file = png_file_create(files[i].rows, 1);
        struct picture picture;
        struct error err = { 0 };
        png_file_claim(&file, 8);
        CHECK(picture_decode(file.bytes, file.size, &picture, &err) == files[i].ok,
            "%d rows, of which 8 are the picture's: %s", files[i].rows, err.message);
        if (!files[i].ok)
            CHECK_CONTAINS(err.message, "go on behind its last row");
        picture_finish(&picture);
        free(file.bytes);
    }
}

/* A million EXIF chunks that claim 65,535 entries but have none. Following the claims once took
 * half a minute. */
static void claimed_entries_take_no_time(void) {
    static const char exif[] = "\0\0\0\x0a"
                               "eXIf"
                               "II*\0\x08\0\0\0\xff\xff"
                               "sum.";
    struct png_file one = png_file_create(8, 1);
    struct png_file file = png_file_repeat(&one, exif, sizeof(exif) - 1, 1000000);
    struct picture_info info;
    struct error err = { 0 };
    CHECK(picture_examine(file.bytes, file.size, &info, &err), "%s", err.message);
    CHECK(info.orientation == 1, "orientation %d", info.orientation);
    free(file.bytes);
    free(one.bytes);
}

/* Covers width x height with noise, and compares it with the middle of the whole resized picture.
 */
static void check_cover(int in_width, int in_height, int width, int height) {
    struct picture noise = { 0 }, whole = { 0 }, out = { 0 };
    struct error err = { 0 };
    uint32_t state = 1;
    CHECK(picture_create(in_width, in_height, 3, &noise, &err), "%s", err.message);
    for (size_t i = 0; noise.pixels && i < (size_t)in_width * (size_t)in_height * 3; i++)
        noise.pixels[i] = (uint8_t)((state = state * 1664525 + 1013904223) >> 24);
    const bool by_width = (int64_t)width * in_height > (int64_t)in_width * height;
    const int wide = by_width ? width : in_width * height / in_height;
    const int high = by_width ? in_height * width / in_width : height;
    CHECK(picture_resize(&noise, wide, high, RESIZE_LANCZOS, &whole, &err), "%s", err.message);
    CHECK(picture_resize_to_cover(&noise, width, height, &out, &err), "%s", err.message);
    CHECK(out.width == width && out.height == height, "%dx%d", out.width, out.height);
    const int left = wide / 2 - width / 2, top = high / 2 - height / 2;
    int off = 0;
    for (int y = 0; whole.pixels && out.pixels && y < height; y++)
        off += memcmp(out.pixels + (size_t)y * (size_t)width * 3,
                   whole.pixels + ((size_t)(top + y) * (size_t)wide + (size_t)left) * 3,
                   (size_t)width * 3) != 0;
    CHECK(off == 0, "%dx%d over %dx%d: %d rows are not those of %dx%d px", in_width, in_height,
        width, height, off, wide, high);
    picture_finish(&out);
    picture_finish(&whole);
    picture_finish(&noise);
}

/* Only the visible middle is made: all of a thin picture, resized to cover 2048x2048, would have
 * 2 million columns and 12 GB. */
static void only_the_middle_of_a_cover_is_made(void) {
    static const int rows[][4] = { { 256, 5, 64, 60 }, { 5, 256, 60, 64 }, { 97, 64, 33, 64 },
        { 40, 300, 31, 200 }, { 300, 40, 64, 9 }, { 64, 64, 64, 64 } };
    struct picture thin, out;
    struct error err = { 0 };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_cover(rows[i][0], rows[i][1], rows[i][2], rows[i][3]);
    CHECK(picture_create(4096, 4, 3, &thin, &err), "%s", err.message);
    CHECK(picture_resize_to_cover(&thin, 2048, 2048, &out, &err), "%s", err.message);
    CHECK(out.width == 2048 && out.height == 2048, "%dx%d", out.width, out.height);
    picture_finish(&out);
    picture_finish(&thin);
    CHECK(picture_create(1, 2000000, 3, &thin, &err), "%s", err.message);
    CHECK(!picture_resize_to_cover(&thin, 2048, 2048, &out, &err), "4 billion rows");
    CHECK(err.code == ERROR_INVALID, "%s", err.message);
    CHECK_CONTAINS(err.message, "1x2000000 px cannot cover 2048x2048 px");
    picture_finish(&thin);
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    folder = argv[1];
    files_are_what_pillow_reads();
    transparency_is_pillows();
    resizing_is_pillows();
    noise_resizes_to_pillows_bytes();
    grey_pictures_resize_as_one_channel_of_colour_does();
    broken_files_are_refused_by_name();
    packed_texts_take_no_memory();
    pixels_end_with_the_last_row();
    claimed_entries_take_no_time();
    damage_does_no_harm();
    only_the_middle_of_a_cover_is_made();
    return check_done();
}
