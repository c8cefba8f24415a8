/* The gradients of group_norm and layer_norm. With n = (x - mean) inverse, where inverse is
 * 1 / sqrt(variance + eps), and dh the gradient of gamma n + beta (dy, or dy silu'):
 *
 *   dx = inverse (dh gamma - mean(dh gamma) - n mean(dh gamma n));
 *   dgamma += sum of dh n;  dbeta += sum of dh.
 *
 * Mean and variance are computed again as the forward does. group_norm keeps the sums of dh and of
 * dh n for each chunk of pixels and each channel. The means of a group, dgamma and dbeta are
 * computed from these sums, added in order. layer_norm keeps the sums for each chunk of tokens, if
 * dgamma or dbeta is wanted.
 *
 * An element that is alone in its group is its own mean and has no gradient. Its inverse is
 * therefore taken as 0; otherwise the rounding error of dh gamma - mean(dh gamma) would be
 * multiplied by 1 / sqrt(eps).
 */
#include "kernels/cpu/norm_moments.h"
#include "kernels/cpu/scratch.h"

#include <omp.h>

#define TOKENS 64 /* tokens per chunk of layer_norm */

static int64_t padded_to_lanes(int64_t channels) {
    return (channels + LANES - 1) / LANES * LANES;
}

/* ---- group_norm ---- */

/* For each channel of one row, each array padded: n = (x - mean) inverse - rest. flat and tilted
 * are the means of dh gamma and of dh gamma n over the channel's group. */
struct channels {
    float *mean, *inverse, *rest, *gamma, *beta, *flat, *tilted;
};
#define CHANNEL_ARRAYS 7

static struct channels channels_at(float *memory, int64_t padded) {
    return (struct channels){ memory, memory + padded, memory + 2 * padded, memory + 3 * padded,
        memory + 4 * padded, memory + 5 * padded, memory + 6 * padded };
}

static void find_channels(const struct group_norm_backward_args *args,
    const struct moments *moments, int64_t chunks, int64_t channels, const struct channels *c) {
    const float *gamma = args->gamma->data, *beta = args->beta->data;
    const int64_t width = channels / args->groups;
    for (int g = 0; g < args->groups; g++) {
        const struct moments all = merged(moments, chunks, args->groups, g);
        const double scale = 1.0 / sqrt(all.squares / all.count + (double)args->eps);
        const double inverse = all.count > 1 ? scale : 0.0;
        for (int64_t i = g * width; i < (g + 1) * width; i++) {
            c->mean[i] = (float)all.mean;
            c->inverse[i] = (float)inverse;
            c->rest[i] = (float)((all.mean - (double)c->mean[i]) * inverse);
            c->gamma[i] = gamma[i];
            c->beta[i] = beta[i];
        }
    }
}

/* Returns dh of LANES channels from `i` on, and *n; `silu` is a compile-time constant. */
INLINE vf before_silu(const struct channels *c, int64_t i, bool silu, vf x, vf dy, vf *n) {
    *n = (x - load(c->mean + i)) * load(c->inverse + i) - load(c->rest + i);
    if (!silu)
        return dy;
    vf z = *n * load(c->gamma + i) + load(c->beta + i);
    return dy * vf_silu_slope(z, 1.0f);
}

/* sums[0..channels) = the sums of dh over some pixels; behind them (padded) the sums of dh n. */
INLINE void chunk_sums(const struct group_norm_backward_args *args, enum dtype dtype, bool silu,
    int64_t first, int64_t pixels, int64_t channels, const struct channels *c, float *sums) {
    const int64_t padded = padded_to_lanes(channels);
    for (int64_t i = 0; i < channels; i += LANES) {
        vf flat[2] = { 0 }, tilted[2] = { 0 }, n;
        int64_t at = first + i;
        for (int64_t p = 0; p < pixels; p++, at += channels) {
            vf dh = before_silu(c, i, silu, load_up_to(args->x->data, dtype, at, channels - i),
                load_up_to(args->dy->data, dtype, at, channels - i), &n);
            flat[p & 1] += dh;
            tilted[p & 1] += dh * n;
        }
        store(sums + i, flat[0] + flat[1]);
        store(sums + padded + i, tilted[0] + tilted[1]);
    }
}

/* Computes the means of each group of a row from the sums of the row's chunks. */
static void find_means(const struct group_norm_backward_args *args, const float *sums,
    int64_t chunks, int64_t pixels, int64_t channels, const struct channels *c) {
    const int64_t padded = padded_to_lanes(channels), width = channels / args->groups;
    const double count = (double)(pixels * width);
    for (int g = 0; g < args->groups; g++) {
        double flat = 0, tilted = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++) {
            const float *own = sums + chunk * 2 * padded;
            for (int64_t i = g * width; i < (g + 1) * width; i++) {
                flat += (double)own[i] * (double)c->gamma[i];
                tilted += (double)own[padded + i] * (double)c->gamma[i];
            }
        }
        for (int64_t i = g * width; i < (g + 1) * width; i++) {
            c->flat[i] = (float)(flat / count);
            c->tilted[i] = (float)(tilted / count);
        }
    }
}

INLINE void chunk_gradient(const struct group_norm_backward_args *args, enum dtype dtype, bool silu,
    int64_t first, int64_t pixels, int64_t channels, const struct channels *c) {
    for (int64_t p = 0; p < pixels; p++) {
        int64_t at = first + p * channels;
        for (int64_t i = 0; i < channels; i += LANES, at += LANES) {
            vf n, dh = before_silu(c, i, silu, load_up_to(args->x->data, dtype, at, channels - i),
                      load_up_to(args->dy->data, dtype, at, channels - i), &n);
            vf dx = dh * load(c->gamma + i) - load(c->flat + i) - n * load(c->tilted + i);
            store_up_to(args->dx->data, dtype, at, channels - i, args->accumulate,
                dx * load(c->inverse + i));
        }
    }
}

/* to[i] += the sums of all chunks, in order. `part`: 0 for dh, 1 for dh n. */
static void add_chunks(
    struct tensor *to, const float *sums, int64_t chunks, int64_t channels, int part) {
    const int64_t padded = padded_to_lanes(channels);
    if (!to)
        return;
#pragma omp parallel for if (chunks * channels >= 65536)
    for (int64_t i = 0; i < channels; i++) {
        double sum = 0;
        for (int64_t chunk = 0; chunk < chunks; chunk++)
            sum += (double)sums[(2 * chunk + part) * padded + i];
        ((float *)to->data)[i] += (float)sum;
    }
}

/* The sizes and buffers of one call. */
struct plan {
    int64_t rows, pixels, channels, padded, per_chunk, chunks;
    struct moments *moments; /* [rows][chunks][groups] */
    float *sums;             /* [rows][chunks][2][padded] */
    float *arrays;           /* [rows][CHANNEL_ARRAYS][padded] */
    float *threads;          /* [threads][3][padded] */
};

enum stage { STAGE_MOMENTS, STAGE_SUMS, STAGE_GRADIENT };

/* Runs one stage for one chunk; dtype, silu and stage are compile-time constants. */
INLINE void run_chunk(const struct group_norm_backward_args *args, const struct plan *p,
    int64_t item, enum dtype dtype, bool silu, enum stage stage) {
    const int64_t row = item / p->chunks, from = item % p->chunks * p->per_chunk;
    const int64_t count = p->pixels - from < p->per_chunk ? p->pixels - from : p->per_chunk;
    const int64_t first = (row * p->pixels + from) * p->channels;
    const struct channels c = channels_at(p->arrays + row * CHANNEL_ARRAYS * p->padded, p->padded);
    if (stage == STAGE_MOMENTS)
        chunk_moments(args->x->data, dtype, first, count, p->channels, args->groups,
            p->threads + omp_get_thread_num() * 3 * p->padded, p->moments + item * args->groups);
    else if (stage == STAGE_SUMS)
        chunk_sums(
            args, dtype, silu, first, count, p->channels, &c, p->sums + item * 2 * p->padded);
    else
        chunk_gradient(args, dtype, silu, first, count, p->channels, &c);
}

/* Runs all stages. Called by every thread of the team. */
INLINE void run_stages(const struct group_norm_backward_args *args, const struct plan *p,
    enum dtype dtype, bool silu) {
    const int64_t items = p->rows * p->chunks;
#pragma omp for
    for (int64_t item = 0; item < items; item++)
        run_chunk(args, p, item, dtype, silu, STAGE_MOMENTS);
#pragma omp for
    for (int64_t row = 0; row < p->rows; row++) {
        const struct channels c = channels_at(
            p->arrays + row * CHANNEL_ARRAYS * p->padded, p->padded);
        find_channels(
            args, p->moments + row * p->chunks * args->groups, p->chunks, p->channels, &c);
    }
#pragma omp for
    for (int64_t item = 0; item < items; item++)
        run_chunk(args, p, item, dtype, silu, STAGE_SUMS);
    if (!args->dx)
        return;
#pragma omp for
    for (int64_t row = 0; row < p->rows; row++) {
        const struct channels c = channels_at(
            p->arrays + row * CHANNEL_ARRAYS * p->padded, p->padded);
        find_means(
            args, p->sums + row * p->chunks * 2 * p->padded, p->chunks, p->pixels, p->channels, &c);
    }
#pragma omp for
    for (int64_t item = 0; item < items; item++)
        run_chunk(args, p, item, dtype, silu, STAGE_GRADIENT);
}

bool NAME(group_norm_backward)(const struct group_norm_backward_args *args, struct error *err) {
    const int64_t *s = args->x->shape;
    struct plan p = { .rows = s[0], .pixels = s[1] * s[2], .channels = s[3] };
    p.padded = padded_to_lanes(p.channels);
    p.per_chunk = chunk_pixels(p.channels);
    p.chunks = (p.pixels + p.per_chunk - 1) / p.per_chunk;
    const size_t moments = (size_t)(p.rows * p.chunks * args->groups);
    const size_t sums = (size_t)(p.rows * p.chunks * 2 * p.padded);
    const size_t arrays = (size_t)(p.rows * CHANNEL_ARRAYS * p.padded);
    const size_t threads = (size_t)(omp_get_max_threads() * 3 * p.padded);
    char *memory = cpu_scratch(
        moments * sizeof(*p.moments) + (sums + arrays + threads) * sizeof(float), err);
    if (!memory || cpu_plans())
        return memory != NULL;
    p.moments = (struct moments *)memory;
    p.sums = (float *)(memory + moments * sizeof(*p.moments));
    p.arrays = p.sums + sums;
    p.threads = p.arrays + arrays;
    memset(
        p.arrays, 0, (arrays + threads) * sizeof(float)); /* zeros as the padding of each array */
    const bool bf16 = args->x->dtype == DTYPE_BF16;
#pragma omp parallel if (p.rows * p.chunks > 1)
    {
        if (bf16 && args->silu)
            run_stages(args, &p, DTYPE_BF16, true);
        else if (bf16)
            run_stages(args, &p, DTYPE_BF16, false);
        else if (args->silu)
            run_stages(args, &p, DTYPE_F32, true);
        else
            run_stages(args, &p, DTYPE_F32, false);
    }
    add_chunks(args->dbeta, p.sums, p.rows * p.chunks, p.channels, 0);
    add_chunks(args->dgamma, p.sums, p.rows * p.chunks, p.channels, 1);
    return true;
}

/* ---- layer_norm ---- */

/* A token's mean, the rounding error of that mean, and 1 / sqrt(variance + eps), computed as in the
 * forward. */
struct token {
    float mean, off, inverse;
};

INLINE struct token token_of(const void *x, enum dtype dtype, int64_t first, int64_t c, float eps) {
    vf sum = { 0 }, squares = { 0 }, left = { 0 };
    struct token t;
    for (int64_t i = 0; i < c; i += LANES)
        sum += load_up_to(x, dtype, first + i, c - i);
    t.mean = sum_of(sum) / (float)c;
    const int64_t whole = c / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        vf d = load_as(x, dtype, first + i) - t.mean;
        squares += d * d;
        left += d;
    }
    float square = sum_of(squares), off = sum_of(left);
    for (int64_t i = whole; i < c; i++) {
        float d = load_some(x, dtype, first + i, 1)[0] - t.mean;
        square += d * d;
        off += d;
    }
    t.off = off / (float)c;
    t.inverse = c > 1 ? 1.0f / sqrtf(square / (float)c - t.off * t.off + eps) : 0.0f;
    return t;
}

/* Computes dx of one token. Unless `sums` is NULL, adds dy and then (padded) dy n to it. */
INLINE void layer_norm_token(const struct layer_norm_backward_args *args, enum dtype dtype,
    int64_t first, int64_t c, float *sums) {
    const struct token t = token_of(args->x->data, dtype, first, c, args->eps);
    vf flat = { 0 }, tilted = { 0 };
    for (int64_t i = 0; i < c; i += LANES) {
        vf dy = load_up_to(args->dy->data, dtype, first + i, c - i);
        vf n = (load_up_to(args->x->data, dtype, first + i, c - i) - t.mean - t.off) * t.inverse;
        vf g = dy * load_up_to(args->gamma->data, DTYPE_F32, i, c - i); /* zeros behind c */
        flat += g;
        tilted += g * n;
        if (sums) {
            float *own = sums + padded_to_lanes(c) + i;
            store(sums + i, load(sums + i) + dy);
            store(own, load(own) + dy * n);
        }
    }
    if (!args->dx)
        return;
    const float flat_mean = sum_of(flat) / (float)c, tilted_mean = sum_of(tilted) / (float)c;
    for (int64_t i = 0; i < c; i += LANES) {
        vf n = (load_up_to(args->x->data, dtype, first + i, c - i) - t.mean - t.off) * t.inverse;
        vf g = load_up_to(args->dy->data, dtype, first + i, c - i) *
               load_up_to(args->gamma->data, DTYPE_F32, i, c - i);
        store_up_to(args->dx->data, dtype, first + i, c - i, args->accumulate,
            (g - flat_mean - n * tilted_mean) * t.inverse);
    }
}

bool NAME(layer_norm_backward)(const struct layer_norm_backward_args *args, struct error *err) {
    const int64_t c = args->x->shape[args->x->rank - 1], tokens = tensor_elements(args->x) / c;
    const int64_t chunks = (tokens + TOKENS - 1) / TOKENS, padded = padded_to_lanes(c);
    const bool summed = args->dgamma || args->dbeta, bf16 = args->x->dtype == DTYPE_BF16;
    float *sums = NULL;
    if (summed)
        sums = cpu_scratch((size_t)(chunks * 2 * padded) * sizeof(float), err);
    if ((summed && !sums) || cpu_plans())
        return !summed || sums;
#pragma omp parallel for if (tokens * c >= 16384)
    for (int64_t chunk = 0; chunk < chunks; chunk++) {
        const int64_t last = chunk + 1 < chunks ? (chunk + 1) * TOKENS : tokens;
        float *own = summed ? sums + chunk * 2 * padded : NULL;
        if (own)
            memset(own, 0, (size_t)(2 * padded) * sizeof(float));
        for (int64_t i = chunk * TOKENS; i < last; i++) {
            if (bf16)
                layer_norm_token(args, DTYPE_BF16, i * c, c, own);
            else
                layer_norm_token(args, DTYPE_F32, i * c, c, own);
        }
    }
    add_chunks(args->dbeta, sums, chunks, c, 0);
    add_chunks(args->dgamma, sums, chunks, c, 1);
    return true;
}
