#include "engine/drawing/latent_colours.h"

#include <math.h>
#include <stdlib.h>

#define TERMS_MAX (LATENT_COLOURS_CHANNELS_MAX + 1)

/* Draws squares of 16 px in the upper half for detail, and of 32 px in the lower half for flat
 * colours. A VAE like SD 1.5's computes a latent from the pixels of about 10 latents around it. */
void latent_colours_fill(float *picture) {
    uint32_t state = 1;
    float colours[LATENT_COLOURS_PX / 16][LATENT_COLOURS_PX / 16][3];
    for (int i = 0; i < (int)(sizeof(colours) / sizeof(float)); i++) {
        state = state * 1664525u + 1013904223u; /* the constants of Numerical Recipes */
        ((float *)colours)[i] = (float)(state >> 8) / (float)(1 << 23) - 1;
    }
    for (int y = 0; y < LATENT_COLOURS_PX; y++) {
        const int square = y < LATENT_COLOURS_PX / 2 ? 16 : 32;
        for (int x = 0; x < LATENT_COLOURS_PX; x++)
            for (int k = 0; k < 3; k++)
                *picture++ = colours[y / square * (square / 16)][x / square * (square / 16)][k];
    }
}

/* Solves a x = b for three right-hand sides at once, by Gaussian elimination with pivoting. */
static bool solve(double a[TERMS_MAX][TERMS_MAX], double b[TERMS_MAX][3], int n) {
    for (int i = 0; i < n; i++) {
        int pivot = i;
        for (int r = i + 1; r < n; r++)
            if (fabs(a[r][i]) > fabs(a[pivot][i]))
                pivot = r;
        if (!(fabs(a[pivot][i]) > 0))
            return false;
        for (int k = 0; k < n; k++) {
            const double swap = a[i][k];
            a[i][k] = a[pivot][k];
            a[pivot][k] = swap;
        }
        for (int k = 0; k < 3; k++) {
            const double swap = b[i][k];
            b[i][k] = b[pivot][k];
            b[pivot][k] = swap;
        }
        for (int r = 0; r < n; r++) {
            if (r == i)
                continue;
            const double factor = a[r][i] / a[i][i];
            for (int k = i; k < n; k++)
                a[r][k] -= factor * a[i][k];
            for (int k = 0; k < 3; k++)
                b[r][k] -= factor * b[i][k];
        }
    }
    return true;
}

/* Computes the mean colour of the pixels that latent (y, x) covers. */
static void mean_colour(const float *picture, int side, int y, int x, double out[3]) {
    const int px = LATENT_COLOURS_PX / side;
    out[0] = out[1] = out[2] = 0;
    for (int v = y * px; v < (y + 1) * px; v++)
        for (int u = x * px; u < (x + 1) * px; u++)
            for (int k = 0; k < 3; k++)
                out[k] += picture[(v * LATENT_COLOURS_PX + u) * 3 + k] / (double)(px * px);
}

bool latent_colours_fit(const float *latents, int side, int stride, int channels, float scale,
    struct latent_colours *out, struct error *err) {
    if (channels > LATENT_COLOURS_CHANNELS_MAX)
        return error_set(err, ERROR_UNSUPPORTED, "previews of latents of %d channels, at most %d",
            channels, LATENT_COLOURS_CHANNELS_MAX);
    const int n = channels + 1;
    double a[TERMS_MAX][TERMS_MAX] = { 0 }, b[TERMS_MAX][3] = { 0 };
    float *picture = malloc(sizeof(float) * LATENT_COLOURS_PX * LATENT_COLOURS_PX * 3);
    if (!picture)
        return error_set(err, ERROR_NO_MEMORY, "no memory for the colours of latents");
    latent_colours_fill(picture);
    for (int y = 0; y < side; y++)
        for (int x = 0; x < side; x++) {
            double terms[TERMS_MAX], colour[3];
            for (int i = 0; i < channels; i++)
                terms[i] = (double)scale * latents[(y * side + x) * stride + i];
            terms[channels] = 1;
            mean_colour(picture, side, y, x, colour);
            for (int i = 0; i < n; i++) {
                for (int k = 0; k < n; k++)
                    a[i][k] += terms[i] * terms[k];
                for (int k = 0; k < 3; k++)
                    b[i][k] += terms[i] * colour[k];
            }
        }
    free(picture);
    for (int i = 0; i < n; i++)
        a[i][i] += 1e-6 * side * side; /* so a channel that is always 0 gets weight 0 */
    bool finite = solve(a, b, n);
    *out = (struct latent_colours){ .channels = channels };
    for (int i = 0; finite && i < n; i++)
        for (int k = 0; k < 3; k++) {
            out->weights[k][i] = (float)(b[i][k] / a[i][i]);
            finite = finite && isfinite(out->weights[k][i]);
        }
    return finite || error_set(err, ERROR_INTERNAL, "the colours of latents are not finite");
}

void latent_colours_apply(
    const struct latent_colours *colours, const float *latents, int64_t pixels, uint8_t *out) {
    const int channels = colours->channels;
    for (int64_t i = 0; i < pixels; i++)
        for (int k = 0; k < 3; k++) {
            float value = colours->weights[k][channels];
            for (int c = 0; c < channels; c++)
                value += colours->weights[k][c] * latents[c * pixels + i];
            /* fmaxf also turns NaN into a colour. */
            *out++ = (uint8_t)lrintf(fminf(fmaxf(value * 0.5f + 0.5f, 0), 1) * 255);
        }
}
