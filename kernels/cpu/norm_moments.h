/* Means and variances of groups. group_norm (norm.c) and its gradient (norm_backward.c) compute
 * them the same way: chunk by chunk, each variance around its chunk's own mean. */
#ifndef KERNELS_CPU_NORM_MOMENTS_H
#define KERNELS_CPU_NORM_MOMENTS_H

#include "kernels/cpu/simd.h"

/* Floats per chunk, chosen so that its pixels stay in the second-level cache between passes. */
#define CHUNK 16384

/* Returns the pixels per chunk. Chunks depend on the shape of a row alone, and their results are
 * added in order, so the bits are the same with any number of threads. */
static inline int64_t chunk_pixels(int64_t channels) {
    return channels < CHUNK ? CHUNK / channels : 1;
}

/* The mean and the sum of squared deviations of `count` elements. */
struct moments {
    double count, mean, squares;
};

/* Chan's update: *a becomes the moments of the elements of *a and *b together. */
static inline void merge(struct moments *a, const struct moments *b) {
    double count = a->count + b->count, delta = b->mean - a->mean;
    a->mean += delta * (b->count / count);
    a->squares += b->squares + delta * delta * (a->count * (b->count / count));
    a->count = count;
}

/* sums[c] = sum over pixels of x[c] - origin[c]; squares[c] = sum of the squares of these
 * differences, unless squares is NULL. origin, sums and squares are padded to whole vectors. */
INLINE void channel_sums(const void *x, enum dtype dtype, int64_t first, int64_t pixels,
    int64_t channels, const float *origin, float *sums, float *squares) {
    for (int64_t c = 0; c < channels; c += LANES) {
        int64_t count = channels - c, at = first + c;
        vf from = load(origin + c), sum[2] = { 0 }, square[2] = { 0 };
        for (int64_t i = 0; i < pixels; i++, at += channels) {
            vf d = (count >= LANES ? load_as(x, dtype, at) : load_some(x, dtype, at, count)) - from;
            sum[i & 1] += d;
            if (squares)
                square[i & 1] += d * d;
        }
        store(sums + c, sum[0] + sum[1]);
        if (squares)
            store(squares + c, square[0] + square[1]);
    }
}

/* Computes the moments of every group in one chunk of pixels. `scratch`: three padded arrays of
 * channels. */
INLINE void chunk_moments(const void *x, enum dtype dtype, int64_t first, int64_t pixels,
    int64_t channels, int groups, float *scratch, struct moments *out) {
    int64_t padded = (channels + LANES - 1) / LANES * LANES, width = channels / groups;
    float *mean = scratch, *sums = mean + padded, *squares = sums + padded;
    memset(mean, 0, (size_t)padded * sizeof(float));
    channel_sums(x, dtype, first, pixels, channels, mean, sums, NULL);
    for (int g = 0; g < groups; g++) {
        double sum = 0;
        for (int64_t c = g * width; c < (g + 1) * width; c++)
            sum += (double)sums[c];
        for (int64_t c = g * width; c < (g + 1) * width; c++)
            mean[c] = (float)(sum / (double)(pixels * width));
    }
    /* This mean is accurate to a few digits only; the second pass measures the deviations from
     * it. */
    channel_sums(x, dtype, first, pixels, channels, mean, sums, squares);
    for (int g = 0; g < groups; g++) {
        double sum = 0, square = 0, count = (double)(pixels * width);
        for (int64_t c = g * width; c < (g + 1) * width; c++) {
            sum += (double)sums[c];
            square += (double)squares[c];
        }
        out[g].count = count;
        out[g].mean = (double)mean[g * width] + sum / count;
        out[g].squares = square - sum * sum / count;
    }
}

/* The moments of a group over all chunks of a row. */
static inline struct moments merged(
    const struct moments *moments, int64_t chunks, int groups, int group) {
    struct moments all = moments[group];
    for (int64_t chunk = 1; chunk < chunks; chunk++)
        merge(&all, &moments[chunk * groups + group]);
    return all;
}

#endif
