/* AMX tiles in plain C, bit for bit except for the payload of a NaN. Include tile.h, not this file.
 *
 * An output of the product is c + (e + o): e and o are the sums over the pairs' first and second
 * members, each a chain of fused multiply-adds that starts at zero. Every step rounds to nearest
 * even. Subnormal inputs count as zero and subnormal results become zero, with their signs.
 *
 * A fused step is computed in double and rounded once more to float. The product of two bf16 is
 * exact in double. Where the sum is not exact, its terms are so far apart that the first rounding
 * cannot move it onto the middle between two floats. One corner has not been compared with a
 * processor: a step whose exact result is less than 2^-150 below 2^-126 is rounded to 2^-126 first,
 * and is then not flushed to zero.
 */
#ifndef KERNELS_CPU_ATTENTION_TILE_TWIN_H
#define KERNELS_CPU_ATTENTION_TILE_TWIN_H

#include "kernels/cpu/attention/tile.h"

#include <math.h>
#include <string.h>

#define TWIN_COLUMNS (TILE_ROW_BYTES / 4)

/* One thread's tiles. */
static _Thread_local struct {
    struct tile_config config;
    uint32_t tiles[TILES][TILE_ROWS][TWIN_COLUMNS];
} twin;

static inline void twin_configure(const struct tile_config *config) {
    memset(&twin, 0, sizeof(twin));
    twin.config = *config;
}

static inline void twin_release(void) {
    memset(&twin, 0, sizeof(twin));
}

static inline void twin_zero(int t) {
    memset(twin.tiles[t], 0, sizeof(twin.tiles[t]));
}

static inline void twin_load(int t, const void *from) {
    twin_zero(t);
    for (int i = 0; i < twin.config.rows[t]; i++)
        memcpy(twin.tiles[t][i], (const char *)from + i * TILE_ROW_BYTES, twin.config.row_bytes[t]);
}

static inline void twin_store(int t, void *to) {
    for (int i = 0; i < twin.config.rows[t]; i++)
        memcpy((char *)to + i * TILE_ROW_BYTES, twin.tiles[t][i], twin.config.row_bytes[t]);
}

/* Returns the float with these bits, or zero if it is subnormal. */
static inline float twin_float(uint32_t bits) {
    float x;
    bits = bits & 0x7f800000 ? bits : bits & 0x80000000;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Rounds x to the nearest float; a subnormal result becomes zero. */
static inline float twin_round(double x) {
    float f = (float)x;
    return fabsf(f) < 0x1p-126f ? 0.0f * f : f;
}

static inline void twin_multiply(int c, int a, int b) {
    const int rows = twin.config.rows[c], pairs = twin.config.row_bytes[a] / 4;
    double right[TILE_ROWS][2][TWIN_COLUMNS];
    for (int l = 0; l < pairs; l++)
        for (int j = 0; j < TWIN_COLUMNS; j++) {
            right[l][0][j] = (double)twin_float(twin.tiles[b][l][j] << 16);
            right[l][1][j] = (double)twin_float(twin.tiles[b][l][j] & 0xffff0000);
        }
    for (int i = 0; i < rows; i++) {
        float even[TWIN_COLUMNS] = { 0 }, odd[TWIN_COLUMNS] = { 0 };
        for (int l = 0; l < pairs; l++) {
            const double first = (double)twin_float(twin.tiles[a][i][l] << 16);
            const double second = (double)twin_float(twin.tiles[a][i][l] & 0xffff0000);
            for (int j = 0; j < TWIN_COLUMNS; j++) {
                even[j] = twin_round(first * right[l][0][j] + (double)even[j]);
                odd[j] = twin_round(second * right[l][1][j] + (double)odd[j]);
            }
        }
        for (int j = 0; j < TWIN_COLUMNS; j++) {
            const float sum = twin_round((double)even[j] + (double)odd[j]);
            const float y = twin_round((double)twin_float(twin.tiles[c][i][j]) + (double)sum);
            memcpy(&twin.tiles[c][i][j], &y, sizeof(y));
        }
    }
}

#endif
