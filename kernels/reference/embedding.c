#include "kernels/reference/reference.h"

#include <math.h>

static float element(const struct tensor *t, int64_t i) {
    if (t->dtype == DTYPE_F32)
        return ((const float *)t->data)[i];
    uint16_t half = ((const uint16_t *)t->data)[i];
    return t->dtype == DTYPE_BF16 ? bf16_to_f32(half) : f16_to_f32(half);
}

bool reference_embedding(const struct embedding_args *args, struct error *err) {
    const int32_t *ids = args->ids->data;
    int64_t t = args->ids->shape[1], tokens = args->ids->shape[0] * t;
    int64_t c = args->table->shape[1];
    struct float_output y = { 0 };
    if (!float_output_init(&y, args->y, err))
        return false;
    for (int64_t i = 0; i < tokens; i++)
        for (int64_t j = 0; j < c; j++)
            y.data[i * c + j] = args->positions ? element(args->table, ids[i] * c + j) +
                                                      element(args->positions, i % t * c + j)
                                                : element(args->table, ids[i] * c + j);
    bool ok = float_output_store(&y);
    float_output_finish(&y);
    return ok;
}

/* Stores one value. There is no buffer for the whole tensor, because the CPU's table uses this
 * entry in every step, and a step allocates nothing. */
static void put(struct tensor *y, int64_t i, float x) {
    convert_elements(
        (char *)y->data + (size_t)i * dtype_size(y->dtype), y->dtype, &x, DTYPE_F32, 1);
}

bool reference_timestep_embedding(const struct timestep_embedding_args *args, struct error *err) {
    const float *timesteps = args->timesteps->data;
    int64_t n = args->y->shape[0], dim = args->y->shape[1], half = dim / 2;
    (void)err;
    int64_t sin_at = args->flip_sin_to_cos ? half : 0, cos_at = half - sin_at;
    for (int64_t row = 0; row < n; row++) {
        for (int64_t i = 0; i < half; i++) {
            /* Every step in f32, as diffusers computes it. */
            float exponent = (float)-9.210340371976184 * (float)i; /* ln(10000) */
            float frequency = expf(exponent / ((float)half - args->freq_shift));
            float angle = timesteps[row] * frequency;
            put(args->y, row * dim + sin_at + i, sinf(angle));
            put(args->y, row * dim + cos_at + i, cosf(angle));
        }
    }
    return true;
}
