#include "engine/resolve/variation.h"

#include <math.h>
#include <stdlib.h>

static int64_t elements(const struct latent_shape *s) {
    return s->channels * s->height * s->width;
}

/* Draws the first noise of a seed. Returns [c][h][w], malloc'd; NULL when memory is short. */
static float *draw(enum rng_kind kind, uint64_t seed, const struct latent_shape *shape) {
    struct noise_generator generator;
    float *noise = malloc((size_t)elements(shape) * sizeof(*noise));
    if (!noise)
        return NULL;
    noise_init(&generator, kind, seed);
    noise_draw(&generator, noise, elements(shape));
    return noise;
}

/* Returns the cosine of the angle between two columns of `rows` values that are `stride` apart. */
static double cosine(const float *a, const float *b, int64_t rows, int64_t stride) {
    double product = 0, a_square = 0, b_square = 0;
    for (int64_t y = 0; y < rows; y++) {
        const double p = a[y * stride], q = b[y * stride];
        product += p * q;
        a_square += p * p;
        b_square += q * q;
    }
    return fmax(-1, fmin(1, product / sqrt(a_square * b_square)));
}

/* noise = sin((1 - s) angle) / sin(angle) noise + sin(s angle) / sin(angle) target, for each column
 * of each channel. Noises that are nearly the same have no angle to speak of: they are mixed, with
 * the shares in AUTOMATIC1111's order. cosines: scratch, [c][w]. */
static void turn(float *noise, const float *target, double strength,
    const struct latent_shape *shape, double *cosines) {
    const int64_t w = shape->width, h = shape->height, columns = shape->channels * w;
    double sum = 0;
    for (int64_t i = 0; i < columns; i++) {
        const int64_t at = i / w * h * w + i % w;
        cosines[i] = cosine(noise + at, target + at, h, w);
        sum += cosines[i];
    }
    const bool same = sum / (double)columns > 0.9995;
    for (int64_t i = 0; i < columns; i++) {
        const int64_t at = i / w * h * w + i % w;
        const double angle = acos(cosines[i]), sine = sin(angle);
        const double own = same ? strength : sin((1 - strength) * angle) / sine;
        const double others = same ? 1 - strength : sin(strength * angle) / sine;
        for (int64_t k = at; k < at + h * w; k += w)
            noise[k] = (float)(own * noise[k] + others * target[k]);
    }
}

static bool turn_to_subseed(const struct noise_variation *v, const struct latent_shape *shape,
    float *noise, struct error *err) {
    float *target = draw(v->kind, v->subseed, shape);
    double *cosines = malloc((size_t)(shape->channels * shape->width) * sizeof(*cosines));
    const bool ok = target && cosines;
    if (ok)
        turn(noise, target, v->strength, shape, cosines);
    free(target);
    free(cosines);
    return ok || error_set(err, ERROR_NO_MEMORY, "no memory for a subseed's noise");
}

/* How one side of an old noise is put into the new one: `count` values from `from` on, to `to`. */
struct overlap {
    int64_t from, to, count;
};

/* Centers a side. With an odd difference, AUTOMATIC1111 rounds the offset down; the last value of a
 * side that is smaller than before then keeps its own noise. */
static struct overlap center(int64_t now, int64_t before) {
    const int64_t difference = now - before;
    const int64_t offset = difference >= 0 ? difference / 2 : -((1 - difference) / 2);
    return offset >= 0 ? (struct overlap){ 0, offset, before }
                       : (struct overlap){ -offset, 0, before + 2 * offset };
}

static void paste(const float *old, const struct latent_shape *before, float *noise,
    const struct latent_shape *now) {
    const struct overlap x = center(now->width, before->width);
    const struct overlap y = center(now->height, before->height);
    for (int64_t c = 0; c < now->channels; c++)
        for (int64_t row = 0; row < y.count; row++)
            for (int64_t i = 0; i < x.count; i++)
                noise[(c * now->height + y.to + row) * now->width + x.to + i] =
                    old[(c * before->height + y.from + row) * before->width + x.from + i];
}

bool noise_vary(const struct noise_variation *variation, const struct latent_shape *shape,
    float *noise, struct error *err) {
    const struct noise_variation *v = variation;
    const struct latent_shape before = { shape->channels, v->height, v->width };
    const bool resized = v->height > 0 && v->width > 0 &&
                         (v->height != shape->height || v->width != shape->width);
    if (!resized)
        return v->strength <= 0 || turn_to_subseed(v, shape, noise, err);
    float *old = draw(v->kind, v->seed, &before);
    if (!old)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the noise of another size");
    const bool ok = v->strength <= 0 || turn_to_subseed(v, &before, old, err);
    if (ok)
        paste(old, &before, noise, shape);
    free(old);
    return ok;
}
