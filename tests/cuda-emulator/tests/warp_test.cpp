/* The emulator against known answers: built-in variables, shuffles, votes, barriers, atomics, mma,
 * ldmatrix, cp.async, 16-bit floats. Every kernel runs with several seeds. */
#include "kernels/cuda/ptx.cuh"
#include "tests/cuda-emulator/tests/kernel_test.h"

static const int SEEDS = 20;

static float noise(void) {
    return (float)(rand() % 2001 - 1000) / 1000.0f;
}

/* ---- indices ---- */

static __global__ void index_kernel(int *out) {
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const int per_block = blockDim.x * blockDim.y * blockDim.z;
    atomicAdd(&out[block * per_block + thread], block * 1000 + thread + 1);
}

static void indices_cover_the_grid_once(void) {
    const int count = 3 * 2 * 2 * 5 * 3 * 2;
    int *out = device_array<int>(count);
    cudaMemset(out, 0, count * sizeof(int));
    launch(dim3(3, 2, 2), dim3(5, 3, 2), 0, index_kernel, out);
    for (int i = 0; i < count; i++)
        CHECK(out[i] == i / 30 * 1000 + i % 30 + 1, "thread %d: %d", i, out[i]);
    cudaFree(out);
}

/* ---- shuffles: three in a row, each reading what the one before gave ---- */

static __global__ void shuffle_kernel(int *out) {
    const unsigned all = 0xffffffffu;
    const int lane = threadIdx.x % 32, t = threadIdx.x;
    int v = 100 * t;
    v = __shfl_xor_sync(all, v, 1) + 1;
    v = __shfl_up_sync(all, v, 3) + 2;
    v = __shfl_down_sync(all, v, 5) + 3;
    v = __shfl_sync(all, v, lane * 7 % 32) + 4;
    v = __shfl_xor_sync(all, v, 2, 4);
    v = __shfl_down_sync(all, v, 2, 8);
    v = __shfl_sync(all, v, 1, 16);
    out[t] = v;
}

/* The same computed by hand, on arrays. */
static int shuffle_expected(int t) {
    int v[32], w[32];
    for (int i = 0; i < 32; i++)
        v[i] = 100 * (t / 32 * 32 + i);
    for (int i = 0; i < 32; i++)
        w[i] = v[i ^ 1] + 1;
    for (int i = 0; i < 32; i++)
        v[i] = w[i < 3 ? i : i - 3] + 2;
    for (int i = 0; i < 32; i++)
        w[i] = v[i + 5 > 31 ? i : i + 5] + 3;
    for (int i = 0; i < 32; i++)
        v[i] = w[i * 7 % 32] + 4;
    for (int i = 0; i < 32; i++)
        w[i] = v[i ^ 2];
    for (int i = 0; i < 32; i++)
        v[i] = w[i % 8 + 2 > 7 ? i : i + 2];
    return v[t % 32 / 16 * 16 + 1];
}

static void shuffles_move_the_right_values(void) {
    int *out = device_array<int>(96);
    launch(dim3(1), dim3(96), 0, shuffle_kernel, out);
    for (int t = 0; t < 96; t++)
        CHECK(out[t] == shuffle_expected(t), "lane %d: %d, not %d", t, out[t], shuffle_expected(t));
    cudaFree(out);
}

/* The two halves of a warp shuffle separately, a different number of times. */
static __global__ void partial_kernel(int *out) {
    const int lane = threadIdx.x;
    const unsigned half = lane < 16 ? 0x0000ffffu : 0xffff0000u;
    int v = lane;
    for (int i = 0; i < (lane < 16 ? 3 : 7); i++)
        v += __shfl_xor_sync(half, v, 1 + i % 8);
    out[lane] = v;
}

static void half_warps_shuffle_alone(void) {
    int *out = device_array<int>(32), v[32], w[32];
    launch(dim3(1), dim3(32), 0, partial_kernel, out);
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < 32; i++)
            v[i] = i;
        for (int i = 0; i < (half ? 7 : 3); i++) {
            for (int lane = 0; lane < 32; lane++)
                w[lane] = v[lane] + v[lane ^ (1 + i % 8)];
            memcpy(v, w, sizeof(v));
        }
        for (int lane = 16 * half; lane < 16 * half + 16; lane++)
            CHECK(out[lane] == v[lane], "lane %d: %d, not %d", lane, out[lane], v[lane]);
    }
    cudaFree(out);
}

/* ---- votes, counts, atomics ---- */

static __global__ void vote_kernel(unsigned *out) {
    const int t = threadIdx.x;
    const unsigned ballot = __ballot_sync(0xffffffffu, t % 3 == 0);
    const int any = __any_sync(0xffffffffu, t == 40), all = __all_sync(0xffffffffu, t < 32);
    const int count = __syncthreads_count(t % 5 == 0), either = __syncthreads_or(t == 63);
    out[t] = ballot;
    out[64 + t] = (unsigned)(any | all << 1 | either << 2 | count << 3);
    atomicMax(&out[128], (unsigned)t);
    atomicAdd(&out[129], (unsigned)t);
    atomicCAS(&out[130], 0u, 7u);
}

static void votes_and_atomics_count(void) {
    unsigned *out = device_array<unsigned>(131);
    cudaMemset(out, 0, 131 * 4);
    launch(dim3(1), dim3(64), 0, vote_kernel, out);
    for (int t = 0; t < 64; t++) {
        unsigned ballot = 0;
        for (int i = 0; i < 32; i++)
            ballot |= (unsigned)((t / 32 * 32 + i) % 3 == 0) << i;
        CHECK(out[t] == ballot, "lane %d: %08x, not %08x", t, out[t], ballot);
        const unsigned flags = (t < 32 ? 2u : 1u) | 4u | 13u << 3;
        CHECK(out[64 + t] == flags, "lane %d: %u, not %u", t, out[64 + t], flags);
    }
    CHECK(out[128] == 63 && out[129] == 63 * 32 && out[130] == 7, "%u %u %u", out[128], out[129],
        out[130]);
    cudaFree(out);
}

/* ---- shared memory and barriers: a tree sum, and a reversal ---- */

static __global__ void tree_kernel(const float *x, float *sum, float *reversed) {
    DYNAMIC_SHARED(float, s);
    const int t = threadIdx.x, n = blockDim.x;
    s[t] = x[blockIdx.x * n + t];
    __syncthreads();
    reversed[blockIdx.x * n + t] = s[n - 1 - t];
    __syncthreads();
    for (int half = n / 2; half; half /= 2) {
        if (t < half)
            s[t] += s[t + half];
        __syncthreads();
    }
    if (t == 0)
        sum[blockIdx.x] = s[0];
}

static void barriers_order_shared_memory(void) {
    float *x = device_array<float>(5 * 256), *sum = device_array<float>(5);
    float *reversed = device_array<float>(5 * 256);
    for (int i = 0; i < 5 * 256; i++)
        x[i] = (float)(i % 97);
    launch(dim3(5), dim3(256), 256 * sizeof(float), tree_kernel, (const float *)x, sum, reversed);
    for (int block = 0; block < 5; block++) {
        float expected = 0;
        for (int i = 0; i < 256; i++) {
            expected += x[block * 256 + i];
            CHECK(reversed[block * 256 + i] == x[block * 256 + 255 - i], "reversed %d", i);
        }
        CHECK(sum[block] == expected, "%g, not %g", sum[block], expected);
    }
    cudaFree(x);
    cudaFree(sum);
    cudaFree(reversed);
}

/* ---- mma and ldmatrix: one 16 x 16 by 16 x 16 product from row-major shared memory ---- */

template <class T> static __global__ void mma_kernel(const T *a, const T *b, float *c, int narrow) {
    DYNAMIC_SHARED(T, s);
    T *const sa = s, *const sb = s + 256;
    const int lane = threadIdx.x;
    for (int i = lane; i < 256; i += 32) {
        sa[i] = a[i];
        sb[i] = b[i];
    }
    __syncwarp();
    uint32_t fa[4], fb[4];
    float fc[2][4] = {};
    ldmatrix_x4(fa, sa + lane % 16 * 16 + lane / 16 * 8);
    ldmatrix_x4_trans(fb, sb + lane % 16 * 16 + lane / 16 * 8);
    for (int n = 0; n < 2; n++)
        if (narrow) {
            mma_m16n8k8_f16(fc[n], fa, fb[2 * n]);
            mma_m16n8k8_f16(fc[n], fa + 2, fb[2 * n + 1]);
        } else {
            mma_m16n8k16<T>(fc[n], fa, fb + 2 * n);
        }
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 4; i++)
            c[(lane / 4 + i / 2 * 8) * 16 + n * 8 + lane % 4 * 2 + i % 2] = fc[n][i];
}

template <class T> static void mma_is_a_matrix_product(const char *name, int narrow) {
    T *a = device_array<T>(256), *b = device_array<T>(256);
    float *c = device_array<float>(256), worst = 0;
    for (int i = 0; i < 256; i++) {
        a[i] = T(noise());
        b[i] = T(noise());
    }
    launch(
        dim3(1), dim3(32), 512 * sizeof(T), mma_kernel<T>, (const T *)a, (const T *)b, c, narrow);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++) {
            double expected = 0;
            for (int k = 0; k < 16; k++)
                expected += (double)(float)a[i * 16 + k] * (double)(float)b[k * 16 + j];
            worst = fmaxf(worst, fabsf((float)(c[i * 16 + j] - expected)));
            CHECK(c[i * 16 + j] == c[i * 16 + j], "NaN at %d %d", i, j);
        }
    CHECK(worst < 2e-6f, "%s: off by %g", name, worst);
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
}

static __global__ void ldmatrix_kernel(const uint16_t *in, uint32_t *out) {
    DYNAMIC_SHARED(uint16_t, s);
    const int lane = threadIdx.x;
    uint32_t r[4];
    for (int i = lane; i < 256; i += 32)
        s[i] = in[i];
    __syncwarp();
    ldmatrix_x4(r, s + lane * 8);
    for (int i = 0; i < 4; i++)
        out[i * 32 + lane] = r[i];
    ldmatrix_x2_trans(r, s + lane % 16 * 8);
    for (int i = 0; i < 2; i++)
        out[(4 + i) * 32 + lane] = r[i];
}

static void ldmatrix_gives_each_lane_its_pair(void) {
    uint16_t *in = device_array<uint16_t>(256);
    uint32_t *out = device_array<uint32_t>(192);
    for (int i = 0; i < 256; i++)
        in[i] = (uint16_t)(i + 1);
    launch(dim3(1), dim3(32), 512, ldmatrix_kernel, (const uint16_t *)in, out);
    for (int i = 0; i < 6; i++)
        for (int lane = 0; lane < 32; lane++) {
            const int m = i % 4, g = lane / 4, p = lane % 4 * 2;
            const uint32_t plain = in[m * 64 + g * 8 + p] | (uint32_t)in[m * 64 + g * 8 + p + 1]
                                                                << 16;
            const uint32_t trans = in[m * 64 + p * 8 + g] | (uint32_t)in[m * 64 + (p + 1) * 8 + g]
                                                                << 16;
            CHECK(out[i * 32 + lane] == (i < 4 ? plain : trans), "matrix %d lane %d", i, lane);
        }
    cudaFree(in);
    cudaFree(out);
}

/* ---- cp.async ---- */

/* A two-stage pipeline that sums rows of 32 floats; the last row is half zero-filled. */
static __global__ void copy_kernel(const float *x, float *sum, float *early, int rows) {
    DYNAMIC_SHARED(float4, s);
    const int t = threadIdx.x; /* 8 threads, 4 floats each */
    float total = 0;
    cp_async_16(&s[t], x + 4 * t, 16);
    cp_async_commit();
    for (int row = 0; row < rows; row++) {
        if (row + 1 < rows)
            cp_async_16(
                &s[(row + 1) % 2 * 8 + t], x + (row + 1) * 32 + 4 * t, row + 2 == rows ? 8 : 16);
        cp_async_commit();
        if (row == 0)
            early[t] = s[8 + t].x;
        cp_async_wait<1>();
        __syncthreads();
        const float4 v = s[row % 2 * 8 + (t + 1) % 8];
        total += v.x + v.y + v.z + v.w;
        __syncthreads();
    }
    sum[t] = total;
}

static void copies_arrive_when_waited_for(void) {
    const int rows = 5;
    float *x = device_array<float>(rows * 32), *sum = device_array<float>(8);
    float *early = device_array<float>(8);
    for (int i = 0; i < rows * 32; i++)
        x[i] = (float)(i + 1);
    launch(dim3(1), dim3(8), 256, copy_kernel, (const float *)x, sum, early, rows);
    for (int t = 0; t < 8; t++) {
        float expected = 0;
        for (int row = 0; row < rows; row++)
            for (int i = 0; i < (row == rows - 1 ? 2 : 4); i++)
                expected += x[row * 32 + (t + 1) % 8 * 4 + i];
        CHECK(sum[t] == expected, "%g, not %g", sum[t], expected);
        if (emulator_capability() >= 80)
            CHECK(isnan(early[t]), "%g has arrived before it was waited for", early[t]);
        else
            CHECK(early[t] == x[32 + 4 * t], "a plain copy has not arrived at once");
    }
    cudaFree(x);
    cudaFree(sum);
    cudaFree(early);
}

/* ---- 16-bit floats ---- */

static void halves_round_to_nearest_even(void) {
    const struct {
        float f;
        uint16_t half, bfloat;
    } known[] = { { 0.0f, 0, 0 }, { -0.0f, 0x8000, 0x8000 }, { 1.0f, 0x3c00, 0x3f80 },
        { 65504.0f, 0x7bff, 0x4780 }, { 65519.0f, 0x7bff, 0x4780 }, { 65520.0f, 0x7c00, 0x4780 },
        { 1.00048828125f, 0x3c00, 0x3f80 }, { 1.00146484375f, 0x3c02, 0x3f80 },
        { 5.9604645e-8f, 0x0001, 0x3380 }, { 2.9802322e-8f, 0x0000, 0x3300 },
        { 6.097555e-5f, 0x03ff, 0x3880 }, { -INFINITY, 0xfc00, 0xff80 },
        { 3.0e38f, 0x7c00, 0x7f62 }, { 1.01171875f, 0x3c0c, 0x3f82 },
        { 1.00390625f, 0x3c04, 0x3f80 } };
    for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
        const unsigned short half = __half_as_ushort(__float2half_rn(known[i].f));
        const unsigned short bfloat = __bfloat16_as_ushort(__float2bfloat16_rn(known[i].f));
        CHECK(half == known[i].half, "%.9g: %04x, not %04x", known[i].f, half, known[i].half);
        CHECK(
            bfloat == known[i].bfloat, "%.9g: %04x, not %04x", known[i].f, bfloat, known[i].bfloat);
    }
    /* Converting every value there and back gives the same value. */
    for (unsigned bits = 0; bits < 65536; bits++) {
        const __half h = __ushort_as_half((unsigned short)bits);
        const __nv_bfloat16 b = __ushort_as_bfloat16((unsigned short)bits);
        const float fh = __half2float(h), fb = __bfloat162float(b);
        CHECK(isnan(fh) || __half_as_ushort(__float2half_rn(fh)) == bits, "half %04x", bits);
        CHECK(
            isnan(fb) || __bfloat16_as_ushort(__float2bfloat16_rn(fb)) == bits, "bf16 %04x", bits);
        CHECK(isnan(fh) == ((bits & 0x7fff) > 0x7c00), "half %04x", bits);
    }
    CHECK(__half2float(__ushort_as_half(0x3555)) == 0.333251953125f, "a third");
    CHECK(isnan(__half2float(__float2half_rn(NAN))), "NaN");
}

int main(void) {
    for (int seed = 1; seed <= SEEDS; seed++) {
        emulator_set_seed((uint64_t)seed);
        srand((unsigned)seed);
        emulator_set_capability(seed % 4 == 0 ? 75 : 80 + seed % 2 * 10);
        indices_cover_the_grid_once();
        shuffles_move_the_right_values();
        half_warps_shuffle_alone();
        votes_and_atomics_count();
        barriers_order_shared_memory();
        ldmatrix_gives_each_lane_its_pair();
        copies_arrive_when_waited_for();
        mma_is_a_matrix_product<__half>("mma_m16n8k8_f16", 1);
        if (seed % 4) {
            mma_is_a_matrix_product<__half>("mma_m16n8k16 f16", 0);
            mma_is_a_matrix_product<__nv_bfloat16>("mma_m16n8k16 bf16", 0);
        }
    }
    halves_round_to_nearest_even();
    CHECK(emulator_allocations() == 0, "%zu allocations are left", emulator_allocations());
    return check_done();
}
