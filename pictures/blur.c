#include "pictures/blur.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory to blur a picture");
}

/* --- a Gaussian --- */

/* Of 2 `radius` + 1 weights; NULL when memory is short. */
static float *gaussian(int sigma, int radius) {
    float *weights = malloc((2 * (size_t)radius + 1) * sizeof(*weights));
    double sum = 0;
    for (int i = -radius; weights && i <= radius; i++)
        sum += exp(-0.5 * i * i / ((double)sigma * sigma));
    for (int i = -radius; weights && i <= radius; i++)
        weights[i + radius] = (float)(exp(-0.5 * i * i / ((double)sigma * sigma)) / sum);
    return weights;
}

/* -1 is 1, as often as it takes. */
static int mirrored(int at, int count) {
    while (count > 1 && (at < 0 || at >= count))
        at = at < 0 ? -at : 2 * (count - 1) - at;
    return count > 1 ? at : 0;
}

/* `count` bytes that are `stride` apart; `line` has room for them. */
static void blur_line(
    uint8_t *bytes, int count, size_t stride, const float *weights, int radius, uint8_t *line) {
    for (int i = 0; i < count; i++)
        line[i] = bytes[(size_t)i * stride];
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int k = -radius; k <= radius; k++)
            sum += weights[k + radius] * line[mirrored(i + k, count)];
        bytes[(size_t)i * stride] = (uint8_t)(sum + 0.5f);
    }
}

static bool blur_direction(struct picture *picture, int sigma, bool columns, struct error *err) {
    const int radius = (int)(2.5 * sigma + 0.5);
    const int count = columns ? picture->height : picture->width;
    const int lines = columns ? picture->width : picture->height;
    const size_t width = (size_t)picture->width;
    if (sigma == 0)
        return true;
    float *weights = gaussian(sigma, radius);
    uint8_t *line = malloc((size_t)count);
    for (int i = 0; weights && line && i < lines; i++)
        blur_line(picture->pixels + (columns ? (size_t)i : (size_t)i * width), count,
            columns ? width : 1, weights, radius, line);
    const bool ok = weights && line;
    free(weights);
    free(line);
    return ok || no_memory(err);
}

bool picture_blur(struct picture *picture, int sigma_x, int sigma_y, struct error *err) {
    return blur_direction(picture, sigma_x, false, err) &&
           blur_direction(picture, sigma_y, true, err);
}

/* --- a smear --- */

#define PASSES 3 /* of a box: close to a Gaussian */
#define CHANNELS 4

/* Premultiplied colours and alpha: [height][width][4]. */
struct layer {
    float *values; /* owned */
    int width, height;
};

/* The radius, with its fraction, of the box whose PASSES passes have the variance of a Gaussian
 * (Gwosdek and others, "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering",
 * equations 7, 11 and 14). */
static double box_radius(double sigma) {
    const double variance = sigma * sigma / PASSES;
    const double whole = floor((sqrt(12 * variance + 1) - 1) / 2);
    const double fraction = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) /
                            (6 * (variance - (whole + 1) * (whole + 1)));
    return whole + fraction;
}

/* One line, whose ends go on for ever; `sums` has room for count + 1. out[i] is the mean of what
 * lies within the radius, of which the outermost count by its fraction. */
static void box_line(float *values, int count, size_t stride, double radius, double *sums) {
    const int whole = (int)radius;
    const double fraction = radius - whole, weight = 1 / (2 * radius + 1);
    const double first = values[0], last = values[(size_t)(count - 1) * stride];
    sums[0] = 0;
    for (int i = 0; i < count; i++)
        sums[i + 1] = sums[i] + values[(size_t)i * stride];
    for (int i = 0; i < count; i++) {
        const int from = i - whole, to = i + whole; /* both included */
        const int inside_from = from < 0 ? 0 : from, inside_to = to >= count ? count - 1 : to;
        double sum = sums[inside_to + 1] - sums[inside_from] + (inside_from - from) * first +
                     (to - inside_to) * last;
        const double before = from - 1 < 0 ? first : sums[from] - sums[from - 1];
        const double after = to + 1 >= count ? last : sums[to + 2] - sums[to + 1];
        sum += fraction * (before + after);
        values[(size_t)i * stride] = (float)(weight * sum);
    }
}

/* `sums` has room for the longer side and one. */
static void blur_layer(struct layer *layer, double sigma, double *sums) {
    const size_t row = (size_t)layer->width * CHANNELS;
    const double radius = box_radius(sigma);
    for (int pass = 0; pass < PASSES; pass++)
        for (int y = 0; y < layer->height; y++)
            for (size_t c = 0; c < CHANNELS; c++)
                box_line(layer->values + (size_t)y * row + c, layer->width, CHANNELS, radius, sums);
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t x = 0; x < row; x++)
            box_line(layer->values + x, layer->height, row, radius, sums);
}

/* What is not masked, as it would lie on glass. */
static void fill_layer(
    struct layer *layer, const struct picture *picture, const struct picture *mask) {
    const size_t pixels = (size_t)picture->width * (size_t)picture->height;
    for (size_t i = 0; i < pixels; i++) {
        const float alpha = (float)(255 - mask->pixels[i]) / 255;
        for (size_t c = 0; c < 3; c++)
            layer->values[CHANNELS * i + c] = alpha * picture->pixels[3 * i + c];
        layer->values[CHANNELS * i + 3] = alpha;
    }
}

/* Lays `above` over `layer`. */
static void compose(struct layer *layer, const struct layer *above) {
    const size_t pixels = (size_t)layer->width * (size_t)layer->height;
    for (size_t i = 0; i < pixels; i++) {
        const float through = 1 - above->values[CHANNELS * i + 3];
        for (size_t c = 0; c < CHANNELS; c++)
            layer->values[CHANNELS * i + c] = above->values[CHANNELS * i + c] +
                                              through * layer->values[CHANNELS * i + c];
    }
}

static void to_pixels(const struct layer *layer, struct picture *picture) {
    const size_t pixels = (size_t)layer->width * (size_t)layer->height;
    for (size_t i = 0; i < pixels; i++) {
        const float alpha = layer->values[CHANNELS * i + 3];
        for (size_t c = 0; c < 3; c++) {
            const float value = alpha > 0 ? layer->values[CHANNELS * i + c] / alpha : 0;
            picture->pixels[3 * i + c] = (uint8_t)(value > 254.5f ? 255 : value + 0.5f);
        }
    }
}

bool picture_smear(struct picture *picture, const struct picture *mask, struct error *err) {
    static const struct {
        int sigma, times;
    } blurs[] = { { 256, 1 }, { 64, 1 }, { 16, 2 }, { 4, 4 }, { 2, 2 }, { 0, 1 } };
    const size_t values = (size_t)picture->width * (size_t)picture->height * CHANNELS;
    const int longer = picture->width > picture->height ? picture->width : picture->height;
    struct layer whole = { calloc(values, sizeof(float)), picture->width, picture->height };
    struct layer above = { calloc(values, sizeof(float)), picture->width, picture->height };
    double *sums = malloc(((size_t)longer + 1) * sizeof(*sums));
    const bool ok = whole.values && above.values && sums;
    for (size_t i = 0; ok && i < sizeof(blurs) / sizeof(blurs[0]); i++) {
        fill_layer(&above, picture, mask);
        if (blurs[i].sigma > 0)
            blur_layer(&above, blurs[i].sigma, sums);
        for (int k = 0; k < blurs[i].times; k++)
            compose(&whole, &above);
    }
    if (ok)
        to_pixels(&whole, picture);
    free(whole.values);
    free(above.values);
    free(sums);
    return ok || no_memory(err);
}
