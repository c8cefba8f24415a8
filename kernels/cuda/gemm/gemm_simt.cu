/* The product by multiply-adds in f32. It is used for f32 activations (parity: no TF32), for shapes
 * whose rows do not consist of 16-byte pieces, and for bf16 on sm_75. It is also the plainest
 * kernel, with which others are compared. This file also has the kernel that adds the parts of a
 * split sum. */
#include "kernels/cuda/gemm/gemm.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/ptx.cuh"

#define SIMT_TILE 64
#define SIMT_STEP 16
#define SIMT_THREADS 256
/* Sums of this many steps are formed separately and then added to the total. One chain of thousands
 * of products would lose precision. */
#define SIMT_CHAIN 16

struct simt_shared {
    float a[SIMT_STEP][SIMT_TILE + 4], b[SIMT_STEP][SIMT_TILE + 4];
    float sums[SIMT_TILE][SIMT_TILE + 4];
};

/* A thread loads one element of k of rows first, first + 16, first + 32 and first + 48. */
template <class T> using simt_lines = struct gemm_lines<T, 4, 16>;

template <class T>
__device__ __forceinline__ void simt_load(
    const struct gemm &g, simt_lines<T> *lines, struct simt_shared *s) {
    const int column = (int)threadIdx.x % SIMT_STEP;
    const bool inside = lines->k < lines->k_end;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int row = lines->first + 16 * i, n = lines->n_first + row;
        int64_t element;
        float a = 0, b = 0;
        if (inside && gemm_source(g, lines->pixels[i], lines->at.ky, lines->at.kx, &element))
            a = to_float(((const T *)g.x)[element + lines->at.c]);
        if (inside && n < g.n)
            b = to_float(lines->weight[(int64_t)n * g.k + lines->k]);
        s->a[column][row] = a;
        s->b[column][row] = b;
    }
    lines->advance(g, SIMT_STEP);
}

/* The grid is that of gemm_mma. Each thread computes 4 x 4 outputs. */
template <class T> __global__ void __launch_bounds__(SIMT_THREADS) gemm_simt(const struct gemm g) {
    DYNAMIC_SHARED(struct simt_shared, s);
    const int phase = (int)blockIdx.y / g.split, part = (int)blockIdx.y % g.split;
    const int tiles_n = (g.n + SIMT_TILE - 1) / SIMT_TILE;
    const int m_first = (int)blockIdx.x / tiles_n * SIMT_TILE;
    const int n_first = (int)blockIdx.x % tiles_n * SIMT_TILE;
    const int row = (int)threadIdx.x / 16 * 4, column = (int)threadIdx.x % 16 * 4;
    int k_begin, k_end;
    gemm_part(g, part, &k_begin, &k_end);
    griddepcontrol_wait();
    simt_lines<T> lines(g, phase, m_first, n_first, (int)threadIdx.x / SIMT_STEP,
        k_begin + (int)threadIdx.x % SIMT_STEP, k_end);
    float sums[4][4] = {}, chain[4][4] = {};
    int in_chain = 0;
    for (int k = k_begin; k < k_end; k += SIMT_STEP) {
        simt_load<T>(g, &lines, s);
        __syncthreads();
#pragma unroll
        for (int kk = 0; kk < SIMT_STEP; kk++) {
            const float4 a4 = *(const float4 *)&s->a[kk][row];
            const float4 b4 = *(const float4 *)&s->b[kk][column];
            const float a[4] = { a4.x, a4.y, a4.z, a4.w }, b[4] = { b4.x, b4.y, b4.z, b4.w };
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    chain[i][j] = fmaf(a[i], b[j], chain[i][j]);
        }
        __syncthreads();
        if (++in_chain == SIMT_CHAIN || k + SIMT_STEP >= k_end) {
            in_chain = 0;
#pragma unroll
            for (int i = 0; i < 16; i++) {
                sums[i / 4][i % 4] += chain[i / 4][i % 4];
                chain[i / 4][i % 4] = 0;
            }
        }
    }
    griddepcontrol_launch();
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(float4 *)&s->sums[row + i][column] = make_float4(
            sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    __syncthreads();
    const int width = g.geglu ? 16 : 8, pieces = SIMT_TILE / width;
    for (int p = (int)threadIdx.x; p < SIMT_TILE * pieces; p += SIMT_THREADS) {
        const int r = p / pieces, c = p % pieces * width;
        if (m_first + r >= g.m || n_first + c >= g.n)
            continue;
        float v[16];
#pragma unroll
        for (int e = 0; e < 16; e++)
            v[e] = e < width ? s->sums[r][c + e] : 0.0f;
        gemm_finish<T, float>(g, phase, part, m_first + r, n_first + c, v);
    }
}

#define VECTOR_ROWS 4
#define VECTOR_WARPS 8

/* The kernel for rows of one token each. Nearly all the time goes into reading the weight, so a
 * warp reads one output channel's weights (coalesced along k) for VECTOR_ROWS rows at a time. Grid:
 * y counts groups of rows, x groups of output channels. */
template <class T>
__global__ void __launch_bounds__(32 * VECTOR_WARPS) gemm_vector(const struct gemm g) {
    const int lane = (int)threadIdx.x % 32, columns = g.geglu ? 2 : 1;
    const int j = (int)blockIdx.x * VECTOR_WARPS + (int)threadIdx.x / 32;
    const int m_first = (int)blockIdx.y * VECTOR_ROWS;
    griddepcontrol_wait();
    griddepcontrol_launch();
    if (j >= g.n_out)
        return;
    float sums[VECTOR_ROWS][2] = {};
#pragma unroll
    for (int column = 0; column < 2; column++) {
        if (column == columns)
            break;
        const T *weight = (const T *)g.weight + (int64_t)(j * columns + column) * g.k;
        for (int k = lane; k < g.k; k += 32) {
            const float b = to_float(weight[k]);
#pragma unroll
            for (int i = 0; i < VECTOR_ROWS; i++)
                if (m_first + i < g.m)
                    sums[i][column] = fmaf(
                        to_float(((const T *)g.x)[(int64_t)(m_first + i) * g.k + k]), b,
                        sums[i][column]);
        }
    }
#pragma unroll
    for (int i = 0; i < VECTOR_ROWS; i++) {
        for (int distance = 16; distance > 0; distance /= 2) {
            sums[i][0] += __shfl_xor_sync(0xffffffffu, sums[i][0], distance);
            sums[i][1] += __shfl_xor_sync(0xffffffffu, sums[i][1], distance);
        }
        if (lane != 0 || m_first + i >= g.m)
            continue;
        const int64_t at = (int64_t)(m_first + i) * g.n_out + j;
        float v = sums[i][0] + (g.bias ? g.bias[j * columns] : 0.0f);
        if (g.geglu)
            v *= gelu(sums[i][1] + (g.bias ? g.bias[j * 2 + 1] : 0.0f));
        else
            v = activate(v, g.activation);
        if (g.residual)
            v += to_float(((const T *)g.residual)[at]);
        ((T *)g.y)[at - j + gemm_column(g, j)] = from_float<T>(v);
    }
}

/* Adds the parts of a split sum in order. One thread per 8 columns (16 with GEGLU). */
template <class T> __global__ void gemm_reduce(const struct gemm g) {
    const int width = g.geglu ? 16 : 8, pieces = g.n_partial / width;
    const int64_t p = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int phase = (int)blockIdx.y;
    griddepcontrol_wait();
    griddepcontrol_launch();
    if (p >= (int64_t)g.m * pieces)
        return;
    const int m = (int)(p / pieces), column = (int)(p % pieces) * width;
    float v[16] = {};
    for (int s = 0; s < g.split; s++) {
        const float *from = gemm_partial(g, phase, s, m, column);
#pragma unroll
        for (int i = 0; i < 16; i += 4)
            if (i < width) {
                const float4 f = *(const float4 *)(from + i);
                v[i] += f.x, v[i + 1] += f.y, v[i + 2] += f.z, v[i + 3] += f.w;
            }
    }
    gemm_store<T>(g, phase, m, g.geglu ? column / 2 : column, v);
}

/* Picks the kernel of a dtype. */
#define FOR_DTYPE(kernel, dtype)                                                                   \
    ((dtype) == DTYPE_F32      ? kernel<float>                                                     \
        : (dtype) == DTYPE_F16 ? kernel<__half>                                                    \
                               : kernel<__nv_bfloat16>)

static const struct gemm_tile simt_tiles[] = { { "64x64x16", SIMT_TILE, SIMT_TILE, SIMT_STEP, 1,
    SIMT_THREADS, sizeof(struct simt_shared), 1, 0.05, 0 } };

extern "C" const struct gemm_tile *gemm_simt_tiles(int *count) {
    *count = 1;
    return simt_tiles;
}

extern "C" bool gemm_simt_run(const struct gemm_candidate *candidate, const struct gemm *g,
    enum dtype dtype, struct error *err) {
    if (candidate->path == GEMM_VECTOR) {
        const dim3 grid((unsigned)((g->n_out + VECTOR_WARPS - 1) / VECTOR_WARPS),
            (unsigned)((g->m + VECTOR_ROWS - 1) / VECTOR_ROWS));
        const struct launch_shape shape = { grid, dim3(32 * VECTOR_WARPS), 0, dim3(1), true };
        return launch_kernel(&shape, "gemm_vector", err, FOR_DTYPE(gemm_vector, dtype), *g);
    }
    const int tiles_n = (g->n + SIMT_TILE - 1) / SIMT_TILE;
    const int tiles_m = (g->m + SIMT_TILE - 1) / SIMT_TILE;
    const dim3 grid((unsigned)(tiles_m * tiles_n), (unsigned)(g->phases * g->split));
    const struct launch_shape shape = { grid, dim3(SIMT_THREADS), sizeof(struct simt_shared),
        dim3(1), true };
    return launch_kernel(&shape, "gemm_simt", err, FOR_DTYPE(gemm_simt, dtype), *g);
}

extern "C" bool gemm_reduce_run(const struct gemm *g, enum dtype dtype, struct error *err) {
    const int64_t pieces = (int64_t)g->m * (g->n_partial / (g->geglu ? 16 : 8));
    const dim3 grid((unsigned)((pieces + 127) / 128), (unsigned)g->phases);
    const struct launch_shape shape = { grid, dim3(128), 0, dim3(1), true };
    return launch_kernel(&shape, "gemm_reduce", err, FOR_DTYPE(gemm_reduce, dtype), *g);
}
