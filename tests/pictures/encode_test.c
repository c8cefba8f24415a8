/* Encoded JPEG and WebP files, read back by the libraries' own readers. */
#include "pictures/encode.h"
#include "pictures/jpeg/exif.h"
#include "tests/check.h"

#include <stdlib.h>
#include <webp/decode.h>

#define WIDTH 96
#define HEIGHT 64

static uint8_t rgb[WIDTH * HEIGHT * 3];

static void fill(void) {
    for (int y = 0; y < HEIGHT; y++)
        for (int x = 0; x < WIDTH; x++) {
            uint8_t *p = rgb + 3 * (y * WIDTH + x);
            p[0] = (uint8_t)(128 + 100 * sin(x / 9.0));
            p[1] = (uint8_t)(128 + 100 * cos(y / 7.0));
            p[2] = (uint8_t)(x + y);
        }
}

/* In dB. */
static double peak_signal_to_noise(const uint8_t *other) {
    double squares = 0;
    for (size_t i = 0; i < sizeof(rgb); i++)
        squares += ((double)rgb[i] - other[i]) * ((double)rgb[i] - other[i]);
    return 10 * log10(255.0 * 255 * (double)sizeof(rgb) / squares);
}

static uint8_t *encode(const struct picture_encoding *encoding, size_t *size) {
    uint8_t *bytes = NULL;
    struct error err = { 0 };
    CHECK(picture_encode(rgb, WIDTH, HEIGHT, encoding, &bytes, size, &err), "%s", err.message);
    return bytes;
}

static double decode(enum picture_format format, const uint8_t *bytes, size_t size) {
    struct picture picture = { 0 };
    struct error err = { 0 };
    int width = 0, height = 0;
    double quality = 0;
    if (format == PICTURE_WEBP) {
        uint8_t *decoded = WebPDecodeRGB(bytes, size, &width, &height);
        CHECK(decoded && width == WIDTH && height == HEIGHT, "%dx%d", width, height);
        quality = decoded ? peak_signal_to_noise(decoded) : 0;
        WebPFree(decoded);
    } else {
        CHECK(picture_decode(bytes, size, &picture, &err), "%s", err.message);
        CHECK(picture.width == WIDTH && picture.height == HEIGHT, "%dx%d", picture.width,
            picture.height);
        quality = picture.pixels ? peak_signal_to_noise(picture.pixels) : 0;
        picture_finish(&picture);
    }
    return quality;
}

/* With higher quality the picture is closer to the original and the file is larger. */
static void quality_is_what_it_says(enum picture_format format) {
    static const int qualities[] = { 10, 50, 90, 100 };
    static const double least[] = { 24, 30, 34, 36 };
    size_t size_before = 0;
    double before = 0;
    for (int i = 0; i < 4; i++) {
        const struct picture_encoding encoding = { format, qualities[i], { "a", "{\"b\": 1}" } };
        size_t size = 0;
        uint8_t *bytes = encode(&encoding, &size);
        const double now = decode(format, bytes, size);
        printf("%s at quality %d: %zu bytes, %.1f dB\n", picture_format_name(format), qualities[i],
            size, now);
        CHECK(
            now >= least[i] && now > before && size > size_before, "%.1f dB, %zu bytes", now, size);
        before = now;
        size_before = size;
        free(bytes);
    }
}

static bool holds(const uint8_t *bytes, size_t size, const void *part, size_t part_size) {
    return memmem(bytes, size, part, part_size) != NULL;
}

/* U+00E9 and U+1F408, given as UTF-8, must appear in the encoding of EXIF's comment. */
static void texts_are_in_exif_data(enum picture_format format) {
    static const char comment[] = "UNICODE\0\0c\0\xe9\xd8\x3d\xdc\x08",
                      json[] = "{\"prompt\": \"c\"}";
    const struct picture_encoding encoding = { format, 80, { "c\xc3\xa9\xf0\x9f\x90\x88", json } };
    size_t size = 0;
    uint8_t *bytes = encode(&encoding, &size);
    CHECK(
        holds(bytes, size, comment, sizeof(comment) - 1), "the file does not contain the comment");
    CHECK(holds(bytes, size, json, sizeof(json)), "the file does not contain the description");
    decode(format, bytes, size);
    free(bytes);
}

/* Texts that do not fit into a JPEG: the description is left out first, then everything. */
static void long_texts_are_left_out(void) {
    static char text[70000];
    memset(text, 'x', sizeof(text) - 1);
    uint8_t *exif = NULL;
    size_t size = 0;
    struct error err = { 0 };
    CHECK(exif_create(text, "short", 65000, &exif, &size, &err) && size > 0 && size < 200, "%zu",
        size);
    CHECK(exif_orientation(exif, size) == 1,
        "EXIF data without an orientation does not mean upright");
    free(exif);
    CHECK(exif_create("short, as JSON is", text, 65000, &exif, &size, &err) && size == 0 && !exif,
        "%zu", size);
    const struct picture_encoding encoding = { PICTURE_JPEG, 80, { text, text } };
    uint8_t *bytes = encode(&encoding, &size);
    decode(PICTURE_JPEG, bytes, size);
    free(bytes);
}

static void names_and_ends(void) {
    enum picture_format format = PICTURE_PNG;
    CHECK(picture_format_of_path("a/b.JPG") == PICTURE_JPEG, "jpg");
    CHECK(picture_format_of_path("b.jpeg") == PICTURE_JPEG, "jpeg");
    CHECK(picture_format_of_path("b.webp") == PICTURE_WEBP, "webp");
    CHECK(picture_format_of_path("b.png") == PICTURE_PNG, "png");
    CHECK(picture_format_of_path("/dev/stdout") == PICTURE_PNG, "none");
    CHECK(picture_format_from_name("webp", &format) && format == PICTURE_WEBP, "%d", format);
    CHECK(!picture_format_from_name("gif", &format), "gif");
}

int main(void) {
    fill();
    for (int i = PICTURE_JPEG; i <= PICTURE_WEBP; i++) {
        quality_is_what_it_says((enum picture_format)i);
        texts_are_in_exif_data((enum picture_format)i);
    }
    long_texts_are_left_out();
    names_and_ends();
    return check_done();
}
