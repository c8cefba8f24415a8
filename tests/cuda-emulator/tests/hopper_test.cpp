/* The twins of Hopper's instructions against known answers: a pipelined product through TMA and
 * wgmma, boxes that reach over the border, multicast, the memory of a cluster. Every kernel runs
 * with several seeds. */
#include "kernels/cuda/ptx_hopper.cuh"
#include "tests/cuda-emulator/tests/kernel_test.h"

static const int ROWS = 64, COLUMNS = 160, DEPTH = 256, K = 64;

/* Makes a map of 16-bit elements with `rank` dimensions, innermost first. */
static CUtensorMap make_map(void *address, int rank, const int *dimensions, const int *box) {
    CUtensorMap map;
    void *encode = NULL;
    cuuint64_t sizes[5], strides[5], stride = 2;
    cuuint32_t boxes[5], ones[5];
    for (int i = 0; i < rank; i++) {
        sizes[i] = (cuuint64_t)dimensions[i];
        stride *= sizes[i];
        strides[i] = stride;
        boxes[i] = (cuuint32_t)box[i];
        ones[i] = 1;
    }
    CHECK(cudaGetDriverEntryPointByVersion(
              "cuTensorMapEncodeTiled", &encode, 12000, cudaEnableDefault, NULL) == cudaSuccess,
        "no cuTensorMapEncodeTiled");
    CHECK(((decltype(&cuTensorMapEncodeTiled))encode)(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
              (cuuint32_t)rank, address, sizes, strides, boxes, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
              CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS,
        "cuTensorMapEncodeTiled");
    return map;
}

/* Multiples of 1/16 up to 1, so that sums of some hundred products are exact. */
static __half *random_halves(size_t count) {
    __half *x = device_array<__half>(count);
    for (size_t i = 0; i < count; i++)
        x[i] = __float2half((float)(rand() % 33 - 16) / 16.0f);
    return x;
}

/* Checks c [64][columns] = start + a [64][terms] b, where term k of b's column j lies at k * next_k
 * + j * next_j. Also checks that the 128 threads saw none of the result before they waited.
 * Releases all four arrays. */
static void check_product(__half *a, __half *b, int terms, int next_k, int columns, int next_j,
    float start, float *c, float *early) {
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < columns; j++) {
            float sum = start;
            for (int k = 0; k < terms; k++)
                sum += (float)a[i * terms + k] * (float)b[k * next_k + j * next_j];
            CHECK(sum == c[i * columns + j], "%d %d: %g, not %g", i, j, c[i * columns + j], sum);
        }
    for (int i = 0; i < 128; i++)
        CHECK(isnan(early[i]), "the sum %g can be read before wgmma_wait", early[i]);
    cudaFree(a);
    cudaFree(b);
    cudaFree(c);
    cudaFree(early);
}

/* ---- c [64][160] = a [64][256] b [160][256]^T, two stages of 64 ---- */

static __global__ void product_kernel(CUtensorMap a, CUtensorMap b, float *c, float *early) {
    DYNAMIC_SHARED(unsigned char, s);
    const int tile_a = ROWS * K * 2, stage = tile_a + COLUMNS * K * 2;
    uint64_t *full = (uint64_t *)(s + 2 * stage), *empty = full + 2;
    const int thread = threadIdx.x, steps = DEPTH / K;
    float d[COLUMNS / 2] = {};
    if (thread == 0) {
        for (int i = 0; i < 2; i++) {
            mbarrier_init(&full[i], 1);
            mbarrier_init(&empty[i], 128);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    if (thread >= 128) { /* the warp that loads */
        for (int i = 0; thread == 128 && i < steps; i++) {
            if (i >= 2)
                mbarrier_wait(&empty[i % 2], (i / 2 - 1) & 1);
            mbarrier_arrive_expect_tx(&full[i % 2], stage);
            tma_load_3d(s + i % 2 * stage, &a, &full[i % 2], i * K, 0, 0);
            tma_load_3d(s + i % 2 * stage + tile_a, &b, &full[i % 2], i * K, 0, 0);
        }
        return;
    }
    wgmma_hold<COLUMNS / 2>(d);
    for (int i = 0; i < steps; i++) {
        const unsigned char *at = s + i % 2 * stage;
        mbarrier_wait(&full[i % 2], i / 2 & 1);
        __syncwarp();
        wgmma_fence();
        for (int k = 0; k < K / 16; k++)
            wgmma_m64k16<__half, COLUMNS>(d, at, 32 * k, at + tile_a, 32 * k);
        wgmma_commit();
        if (i == 0)
            early[thread] = d[0];
        wgmma_wait<0>();
        mbarrier_arrive(&empty[i % 2]);
    }
    wgmma_hold<COLUMNS / 2>(d);
    const int warp = thread / 32, group = thread % 32 / 4, pair = thread % 4;
    for (int j = 0; j < COLUMNS / 8; j++)
        for (int i = 0; i < 4; i++)
            c[(16 * warp + group + i / 2 * 8) * COLUMNS + 8 * j + 2 * pair + i % 2] = d[4 * j + i];
}

static void wgmma_is_a_matrix_product(void) {
    __half *a = random_halves(ROWS * DEPTH), *b = random_halves(COLUMNS * DEPTH);
    float *c = device_array<float>(ROWS * COLUMNS), *early = device_array<float>(128);
    const int size_a[] = { DEPTH, ROWS, 1 }, size_b[] = { DEPTH, COLUMNS, 1 };
    const int box_a[] = { K, ROWS, 1 }, box_b[] = { K, COLUMNS, 1 };
    launch(dim3(1), dim3(160), 2 * (ROWS + COLUMNS) * K * 2 + 32, product_kernel,
        make_map(a, 3, size_a, box_a), make_map(b, 3, size_b, box_b), c, early);
    check_product(a, b, DEPTH, 1, COLUMNS, DEPTH, 0.0f, c, early);
}

/* ---- c [64][80] = a [64][32] b [32][80]: a in registers, rows of b read as columns ---- */

static const int WIDTH = 80, TERMS = 32;

static __global__ void columns_kernel(const __half *a, CUtensorMap b, float *c, float *early) {
    DYNAMIC_SHARED(unsigned char, s);
    const int slice = TERMS * 128, thread = threadIdx.x;
    uint64_t *full = (uint64_t *)(s + 2 * slice);
    float d[WIDTH / 2];
    uint32_t rows[2][4];
    if (thread == 0) {
        mbarrier_init(full, 1);
        mbarrier_fence_init();
        mbarrier_arrive_expect_tx(full, 2 * slice);
        tma_load_3d(s, &b, full, 0, 0, 0);
        tma_load_3d(s + slice, &b, full, 64, 0, 0); /* the last 16 columns, then zeros */
    }
    __syncthreads();
    const int warp = thread / 32, group = thread % 32 / 4, pair = thread % 4;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 4; i++)
            rows[k][i] = *(const uint32_t *)(a + (16 * warp + group + i % 2 * 8) * TERMS + 16 * k +
                                             i / 2 * 8 + 2 * pair);
    for (int i = 0; i < WIDTH / 2; i++)
        d[i] = 3.0f;
    mbarrier_wait(full, 0);
    __syncwarp();
    wgmma_hold<WIDTH / 2>(d);
    wgmma_hold<8>(rows[0]);
    wgmma_fence();
    for (int k = 0; k < 2; k++)
        wgmma_m64k16_columns<__half, WIDTH>(d, rows[k], s, k * 16 * 128, slice);
    wgmma_commit();
    early[thread] = d[0];
    wgmma_wait<0>();
    wgmma_hold<WIDTH / 2>(d);
    for (int j = 0; j < WIDTH / 8; j++)
        for (int i = 0; i < 4; i++)
            c[(16 * warp + group + i / 2 * 8) * WIDTH + 8 * j + 2 * pair + i % 2] = d[4 * j + i];
}

static void wgmma_reads_rows_as_columns(void) {
    __half *a = random_halves(ROWS * TERMS), *b = random_halves(TERMS * WIDTH);
    float *c = device_array<float>(ROWS * WIDTH), *early = device_array<float>(128);
    const int size[] = { WIDTH, TERMS, 1 }, box[] = { 64, TERMS, 1 };
    launch(dim3(1), dim3(128), 2 * TERMS * 128 + 8, columns_kernel, (const __half *)a,
        make_map(b, 3, size, box), c, early);
    check_product(a, b, TERMS, WIDTH, WIDTH, 1, 3.0f, c, early);
}

/* ---- a box of [n][h][w][c] that hangs over the top left corner ---- */

static __global__ void border_kernel(CUtensorMap map, __half *out, float *early) {
    DYNAMIC_SHARED(__half, s);
    uint64_t *barrier = (uint64_t *)(s + 4 * 4 * 64);
    if (threadIdx.x == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_fence_init();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        mbarrier_arrive_expect_tx(barrier, 4 * 4 * 64 * 2);
        tma_load_4d(s, &map, barrier, 64, -1, -1, 1);
        *early = __half2float(s[0]);
    }
    mbarrier_wait(barrier, 0);
    for (int i = threadIdx.x; i < 4 * 4 * 64; i += 32)
        out[i] = s[(i & ~63) | ((i / 8 % 8 ^ i / 64 % 8) * 8 + i % 8)];
}

static void boxes_are_zero_outside(void) {
    const int h = 5, w = 6, c = 128, size[] = { c, w, h, 2 }, box[] = { 64, 4, 4, 1 };
    __half *x = device_array<__half>((size_t)(2 * h * w * c)), *out = device_array<__half>(1024);
    float *early = device_array<float>(1);
    for (int i = 0; i < 2 * h * w * c; i++)
        x[i] = __float2half((float)(i % 1999 + 1));
    launch(dim3(1), dim3(32), 1024 * 2 + 8, border_kernel, make_map(x, 4, size, box), out, early);
    for (int i = 0; i < 1024; i++) {
        const int channel = 64 + i % 64, column = i / 64 % 4 - 1, row = i / 256 - 1;
        const bool inside = column >= 0 && row >= 0;
        const float expected = inside ? (float)x[((h + row) * w + column) * c + channel] : 0.0f;
        CHECK((float)out[i] == expected, "%d: %g, not %g", i, (float)out[i], expected);
    }
    CHECK(isnan(*early), "%g can be read before the barrier", *early);
    cudaFree(x);
    cudaFree(out);
    cudaFree(early);
}

/* ---- a cluster of two: each loads one half for both, and waits until the other is done ---- */

static __global__ void cluster_kernel(CUtensorMap map, float *out) {
    DYNAMIC_SHARED(__half, s);
    uint64_t *barrier = (uint64_t *)(s + 16 * 64), *done = barrier + 1;
    const int rank = (int)blockIdx.x % 2, thread = threadIdx.x;
    if (thread == 0) {
        mbarrier_init(barrier, 1);
        mbarrier_init(done, 32);
        mbarrier_fence_init();
        mbarrier_arrive_expect_tx(barrier, 16 * 64 * 2);
    }
    cluster_sync();
    if (thread == 0)
        tma_load_3d_multicast(s + rank * 8 * 64, &map, barrier, 0, (int)blockIdx.x * 8, 0, 3);
    mbarrier_wait(barrier, 0);
    float sum = 0;
    for (int i = thread; i < 16 * 64; i += 32)
        sum += __half2float(s[i]);
    for (int i = 16; i; i /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, i);
    if (thread == 0)
        out[blockIdx.x] = sum;
    mbarrier_arrive_cluster(done, (unsigned)rank ^ 1);
    mbarrier_wait(done, 0);
    cluster_sync();
    if (thread == 0)
        out[blockIdx.x ^ 1] += 1000.0f; /* the other block's sum has arrived */
}

static void clusters_share_memory(void) {
    const int size[] = { 64, 32, 1 }, box[] = { 64, 8, 1 };
    __half *x = device_array<__half>(32 * 64);
    float *out = device_array<float>(4);
    for (int i = 0; i < 32 * 64; i++)
        x[i] = __float2half((float)(i % 13));
    launch_clusters(
        dim3(4), dim3(32), 16 * 64 * 2 + 16, 2, cluster_kernel, make_map(x, 3, size, box), out);
    for (int block = 0; block < 4; block++) {
        float expected = 1000.0f;
        for (int i = 0; i < 16 * 64; i++)
            expected += (float)x[block / 2 * 16 * 64 + i];
        CHECK(out[block] == expected, "block %d: %g, not %g", block, out[block], expected);
    }
    cudaFree(x);
    cudaFree(out);
}

int main(void) {
    for (int seed = 1; seed <= 5; seed++) {
        emulator_set_seed((uint64_t)seed);
        srand((unsigned)seed);
        emulator_set_capability(90);
        wgmma_is_a_matrix_product();
        wgmma_reads_rows_as_columns();
        boxes_are_zero_outside();
        clusters_share_memory();
    }
    CHECK(emulator_allocations() == 0, "%zu allocations are left", emulator_allocations());
    return check_done();
}
