/* Files of png_encode, read back by libpng's own reader; and base64 against the vectors of RFC
 * 4648, section 10. */
#include "base/text/base64.h"
#include "pictures/png_encode.h"

#include "tests/check.h"

#include <png.h>
#include <stdlib.h>

struct source {
    const uint8_t *data;
    size_t size, at;
};

static void read_bytes(png_structp png, png_bytep out, size_t size) {
    struct source *source = png_get_io_ptr(png);
    if (size > source->size - source->at)
        png_error(png, "short");
    memcpy(out, source->data + source->at, size);
    source->at += size;
}

static void pixels_and_texts_come_back(int width, int height) {
    size_t size = (size_t)width * (size_t)height * 3;
    uint8_t *rgb = malloc(size), *bytes = NULL;
    for (size_t i = 0; i < size; i++)
        rgb[i] = (uint8_t)(i * 2654435761u >> 13);
    struct error err = { 0 };
    const struct png_text_chunk texts[] = {
        { "parameters", "a caf\xc3\xa9 with \xc3\xbf\nSteps: 20, Seed: 1" },
        { "latentd", "{\"prompt\":\"\xe7\x8c\xab\"}" },
    };
    size_t bytes_size = 0;
    CHECK(png_encode(rgb, width, height, texts, 2, &bytes, &bytes_size, &err), "%s", err.message);

    struct source source = { bytes, bytes_size, 0 };
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_set_read_fn(png, &source, read_bytes);
    png_read_png(png, info, PNG_TRANSFORM_IDENTITY, NULL);
    CHECK((int)png_get_image_width(png, info) == width, "%u", png_get_image_width(png, info));
    CHECK((int)png_get_image_height(png, info) == height, "%u", png_get_image_height(png, info));
    CHECK(png_get_color_type(png, info) == PNG_COLOR_TYPE_RGB, "%d", png_get_color_type(png, info));
    png_bytepp rows = png_get_rows(png, info);
    int different = 0;
    for (int y = 0; y < height; y++)
        different += memcmp(rows[y], rgb + (size_t)y * (size_t)width * 3, (size_t)width * 3) != 0;
    CHECK(different == 0, "%d of %d rows differ", different, height);

    png_textp read = NULL;
    int count = png_get_text(png, info, &read, NULL);
    CHECK(count == 2, "%d texts", count);
    CHECK_STRING(read[0].key, "parameters");
    CHECK(read[0].compression == PNG_TEXT_COMPRESSION_NONE, "tEXt, not %d", read[0].compression);
    CHECK_STRING(read[0].text, "a caf\xe9 with \xff\nSteps: 20, Seed: 1"); /* Latin-1 */
    CHECK_STRING(read[1].key, "latentd");
    CHECK(read[1].compression == PNG_ITXT_COMPRESSION_NONE, "iTXt, not %d", read[1].compression);
    CHECK_STRING(read[1].text, texts[1].text);
    printf("%dx%d: %zu bytes, %d texts\n", width, height, bytes_size, count);
    png_destroy_read_struct(&png, &info, NULL);
    free(bytes);
    free(rgb);
}

static void bad_sizes_are_errors(void) {
    struct error err = { 0 };
    uint8_t pixel[3] = { 0 }, *bytes = NULL;
    size_t size = 0;
    CHECK(
        !png_encode(pixel, 0, 1, NULL, 0, &bytes, &size, &err), "a picture of width 0 is written");
    CHECK(err.code == ERROR_INVALID, "%d", err.code);
    CHECK_CONTAINS(err.message, "Invalid IHDR");
    CHECK(!png_encode(pixel, 1, -1, NULL, 0, &bytes, &size, &err),
        "a picture of negative height is written");
    CHECK(!png_encode(pixel, 2000000, 1, NULL, 0, &bytes, &size, &err),
        "a picture too wide for libpng is written");
}

static void base64_matches_rfc4648(void) {
    static const char *const vectors[][2] = { { "", "" }, { "f", "Zg==" }, { "fo", "Zm8=" },
        { "foo", "Zm9v" }, { "foob", "Zm9vYg==" }, { "fooba", "Zm9vYmE=" },
        { "foobar", "Zm9vYmFy" }, { "\xff\xff\xfe\xfb\xef\xbe", "///+++++" } };
    for (size_t i = 0; i < sizeof(vectors) / sizeof(vectors[0]); i++) {
        size_t length = 99;
        char *text = base64_encode(vectors[i][0], strlen(vectors[i][0]), &length);
        CHECK_STRING(text, vectors[i][1]);
        CHECK(length == strlen(vectors[i][1]), "%zu", length);
        free(text);
    }
}

int main(void) {
    pixels_and_texts_come_back(1, 1);
    pixels_and_texts_come_back(128, 96);
    pixels_and_texts_come_back(515, 3);
    bad_sizes_are_errors();
    base64_matches_rfc4648();
    return check_done();
}
