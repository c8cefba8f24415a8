/* Blurred masks and filled pictures compared with recordings of tests/reference/blurs.py: OpenCV's
 * Gaussian, and Pillow's blur and composition. */
#include "pictures/blur.h"

#include "base/file.h"
#include "tests/check.h"

#include <stdlib.h>

static const char *folder;

static struct picture read_picture(const char *name, bool grey) {
    struct picture picture = { 0 };
    struct error err = { 0 };
    char *path = file_join(folder, name), *bytes = NULL;
    size_t size = 0;
    CHECK(file_read(path, 1 << 20, &bytes, &size, &err) &&
              picture_decode(bytes, size, &picture, &err) &&
              (!grey || picture_to_grey(&picture, &err)),
        "%s: %s", name, err.message);
    free(path);
    free(bytes);
    return picture;
}

struct difference {
    int most;
    double mean;
};

static struct difference compare(const struct picture *a, const struct picture *b) {
    const size_t bytes = (size_t)a->width * (size_t)a->height * (size_t)a->channels;
    struct difference d = { 0 };
    CHECK(a->width == b->width && a->height == b->height && a->channels == b->channels, "%dx%d",
        b->width, b->height);
    for (size_t i = 0; i < bytes; i++) {
        const int one = abs(a->pixels[i] - b->pixels[i]);
        d.most = one > d.most ? one : d.most;
        d.mean += (double)one / (double)bytes;
    }
    return d;
}

static void masks(void) {
    static const int sigmas[][2] = { { 4, 4 }, { 1, 0 }, { 0, 9 }, { 12, 3 } };
    for (size_t i = 0; i < sizeof(sigmas) / sizeof(sigmas[0]); i++) {
        char name[32];
        struct error err = { 0 };
        snprintf(name, sizeof(name), "mask_%d_%d.png", sigmas[i][0], sigmas[i][1]);
        struct picture mask = read_picture("mask.png", true), right = read_picture(name, true);
        CHECK(picture_blur(&mask, sigmas[i][0], sigmas[i][1], (struct cancel){ 0 }, &err), "%s",
            err.message);
        const struct difference d = compare(&mask, &right);
        printf("%s: at most %d of 255 apart\n", name, d.most);
        CHECK(d.most <= 1, "%s: %d", name, d.most); /* ties may be rounded either way */
        picture_finish(&mask);
        picture_finish(&right);
    }
}

/* The filled pictures may differ from Pillow's by a few levels. Pillow rounds to 8 bits after
 * each of 36 passes, and where a pixel is nearly transparent, its colours lose most of their
 * precision. */
static void fills(void) {
    static const char *const masks[] = { "mask.png", "mask_4_4.png" };
    for (size_t i = 0; i < 2; i++) {
        char name[32];
        struct error err = { 0 };
        snprintf(name, sizeof(name), "filled_%s", masks[i]);
        struct picture mask = read_picture(masks[i], true),
                       picture = read_picture("picture.png", false);
        struct picture right = read_picture(name, false),
                       before = read_picture("picture.png", false);
        CHECK(picture_smear(&picture, &mask, (struct cancel){ 0 }, &err), "%s", err.message);
        const struct difference d = compare(&picture, &right), moved = compare(&picture, &before);
        printf("%s: %.2f of 255 apart in the mean, %d at most; it fills %.1f\n", name, d.mean,
            d.most, moved.mean);
        CHECK(d.mean < 0.5 && d.most <= 8, "%s: %g, %d", name, d.mean, d.most);
        CHECK(moved.mean > 2, "%g", moved.mean);
        picture_finish(&mask);
        picture_finish(&picture);
        picture_finish(&right);
        picture_finish(&before);
    }
}

/* Radii larger than the picture, and the smallest pictures. */
static void small_ones(void) {
    static const int sizes[][2] = { { 1, 1 }, { 1, 7 }, { 2, 1 }, { 5, 3 } };
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct picture mask = { 0 }, picture = { 0 };
        struct error err = { 0 };
        CHECK(picture_create(sizes[i][0], sizes[i][1], 1, &mask, &err) &&
                  picture_create(sizes[i][0], sizes[i][1], 3, &picture, &err),
            "%s", err.message);
        memset(mask.pixels, 200, (size_t)(sizes[i][0] * sizes[i][1]));
        memset(picture.pixels, 77, (size_t)(3 * sizes[i][0] * sizes[i][1]));
        CHECK(picture_blur(&mask, 64, 64, (struct cancel){ 0 }, &err) &&
                  picture_smear(&picture, &mask, (struct cancel){ 0 }, &err),
            "%s", err.message);
        CHECK(mask.pixels[0] == 200 && picture.pixels[0] == 77, "%d, %d", mask.pixels[0],
            picture.pixels[0]);
        picture_finish(&mask);
        picture_finish(&picture);
    }
}

int main(int argc, char **argv) {
    folder = argc == 2 ? argv[1] : ".";
    masks();
    fills();
    small_ones();
    return check_done();
}
