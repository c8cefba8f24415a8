/* embedding and timestep_embedding: a few thousand elements each, one thread per element. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/numeric.cuh"
#include "kernels/cuda/ptx.cuh"

#define THREADS 256

__device__ __forceinline__ float element(const void *data, enum dtype dtype, int64_t i) {
    switch (dtype) {
    case DTYPE_F16:
        return to_float(((const __half *)data)[i]);
    case DTYPE_BF16:
        return to_float(((const __nv_bfloat16 *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

__device__ __forceinline__ void put(void *data, enum dtype dtype, int64_t i, float x) {
    switch (dtype) {
    case DTYPE_F16:
        ((__half *)data)[i] = from_float<__half>(x);
        break;
    case DTYPE_BF16:
        ((__nv_bfloat16 *)data)[i] = from_float<__nv_bfloat16>(x);
        break;
    default:
        ((float *)data)[i] = x;
    }
}

struct embedding {
    const int *ids;
    const void *table, *positions;
    void *y;
    enum dtype table_dtype, positions_dtype, dtype;
    int tokens, channels; /* tokens of one row */
};

/* y[row][t] = table[ids[row][t]] + positions[t], or without positions. Block x is one token of the
 * batch. */
__global__ void __launch_bounds__(THREADS) embedding(const struct embedding e) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t token = blockIdx.x, t = token % e.tokens;
    const int64_t entry = e.ids[token];
    for (int c = (int)threadIdx.x; c < e.channels; c += THREADS) {
        float x = element(e.table, e.table_dtype, entry * e.channels + c);
        if (e.positions)
            x += element(e.positions, e.positions_dtype, t * e.channels + c);
        put(e.y, e.dtype, token * e.channels + c, x);
    }
}

extern "C" bool cuda_embedding(const struct embedding_args *args, struct error *err) {
    struct embedding e = {};
    e.ids = (const int *)args->ids->data;
    e.table = args->table->data;
    e.positions = args->positions ? args->positions->data : NULL;
    e.y = args->y->data;
    e.table_dtype = args->table->dtype;
    e.positions_dtype = args->positions ? args->positions->dtype : DTYPE_F32;
    e.dtype = args->y->dtype;
    e.tokens = (int)args->ids->shape[1];
    e.channels = (int)args->table->shape[1];
    return launch(
        embedding, dim3((unsigned)tensor_elements(args->ids)), THREADS, 0, "embedding", err, e);
}

/* y[row] = [cos(t f_0..) | sin(t f_0..)], or [sin | cos]. Values are rounded to f32 where diffusers
 * rounds them. In between the arithmetic is in double, because an angle of 1000 makes an error of
 * one unit in the frequency's last place a thousand times as large. Whole turns are removed before
 * the sine, which then needs no table. Block x is a row. */
__global__ void __launch_bounds__(THREADS) timestep_embedding(
    const float *timesteps, void *y, enum dtype dtype, int half, float freq_shift, bool cos_first) {
    griddepcontrol_wait();
    griddepcontrol_launch();
    const int64_t row = blockIdx.x;
    for (int i = (int)threadIdx.x; i < half; i += THREADS) {
        const float exponent = (float)-9.210340371976184 * (float)i; /* ln(10000) */
        const float power = exponent / ((float)half - freq_shift);
        const float frequency = (float)exp((double)power);
        const double turns = (double)(timesteps[row] * frequency) * 0.15915494309189535;
        const double part = turns - rint(turns); /* -1/2 .. 1/2 */
        float sine, cosine;
        sincospif((float)(2.0 * part), &sine, &cosine);
        const int64_t at = row * 2 * half + i;
        put(y, dtype, at + (cos_first ? half : 0), sine);
        put(y, dtype, at + (cos_first ? 0 : half), cosine);
    }
}

extern "C" bool cuda_timestep_embedding(
    const struct timestep_embedding_args *args, struct error *err) {
    const dim3 grid((unsigned)args->y->shape[0]);
    return launch(timestep_embedding, grid, THREADS, 0, "timestep_embedding", err,
        (const float *)args->timesteps->data, args->y->data, args->y->dtype,
        (int)(args->y->shape[1] / 2), args->freq_shift, args->flip_sin_to_cos);
}
