#include "pictures/resize.h"

#include "base/limits.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PI 3.14159265358979323846
/* Fraction bits of a weight. With 8 bits for the pixel and 2 for the sign and weights above 1, the
 * product has 32 bits. */
#define FRACTION_BITS 22

/* The rows or columns of a result that are made: `count` of `length`, from `first` on. */
struct span {
    int length, first, count;
};

/* The weights for one row or column of the result. Each of its pixels is a weighted sum of a run of
 * pixels in the source. */
struct weights {
    int most;        /* length of the longest run */
    int *first;      /* [span.count]: where the run begins */
    int *count;      /* [span.count] */
    int32_t *weight; /* [span.count][most], in 1/2^FRACTION_BITS */
};

static double bilinear(double x) {
    return fmax(1 - fabs(x), 0);
}

/* Keys's cubic with a = -0.5. */
static double bicubic(double x) {
    const double a = -0.5, d = fabs(x);
    if (d < 1)
        return ((a + 2) * d - (a + 3)) * d * d + 1;
    return d < 2 ? (((d - 5) * d + 8) * d - 4) * a : 0;
}

static double sinc(double x) {
    return x == 0 ? 1 : sin(x * PI) / (x * PI);
}

static double lanczos(double x) {
    return x >= -3 && x < 3 ? sinc(x) * sinc(x / 3) : 0;
}

static const struct {
    double (*value)(double);
    double radius;
} filters[] = { [RESIZE_LANCZOS] = { lanczos, 3 },
    [RESIZE_BILINEAR] = { bilinear, 1 },
    [RESIZE_BICUBIC] = { bicubic, 2 } };

static void weights_finish(struct weights *w) {
    free(w->first);
    free(w->count);
    free(w->weight);
}

/* Fills one run with samples of the filter around the centre, scaled so that their sum is 1. */
static void fill_run(struct weights *w, int index, double centre, int in, double scale,
    double radius, double (*filter)(double), double *values) {
    const double stretch = fmax(scale, 1), reach = radius * stretch;
    const int first = (int)fmax(centre - reach + 0.5, 0);
    const int end = (int)fmin(centre + reach + 0.5, in);
    double sum = 0;
    for (int i = 0; i < end - first; i++)
        sum += values[i] = filter((i + first - centre + 0.5) * (1 / stretch));
    for (int i = 0; i < end - first; i++) {
        const double share = (sum != 0 ? values[i] / sum : values[i]) * (1 << FRACTION_BITS);
        w->weight[(size_t)index * (size_t)w->most + (size_t)i] =
            (int32_t)(share + (share < 0 ? -0.5 : 0.5));
    }
    w->first[index] = first;
    w->count[index] = end - first;
}

static bool weights_init(
    struct weights *w, int in, struct span out, enum resize_filter filter, struct error *err) {
    const double scale = (double)in / out.length, radius = filters[filter].radius;
    *w = (struct weights){ .most = (int)ceil(radius * fmax(scale, 1)) * 2 + 1 };
    const size_t runs = (size_t)out.count, most = (size_t)w->most;
    double *values = calloc(most, sizeof(*values));
    w->first = calloc(runs, sizeof(*w->first));
    w->count = calloc(runs, sizeof(*w->count));
    w->weight = calloc(runs * most, sizeof(*w->weight));
    const bool ok = values && w->first && w->count && w->weight;
    for (int i = 0; ok && i < out.count; i++)
        fill_run(
            w, i, (out.first + i + 0.5) * scale, in, scale, radius, filters[filter].value, values);
    free(values);
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory to resize a picture");
}

static uint8_t rounded(int32_t sum) {
    const int32_t value = (sum + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

/* Resizes rows, from [height][in] to [height][out] pixels. */
static void resize_rows(const struct picture *in, const struct weights *w, struct picture *out) {
    const int channels = in->channels;
    for (int y = 0; y < out->height; y++) {
        const uint8_t *from = in->pixels + (size_t)y * (size_t)in->width * (size_t)channels;
        uint8_t *to = out->pixels + (size_t)y * (size_t)out->width * (size_t)channels;
        for (int x = 0; x < out->width; x++) {
            const int32_t *weight = w->weight + (size_t)x * (size_t)w->most;
            const uint8_t *run = from + w->first[x] * channels;
            int32_t sum[3] = { 0 };
            for (int i = 0; i < w->count[x]; i++)
                for (int c = 0; c < channels; c++)
                    sum[c] += weight[i] * run[i * channels + c];
            for (int c = 0; c < channels; c++)
                to[x * channels + c] = rounded(sum[c]);
        }
    }
}

/* Resizes columns. Each row of the result is a weighted sum of whole rows of the source. */
static bool resize_columns(
    const struct picture *in, const struct weights *w, struct picture *out, struct error *err) {
    const size_t row = (size_t)in->width * (size_t)in->channels;
    int32_t *sum = calloc(row, sizeof(*sum));
    if (!sum)
        return error_set(err, ERROR_NO_MEMORY, "no memory to resize a picture");
    for (int y = 0; y < out->height; y++) {
        memset(sum, 0, row * sizeof(*sum));
        for (int i = 0; i < w->count[y]; i++) {
            const uint8_t *from = in->pixels + (size_t)(w->first[y] + i) * row;
            const int32_t weight = w->weight[(size_t)y * (size_t)w->most + (size_t)i];
            for (size_t x = 0; x < row; x++)
                sum[x] += weight * from[x];
        }
        for (size_t x = 0; x < row; x++)
            out->pixels[(size_t)y * row + x] = rounded(sum[x]);
    }
    free(sum);
    return true;
}

/* Resizes in one direction. *out is a new picture. */
static bool resize_one_way(const struct picture *in, bool columns, struct span to,
    enum resize_filter filter, struct picture *out, struct error *err) {
    struct weights w = { 0 };
    const int width = columns ? in->width : to.count, height = columns ? to.count : in->height;
    const int from = columns ? in->height : in->width;
    bool ok = picture_create(width, height, in->channels, out, err);
    if (ok && to.length == from && to.count == from) {
        memcpy(out->pixels, in->pixels, (size_t)width * (size_t)height * (size_t)in->channels);
        return true;
    }
    ok = ok && weights_init(&w, from, to, filter, err);
    if (ok && columns)
        ok = resize_columns(in, &w, out, err);
    else if (ok)
        resize_rows(in, &w, out);
    weights_finish(&w);
    if (!ok)
        picture_finish(out);
    return ok;
}

/* Makes a part of the resized picture, the same pixels as in the whole one.
 *
 * The order of the directions affects the result, by up to tens of levels at sharp edges, because
 * pixels are rounded to 8 bits in between. Rows are resized first, unless columns first is less
 * work. This rule was observed in Pillow 13. */
static bool resize_part(const struct picture *in, struct span x, struct span y,
    enum resize_filter filter, struct picture *out, struct error *err) {
    const bool columns_first = y.length < in->height &&
                               2 * ((int64_t)in->width - x.length) < in->height - y.length;
    struct picture half;
    const int64_t between = columns_first ? (int64_t)in->width * y.count
                                          : (int64_t)x.count * in->height;
    *out = (struct picture){ 0 };
    if (between > PICTURE_MAX_PIXELS || (int64_t)x.count * y.count > PICTURE_MAX_PIXELS)
        return error_set(err, ERROR_INVALID,
            "%dx%d px would become %dx%d px on the way; pictures have at most %d million pixels",
            in->width, in->height, x.count, y.count, PICTURE_MAX_PIXELS / 1000000);
    if (!resize_one_way(in, columns_first, columns_first ? y : x, filter, &half, err))
        return false;
    const bool ok = resize_one_way(&half, !columns_first, columns_first ? x : y, filter, out, err);
    picture_finish(&half);
    return ok;
}

bool picture_resize(const struct picture *in, int width, int height, enum resize_filter filter,
    struct picture *out, struct error *err) {
    return resize_part(
        in, (struct span){ width, 0, width }, (struct span){ height, 0, height }, filter, out, err);
}

bool picture_resize_nearest(
    const struct picture *in, int width, int height, struct picture *out, struct error *err) {
    const double step_x = (double)in->width / width, step_y = (double)in->height / height;
    const size_t channels = (size_t)in->channels;
    int *column = calloc((size_t)width, sizeof(*column));
    double at_x = 0.5 * step_x, at_y = 0.5 * step_y; /* added up, as Pillow does */
    *out = (struct picture){ 0 };
    if (!column || !picture_create(width, height, in->channels, out, err)) {
        free(column);
        return error_set(err, ERROR_NO_MEMORY, "no memory to resize a picture");
    }
    for (int x = 0; x < width; x++, at_x += step_x)
        column[x] = (int)fmin(at_x, in->width - 1);
    for (int y = 0; y < height; y++, at_y += step_y) {
        const size_t row = (size_t)fmin(at_y, in->height - 1) * (size_t)in->width;
        for (int x = 0; x < width; x++)
            memcpy(out->pixels + channels * ((size_t)y * (size_t)width + (size_t)x),
                in->pixels + channels * (row + (size_t)column[x]), channels);
    }
    free(column);
    return true;
}

/* Returns the part of a side of `length` that is visible in the middle of one of `size`. */
static struct span middle(int length, int size) {
    const int first = length / 2 - size / 2;
    return length > size ? (struct span){ length, first, size }
                         : (struct span){ length, 0, length };
}

/* Resizes to wide x high and puts the result into the middle of a black picture of width x height.
 * Makes only the part that is visible there: all of a thin picture may be many times as large. */
static bool resize_in_middle(const struct picture *in, int wide, int high, int width, int height,
    struct picture *out, struct error *err) {
    const struct span x = middle(wide, width), y = middle(high, height);
    const size_t channels = (size_t)in->channels, row = (size_t)x.count * channels;
    struct picture part;
    *out = (struct picture){ 0 };
    if (!resize_part(in, x, y, RESIZE_LANCZOS, &part, err))
        return false;
    const bool ok = picture_create(width, height, in->channels, out, err);
    const int left = wide > width ? 0 : width / 2 - wide / 2;
    const int top = high > height ? 0 : height / 2 - high / 2;
    for (int i = 0; ok && i < y.count; i++)
        memcpy(out->pixels + ((size_t)(top + i) * (size_t)width + (size_t)left) * channels,
            part.pixels + (size_t)i * row, row);
    picture_finish(&part);
    return ok;
}

bool picture_resize_to_cover(
    const struct picture *in, int width, int height, struct picture *out, struct error *err) {
    const double ratio = (double)width / height, own = (double)in->width / in->height;
    const int64_t by_height = (int64_t)in->width * height / in->height;
    const int64_t by_width = (int64_t)in->height * width / in->width;
    const int64_t wide = ratio > own ? width : by_height, high = ratio <= own ? height : by_width;
    *out = (struct picture){ 0 };
    if (wide > INT_MAX || high > INT_MAX)
        return error_set(err, ERROR_INVALID, "%dx%d px cannot cover %dx%d px: it is too thin",
            in->width, in->height, width, height);
    return resize_in_middle(in, (int)wide, (int)high, width, height, out, err);
}

/* Fills `count` lines of a picture from the line `to` on. A line is a row, or with `columns` a
 * column. Each gets what Pillow's bicubic filter gives for an empty box at the edge: the sum of the
 * line `edge`, times 9/8, and of the one behind it, `next`, times -1/8. Lines outside of the
 * picture are left out. */
static void fill_lines(struct picture *p, bool columns, int to, int count, int edge, int next) {
    const int lines = columns ? p->width : p->height, length = columns ? p->height : p->width;
    const size_t channels = (size_t)p->channels, row = (size_t)p->width * channels;
    const size_t line = columns ? channels : row, along = columns ? row : channels;
    for (int i = to; i < to + count && i < lines; i++)
        for (int k = 0; k < length; k++)
            for (size_t c = 0; c < channels; c++) {
                uint8_t *at = p->pixels + (size_t)k * along + c;
                const int sum = 9 * at[(size_t)edge * line] - at[(size_t)next * line] + 4;
                at[(size_t)i * line] = (uint8_t)(sum < 0 ? 0 : sum > 8 * 255 ? 255 : sum / 8);
            }
}

bool picture_resize_to_fill(
    const struct picture *in, int width, int height, struct picture *out, struct error *err) {
    const double ratio = (double)width / height, own = (double)in->width / in->height;
    const int64_t by_height = (int64_t)in->width * height / in->height;
    const int64_t by_width = (int64_t)in->height * width / in->width;
    const int wide = ratio < own ? width : (int)(by_height > 0 ? by_height : 1);
    const int high = ratio >= own ? height : (int)(by_width > 0 ? by_width : 1);
    if (!resize_in_middle(in, wide, high, width, height, out, err))
        return false;
    const bool columns = ratio > own;
    const int size = columns ? wide : high;
    const int fill = columns ? width / 2 - wide / 2 : height / 2 - high / 2;
    const int first = fill, last = fill + size - 1;
    if (ratio != own && fill > 0) {
        fill_lines(out, columns, 0, fill, first, first < last ? first + 1 : first);
        fill_lines(out, columns, last + 1, fill, last, last > first ? last - 1 : last);
    }
    return true;
}
