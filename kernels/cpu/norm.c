/* group_norm and layer_norm. Both compute the variance in a second pass over data that is still in
 * the cache. The deviations are measured from the mean of that data, so that a mean far from zero
 * costs no precision. */
#include "kernels/cpu/norm_moments.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

/* y = (x - mean[c]) * scale[c] + shift[c], then SiLU. `scales`: mean, scale and shift, in this
 * order, each padded. */
INLINE void normalise(const struct group_norm_args *args, enum dtype dtype, int64_t first,
    int64_t pixels, int64_t channels, const float *scales) {
    const void *x = args->x->data;
    void *y = args->y->data;
    int64_t padded = (channels + LANES - 1) / LANES * LANES;
    const float *mean = scales, *scale = mean + padded, *shift = scale + padded;
    for (int64_t i = 0; i < pixels; i++) {
        int64_t at = first + i * channels;
        for (int64_t c = 0; c < channels; c += LANES, at += LANES) {
            int64_t count = channels - c;
            bool whole = count >= LANES;
            vf v = whole ? load_as(x, dtype, at) : load_some(x, dtype, at, count);
            v = (v - load(mean + c)) * load(scale + c) + load(shift + c);
            if (args->silu)
                v = vf_silu(v, 1.0f);
            if (whole)
                store_as(y, dtype, at, v);
            else
                store_some(y, dtype, at, count, v);
        }
    }
}

/* For each channel of one row: the mean, gamma / sqrt(variance + eps), and beta corrected for the
 * rounding of the mean. */
static void row_scales(const struct group_norm_args *args, const struct moments *moments,
    int64_t chunks, int64_t channels, float *scales) {
    const float *gamma = args->gamma->data, *beta = args->beta->data;
    int64_t width = channels / args->groups, padded = (channels + LANES - 1) / LANES * LANES;
    float *mean = scales, *scale = mean + padded, *shift = scale + padded;
    for (int g = 0; g < args->groups; g++) {
        const struct moments all = merged(moments, chunks, args->groups, g);
        double inverse = 1.0 / sqrt(all.squares / all.count + (double)args->eps);
        for (int64_t c = g * width; c < (g + 1) * width; c++) {
            mean[c] = (float)all.mean;
            scale[c] = (float)((double)gamma[c] * inverse);
            double rest = all.mean - (double)mean[c];
            shift[c] = (float)((double)beta[c] - rest * (double)gamma[c] * inverse);
        }
    }
}

bool NAME(group_norm)(const struct group_norm_args *args, struct error *err) {
    const int64_t *s = args->x->shape;
    int64_t rows = s[0], pixels = s[1] * s[2], channels = s[3];
    int64_t padded = (channels + LANES - 1) / LANES * LANES;
    int64_t per_chunk = chunk_pixels(channels), chunks = (pixels + per_chunk - 1) / per_chunk;
    size_t threads = (size_t)omp_get_max_threads();
    size_t moments_count = (size_t)(rows * chunks * args->groups);
    size_t scales_count = ((size_t)rows + threads) * (size_t)(3 * padded);
    struct moments *moments = cpu_scratch(
        moments_count * sizeof(*moments) + scales_count * sizeof(float), err);
    if (!moments || cpu_plans())
        return moments != NULL;
    float *scales = (float *)(moments + moments_count);
    memset(scales, 0, scales_count * sizeof(float)); /* zeros as the padding of each array */
    bool bf16 = args->x->dtype == DTYPE_BF16;
#pragma omp parallel if (rows * chunks > 1)
    {
        float *scratch = scales + (rows + omp_get_thread_num()) * 3 * padded;
#pragma omp for
        for (int64_t item = 0; item < rows * chunks; item++) {
            int64_t row = item / chunks, from = item % chunks * per_chunk;
            int64_t count = pixels - from < per_chunk ? pixels - from : per_chunk;
            int64_t first = (row * pixels + from) * channels;
            struct moments *out = moments + item * args->groups;
            if (bf16)
                chunk_moments(
                    args->x->data, DTYPE_BF16, first, count, channels, args->groups, scratch, out);
            else
                chunk_moments(
                    args->x->data, DTYPE_F32, first, count, channels, args->groups, scratch, out);
        }
#pragma omp for
        for (int64_t row = 0; row < rows; row++)
            row_scales(args, moments + row * chunks * args->groups, chunks, channels,
                scales + row * 3 * padded);
#pragma omp for
        for (int64_t item = 0; item < rows * chunks; item++) {
            int64_t row = item / chunks, from = item % chunks * per_chunk;
            int64_t count = pixels - from < per_chunk ? pixels - from : per_chunk;
            int64_t first = (row * pixels + from) * channels;
            const float *own = scales + row * 3 * padded;
            if (bf16)
                normalise(args, DTYPE_BF16, first, count, channels, own);
            else
                normalise(args, DTYPE_F32, first, count, channels, own);
        }
    }
    return true;
}

/* Normalises one row of c elements. */
INLINE void layer_norm_row(
    const struct layer_norm_args *args, enum dtype dtype, int64_t first, int64_t c) {
    const void *x = args->x->data;
    const float *gamma = args->gamma->data, *beta = args->beta->data;
    int64_t whole = c / LANES * LANES, rest = c - whole;
    vf sum[2] = { 0 }, squares[2] = { 0 }, left[2] = { 0 };
    for (int64_t i = 0; i < whole; i += LANES)
        sum[i / LANES & 1] += load_as(x, dtype, first + i);
    if (rest)
        sum[0] += load_some(x, dtype, first + whole, rest);
    float mean = sum_of(sum[0] + sum[1]) / (float)c;
    for (int64_t i = 0; i < whole; i += LANES) {
        vf d = load_as(x, dtype, first + i) - mean;
        squares[i / LANES & 1] += d * d;
        left[i / LANES & 1] += d;
    }
    float square = sum_of(squares[0] + squares[1]), off = sum_of(left[0] + left[1]);
    for (int64_t i = whole; i < c; i++) {
        float d = load_some(x, dtype, first + i, 1)[0] - mean;
        square += d * d;
        off += d;
    }
    /* The rounding error of the mean is the mean of the deviations. */
    off /= (float)c;
    float scale = 1.0f / sqrtf(square / (float)c - off * off + args->eps);
    for (int64_t i = 0; i < whole; i += LANES) {
        vf v = (load_as(x, dtype, first + i) - mean - off) * scale;
        store_as(args->y->data, dtype, first + i, v * load(gamma + i) + load(beta + i));
    }
    if (rest) {
        vf v = (load_some(x, dtype, first + whole, rest) - mean - off) * scale;
        v = v * load_some(gamma, DTYPE_F32, whole, rest) + load_some(beta, DTYPE_F32, whole, rest);
        store_some(args->y->data, dtype, first + whole, rest, v);
    }
}

bool NAME(layer_norm)(const struct layer_norm_args *args, struct error *err) {
    (void)err;
    int64_t c = args->x->shape[args->x->rank - 1], m = tensor_elements(args->x) / c;
    bool bf16 = args->x->dtype == DTYPE_BF16;
#pragma omp parallel for if (m * c >= 16384)
    for (int64_t i = 0; i < m; i++) {
        if (bf16)
            layer_norm_row(args, DTYPE_BF16, i * c, c);
        else
            layer_norm_row(args, DTYPE_F32, i * c, c);
    }
    return true;
}
