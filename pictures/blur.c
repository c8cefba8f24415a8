#include "pictures/blur.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool no_memory(struct error *err) {
    return error_set(err, ERROR_NO_MEMORY, "no memory to blur a picture");
}

static bool cancelled(struct error *err) {
    return error_set(err, ERROR_CANCELLED, "the picture is not blurred: nobody waits for it");
}

/* --- Gaussian blur --- */

/* Returns the 2 `radius` + 1 weights of a Gaussian; NULL if there is no memory. */
static float *gaussian(int sigma, int radius) {
    float *weights = malloc((2 * (size_t)radius + 1) * sizeof(*weights));
    double sum = 0;
    for (int i = -radius; weights && i <= radius; i++)
        sum += exp(-0.5 * i * i / ((double)sigma * sigma));
    for (int i = -radius; weights && i <= radius; i++)
        weights[i + radius] = (float)(exp(-0.5 * i * i / ((double)sigma * sigma)) / sum);
    return weights;
}

/* Mirrors a position at the line's ends until it lies inside: -1 becomes 1. */
static int mirrored(int at, int count) {
    while (count > 1 && (at < 0 || at >= count))
        at = at < 0 ? -at : 2 * (count - 1) - at;
    return count > 1 ? at : 0;
}

/* out[i] = sum over k of weights[k] in[i + k], in the order of k. */
static void weigh(const float *in, const float *weights, int taps, int count, float *out) {
    memset(out, 0, (size_t)count * sizeof(*out));
    for (int k = 0; k < taps; k++)
        for (int i = 0; i < count; i++)
            out[i] += weights[k] * in[i + k];
}

/* blur_rows and blur_columns return false if they are cancelled. */
static bool blur_rows(struct picture *p, const float *weights, int radius, float *line, float *sum,
    struct cancel cancel, struct error *err) {
    for (int y = 0; y < p->height; y++) {
        if (cancel_is_asked(cancel))
            return cancelled(err);
        uint8_t *row = p->pixels + (size_t)y * (size_t)p->width;
        for (int i = -radius; i < p->width + radius; i++)
            line[i + radius] = row[mirrored(i, p->width)];
        weigh(line, weights, 2 * radius + 1, p->width, sum);
        for (int x = 0; x < p->width; x++)
            row[x] = (uint8_t)(sum[x] + 0.5f);
    }
    return true;
}

/* Blurs columns, but works row by row, because a row's pixels are adjacent in memory. `from` is a
 * copy of the pixels. */
static bool blur_columns(struct picture *p, const uint8_t *from, const float *weights, int radius,
    float *sum, struct cancel cancel, struct error *err) {
    const size_t width = (size_t)p->width;
    for (int y = 0; y < p->height; y++) {
        if (cancel_is_asked(cancel))
            return cancelled(err);
        memset(sum, 0, width * sizeof(*sum));
        for (int k = -radius; k <= radius; k++) {
            const uint8_t *row = from + (size_t)mirrored(y + k, p->height) * width;
            for (size_t x = 0; x < width; x++)
                sum[x] += weights[k + radius] * row[x];
        }
        for (size_t x = 0; x < width; x++)
            p->pixels[(size_t)y * width + x] = (uint8_t)(sum[x] + 0.5f);
    }
    return true;
}

static bool blur_direction(
    struct picture *picture, int sigma, bool columns, struct cancel cancel, struct error *err) {
    const int radius = (int)(2.5 * sigma + 0.5);
    const size_t width = (size_t)picture->width, pixels = width * (size_t)picture->height;
    if (sigma == 0)
        return true;
    float *weights = gaussian(sigma, radius);
    float *sum = malloc(width * sizeof(*sum));
    void *copy = malloc(columns ? pixels : (width + 2 * (size_t)radius) * sizeof(float));
    bool ok = (weights && sum && copy) || no_memory(err);
    if (ok && columns)
        ok = blur_columns(
            picture, memcpy(copy, picture->pixels, pixels), weights, radius, sum, cancel, err);
    else if (ok)
        ok = blur_rows(picture, weights, radius, copy, sum, cancel, err);
    free(weights);
    free(sum);
    free(copy);
    return ok;
}

bool picture_blur(
    struct picture *picture, int sigma_x, int sigma_y, struct cancel cancel, struct error *err) {
    return blur_direction(picture, sigma_x, false, cancel, err) &&
           blur_direction(picture, sigma_y, true, cancel, err);
}

/* --- smear --- */

#define PASSES 3 /* of a box blur; together close to a Gaussian */
#define CHANNELS 4

/* A picture of premultiplied colours and alpha: [height][width][4]. */
struct layer {
    float *values; /* owned */
    int width, height;
};

/* Returns the fractional radius of a box blur whose PASSES passes have the variance of a Gaussian
 * (Gwosdek and others, "Theoretical Foundations of Gaussian Convolution by Extended Box Filtering",
 * equations 7, 11 and 14). */
static double box_radius(double sigma) {
    const double variance = sigma * sigma / PASSES;
    const double whole = floor((sqrt(12 * variance + 1) - 1) / 2);
    const double fraction = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance) /
                            (6 * (variance - (whole + 1) * (whole + 1)));
    return whole + fraction;
}

/* LINES rows or columns of a layer side by side, [count][LANES]. Neighbouring columns are read
 * together, so that memory is read in contiguous pieces. */
#define LINES 4
#define LANES (LINES * CHANNELS)

struct lines {
    float (*values)[LANES]; /* owned: [longer side] */
    double (*sums)[LANES];  /* owned: [longer side + 1] */
};

/* Replaces values[i] by the mean of the values within the radius. The two outermost values have the
 * fraction of the radius as weight. Beyond its ends, a line continues with its end values. */
static void box(struct lines *l, int count, double radius) {
    const int whole = (int)radius;
    const double fraction = radius - whole, weight = 1 / (2 * radius + 1);
    double first[LANES], last[LANES];
    for (int k = 0; k < LANES; k++) {
        first[k] = l->values[0][k];
        last[k] = l->values[count - 1][k];
        l->sums[0][k] = 0;
    }
    for (int i = 0; i < count; i++)
        for (int k = 0; k < LANES; k++)
            l->sums[i + 1][k] = l->sums[i][k] + l->values[i][k];
    for (int i = 0; i < count; i++) {
        const int from = i - whole, to = i + whole; /* both inclusive */
        const int inside_from = from < 0 ? 0 : from, inside_to = to >= count ? count - 1 : to;
        const double *begin = l->sums[inside_from], *end = l->sums[inside_to + 1];
        const bool has_before = from >= 1, has_after = to + 1 < count;
        for (int k = 0; k < LANES; k++) {
            double sum = end[k] - begin[k] + (inside_from - from) * first[k] +
                         (to - inside_to) * last[k];
            const double before = has_before ? begin[k] - l->sums[inside_from - 1][k] : first[k];
            const double after = has_after ? l->sums[inside_to + 2][k] - end[k] : last[k];
            sum += fraction * (before + after);
            l->values[i][k] = (float)(weight * sum);
        }
    }
}

/* Makes all passes over up to LINES lines. The first begins at `at`, the lines are `apart` from
 * each other, and their pixels are `stride` apart. */
static void blur_lines(
    struct lines *l, float *at, int lines, size_t apart, int count, size_t stride, double radius) {
    for (int i = 0; i < count; i++)
        for (int k = 0; k < LINES; k++)
            memcpy(l->values[i] + k * CHANNELS,
                at + (size_t)i * stride + (size_t)(k < lines ? k : 0) * apart,
                CHANNELS * sizeof(*at));
    for (int pass = 0; pass < PASSES; pass++)
        box(l, count, radius);
    for (int i = 0; i < count; i++)
        for (int k = 0; k < lines; k++)
            memcpy(at + (size_t)i * stride + (size_t)k * apart, l->values[i] + k * CHANNELS,
                CHANNELS * sizeof(*at));
}

static int at_most(int lines) {
    return lines < LINES ? lines : LINES;
}

static void blur_layer(struct layer *layer, double sigma, struct lines *l) {
    const size_t row = (size_t)layer->width * CHANNELS;
    const double radius = box_radius(sigma);
    for (int y = 0; y < layer->height; y += LINES)
        blur_lines(l, layer->values + (size_t)y * row, at_most(layer->height - y), row,
            layer->width, CHANNELS, radius);
    for (int x = 0; x < layer->width; x += LINES)
        blur_lines(l, layer->values + (size_t)x * CHANNELS, at_most(layer->width - x), CHANNELS,
            layer->height, row, radius);
}

/* Copies the unmasked part of the picture; the rest of the layer is transparent. */
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

/* Composes `above` over `layer`. */
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

bool picture_smear(
    struct picture *picture, const struct picture *mask, struct cancel cancel, struct error *err) {
    static const struct {
        int sigma, times;
    } blurs[] = { { 256, 1 }, { 64, 1 }, { 16, 2 }, { 4, 4 }, { 2, 2 }, { 0, 1 } };
    const size_t values = (size_t)picture->width * (size_t)picture->height * CHANNELS;
    const int longer = picture->width > picture->height ? picture->width : picture->height;
    struct layer whole = { calloc(values, sizeof(float)), picture->width, picture->height };
    struct layer above = { calloc(values, sizeof(float)), picture->width, picture->height };
    struct lines lines = { malloc((size_t)longer * sizeof(*lines.values)),
        malloc(((size_t)longer + 1) * sizeof(*lines.sums)) };
    bool ok = (whole.values && above.values && lines.values && lines.sums) || no_memory(err);
    for (size_t i = 0; ok && i < sizeof(blurs) / sizeof(blurs[0]); i++) {
        if (cancel_is_asked(cancel)) {
            ok = cancelled(err);
            break;
        }
        fill_layer(&above, picture, mask);
        if (blurs[i].sigma > 0)
            blur_layer(&above, blurs[i].sigma, &lines);
        for (int k = 0; k < blurs[i].times; k++)
            compose(&whole, &above);
    }
    if (ok)
        to_pixels(&whole, picture);
    free(whole.values);
    free(above.values);
    free(lines.values);
    free(lines.sums);
    return ok;
}
