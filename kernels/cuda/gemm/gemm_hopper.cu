/* The product on Hopper (sm_90a): wgmma on boxes that TMA loads.
 *
 * A block computes 128 output pixels by BN channels. Its pixels are a box of the image (box_w by
 * box_h by box_n rows of the batch). A step of the sum, 64 channels of one tap, is therefore one
 * box of x, shifted by the tap. TMA fetches it with zeros outside the image, for every kind of
 * convolution; strides are TMA's element strides. A linear layer's tokens are one long line. After
 * the last tap come the channels of a shortcut: boxes of another image, which are not shifted. One
 * thread only requests boxes. Two groups of four warps multiply 64 pixels each. Barriers in shared
 * memory say when a stage is full and when it is empty. Slices are stored with the 128-byte
 * swizzle.
 *
 * CM x CN blocks form a cluster that computes CM tiles of pixels by CN of channels. A block fetches
 * the CN-th part of its pixels and the CM-th part of its weights and multicasts them to the blocks
 * that use the same ones, so L2 is read less often. With GEMM_END_PARTS the cluster also contains
 * all parts of the tiles' sums, along the grid's z.
 */
#include "kernels/cuda/gemm/gemm_end.cuh"
#include "kernels/cuda/gemm/gemm_parts.cuh"
#include "kernels/cuda/gemm/tensor_map.h"
#include "kernels/cuda/launch.cuh"

#include <stdio.h>

#define STEP 64 /* channels of a step: a row of a slice is 128 bytes */
#define ROW_BYTES 128
#define PIXELS 128
#define GROUPS 2          /* warp groups that multiply */
#define HOPPER_CLUSTER 16 /* most blocks in a cluster */

struct hopper {
    struct gemm g;
    int box_w, box_h, box_n;    /* powers of two, their product is PIXELS */
    int shift_w, shift_h;       /* log2 of box_w, box_h */
    int part_w, part_h, part_n; /* distance between the CN parts of the box */
    int grid_w, grid_h, grid_n; /* pixels as TMA counts them: a linear layer's are one line */
    int tiles_w, tiles_h, tiles_m, tiles_n; /* tiles_m and tiles_n fill whole clusters */
    int steps_c;                            /* steps per tap */
    int steps;                              /* steps of all taps, then of the shortcut */
};

/* The sources of the boxes: pixels and weights, of the convolution and of its shortcut. */
struct hopper_maps {
    CUtensorMap x, weight, shortcut, shortcut_weight;
};

/* BLOCKS: how many blocks are meant to share a multiprocessor. One then loads and multiplies while
 * another starts or ends. */
template <int BN_, int CM_, int CN_, int STAGES_, int BLOCKS_> struct hopper_tile {
    static constexpr int BN = BN_, CM = CM_, CN = CN_, STAGES = STAGES_, BLOCKS = BLOCKS_;
    static constexpr int A_BYTES = PIXELS * ROW_BYTES, B_BYTES = BN * ROW_BYTES;
    static constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
    static constexpr int DATA_BYTES = STAGES * STAGE_BYTES;
    /* The stages, their barriers, and the bias of each warp that multiplies. */
    static constexpr int SHARED = DATA_BYTES + 2 * STAGES * 8 + 4 * GROUPS * BN * 4;
    /* Number of blocks that read what one block fetches: those of its line and of its column. */
    static constexpr int READERS = CM + CN - 1;
    /* Nine warps have up to 168 registers each. If that is too few, there is a whole third group of
     * warps, which gives registers to the other two groups; one of its threads requests boxes. */
    static constexpr bool TRADES = BN > 160;
    static constexpr int THREADS = 128 * GROUPS + (TRADES ? 128 : 32);
    static_assert(B_BYTES % (CM * 1024) == 0 && A_BYTES % (CN * 1024) == 0, "swizzle atoms");
    static_assert(BLOCKS * (SHARED + 1024) <= 228 << 10, "");
    /* The end of a block may reuse the stages' memory. */
    static_assert(4 * GROUPS * gemm_staging<BN / 8>::FLOATS * 4 <= DATA_BYTES, "");
    static_assert(gemm_parts_tile<PIXELS, BN>::BYTES <= DATA_BYTES, "");
};

/* A block's position. */
struct hopper_place {
    int phase, part;
    int cluster_m, cluster_n; /* in its part of the cluster */
    int rank_first;           /* first rank of its part of the cluster */
    int row, y, x;            /* first output pixel of the box */
    int n_first;
    int step, end; /* range of steps, tap * steps_c + chunk; the shortcut is the last tap */
};

/* Grid: x clusters, as [tiles of pixels][tiles of channels]; y phases; z parts. */
template <class TILE, enum gemm_end END>
__device__ __forceinline__ struct hopper_place place_of(const struct hopper &h) {
    struct hopper_place p;
    p.phase = (int)blockIdx.y;
    p.part = (int)blockIdx.z;
    const int rank = (int)blockIdx.x % (TILE::CM * TILE::CN);
    p.cluster_m = rank / TILE::CN;
    p.cluster_n = rank % TILE::CN;
    p.rank_first = END == GEMM_END_PARTS ? p.part * TILE::CM * TILE::CN : 0;
    const unsigned cluster = blockIdx.x / (TILE::CM * TILE::CN);
    const unsigned clusters_n = (unsigned)h.tiles_n / TILE::CN, tile_w = (unsigned)h.tiles_w;
    const unsigned tile_m = cluster / clusters_n * TILE::CM + (unsigned)p.cluster_m;
    const unsigned tile_n = cluster % clusters_n * TILE::CN + (unsigned)p.cluster_n;
    p.x = (int)(tile_m % tile_w) << h.shift_w;
    p.y = (int)(tile_m / tile_w % (unsigned)h.tiles_h) << h.shift_h;
    p.row = (int)(tile_m / tile_w / (unsigned)h.tiles_h) * h.box_n;
    p.n_first = (int)tile_n * TILE::BN;
    p.step = h.steps * p.part / h.g.split;
    p.end = h.steps * (p.part + 1) / h.g.split;
    return p;
}

/* The slices of a step: 64 channels from `c` on of tap (ky, kx), or of the shortcut, which counts
 * as the tap after the last. The cursor moves step by step, because a division would take a large
 * part of a step's time. */
struct hopper_cursor {
    int c, tap, ky, kx;
};

__device__ __forceinline__ bool at_shortcut(const struct hopper &h, struct hopper_cursor at) {
    return at.tap == h.g.taps;
}

__device__ __forceinline__ struct hopper_cursor cursor_at(const struct hopper &h, int step) {
    const int tap = min(step / h.steps_c, h.g.taps);
    struct hopper_cursor at = { (step - tap * h.steps_c) * STEP, tap, tap / h.g.taps_x,
        tap % h.g.taps_x };
    return at;
}

__device__ __forceinline__ void cursor_move(const struct hopper &h, struct hopper_cursor *at) {
    at->c += STEP;
    if (at->c < h.g.c_in || at_shortcut(h, *at))
        return;
    at->c = 0;
    at->tap++;
    if (++at->kx == h.g.taps_x) {
        at->kx = 0;
        at->ky++;
    }
}

struct hopper_barriers {
    uint64_t *full, *empty; /* one of each per stage */
};

template <class TILE>
__device__ __forceinline__ void fetch_weights(const struct hopper &h, const struct hopper_place &p,
    const struct hopper_maps *maps, struct hopper_cursor at, unsigned char *stage, uint64_t *full) {
    constexpr int PART = TILE::BN / TILE::CM;
    const bool behind = at_shortcut(h, at);
    const CUtensorMap *map = behind ? &maps->shortcut_weight : &maps->weight;
    const int tap = behind ? 0 : at.tap;
    unsigned char *to = stage + TILE::A_BYTES + p.cluster_m * PART * ROW_BYTES;
    const int n = p.phase * h.g.n + p.n_first + p.cluster_m * PART;
    if constexpr (TILE::CM == 1) {
        tma_load_3d(to, map, full, at.c, tap, n);
    } else {
        unsigned mask = 0;
        for (int i = 0; i < TILE::CM; i++)
            mask |= 1u << (p.rank_first + i * TILE::CN + p.cluster_n);
        tma_load_3d_multicast(to, map, full, at.c, tap, n, (uint16_t)mask);
    }
}

template <class TILE>
__device__ __forceinline__ void fetch_pixels(const struct hopper &h, const struct hopper_place &p,
    const struct hopper_maps *maps, struct hopper_cursor at, unsigned char *stage, uint64_t *full) {
    const struct gemm &g = h.g;
    const bool behind = at_shortcut(h, at);
    const CUtensorMap *map = behind ? &maps->shortcut : &maps->x;
    const int ky = behind ? 0 : at.ky - g.before, kx = behind ? 0 : at.kx - g.before;
    unsigned char *to = stage + p.cluster_n * (TILE::A_BYTES / TILE::CN);
    const int x = (p.x + p.cluster_n * h.part_w) * g.stride + (p.phase & 1) + kx;
    const int y = (p.y + p.cluster_n * h.part_h) * g.stride + (p.phase >> 1) + ky;
    const int row = p.row + p.cluster_n * h.part_n;
    if constexpr (TILE::CN == 1) {
        tma_load_4d(to, map, full, at.c, x, y, row);
    } else {
        const unsigned mask = ((1u << TILE::CN) - 1) << (p.rank_first + p.cluster_m * TILE::CN);
        tma_load_4d_multicast(to, map, full, at.c, x, y, row, (uint16_t)mask);
    }
}

/* Requests the slices of all steps; run by one thread. Weights do not depend on the previous kernel
 * (cuda_may_overlap), so the weights of the first stages are requested before that kernel has
 * ended. */
template <class TILE>
__device__ __forceinline__ void produce(const struct hopper &h, const struct hopper_place &p,
    const struct hopper_maps *maps, unsigned char *stages, struct hopper_barriers b) {
    const int steps = p.end - p.step, early = min(steps, TILE::STAGES);
    tma_prefetch(&maps->x);
    struct hopper_cursor at = cursor_at(h, p.step);
    const struct hopper_cursor first = at;
    for (int i = 0; i < early; i++, cursor_move(h, &at)) {
        mbarrier_arrive_expect_tx(&b.full[i], TILE::STAGE_BYTES);
        fetch_weights<TILE>(h, p, maps, at, stages + i * TILE::STAGE_BYTES, &b.full[i]);
    }
    griddepcontrol_wait();
    at = first;
    for (int i = 0; i < early; i++, cursor_move(h, &at))
        fetch_pixels<TILE>(h, p, maps, at, stages + i * TILE::STAGE_BYTES, &b.full[i]);
    int stage = 0;
    unsigned parity = 0;
    for (int i = early; i < steps; i++, cursor_move(h, &at)) {
        unsigned char *to = stages + stage * TILE::STAGE_BYTES;
        mbarrier_wait(&b.empty[stage], parity);
        mbarrier_arrive_expect_tx(&b.full[stage], TILE::STAGE_BYTES);
        fetch_weights<TILE>(h, p, maps, at, to, &b.full[stage]);
        fetch_pixels<TILE>(h, p, maps, at, to, &b.full[stage]);
        if (++stage == TILE::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    griddepcontrol_launch();
    /* The end of the cluster does not wait for other blocks' arrivals at this block's barriers, so
     * this thread waits for them. Nothing arrives for the last step, because its stage is not
     * released. */
    for (int i = 1; TILE::READERS > 1 && i < early; i++) {
        mbarrier_wait(&b.empty[stage], parity);
        if (++stage == TILE::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
}

/* Tells every block that fetches parts of a stage that this warp no longer reads the stage. */
template <class TILE>
__device__ __forceinline__ void release(const struct hopper_place &p, uint64_t *empty) {
    const int lane = (int)threadIdx.x % 32;
    if constexpr (TILE::READERS == 1) {
        if (lane == 0)
            mbarrier_arrive(empty);
    } else if (lane < TILE::READERS) {
        /* The blocks of this block's line first, then the other blocks of its column. */
        const int other = lane - TILE::CN;
        const int m = lane < TILE::CN ? p.cluster_m : other + (other >= p.cluster_m);
        const int n = lane < TILE::CN ? lane : p.cluster_n;
        mbarrier_arrive_cluster(empty, (unsigned)(p.rank_first + m * TILE::CN + n));
    }
}

/* Computes the sums[BN / 2] of 64 pixels. They are laid out like mma.sync's, one 16 x 8 fragment
 * after the other. */
template <class T, class TILE>
__device__ __forceinline__ void consume(const struct hopper_place &p, const unsigned char *stages,
    struct hopper_barriers b, int group, float *sums) {
    int stage = 0, before = 0;
    unsigned parity = 0;
    wgmma_hold<TILE::BN / 2>(sums);
    for (int step = p.step; step < p.end; step++) {
        const unsigned char *a = stages + stage * TILE::STAGE_BYTES;
        mbarrier_wait(&b.full[stage], parity);
        __syncwarp(); /* lanes wait and release independently */
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < STEP / 16; k++)
            wgmma_m64k16<T, TILE::BN>(
                sums, a + group * 64 * ROW_BYTES, k * 32, a, TILE::A_BYTES + k * 32);
        wgmma_commit();
        wgmma_wait<1>();
        if (step > p.step)
            release<TILE>(p, &b.empty[before]);
        before = stage;
        if (++stage == TILE::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
    wgmma_wait<0>();
    wgmma_hold<TILE::BN / 2>(sums);
}

/* Returns the GEMM row of pixel r of the box, or -1 outside the image. */
__device__ __forceinline__ int row_of_pixel(
    const struct hopper &h, const struct hopper_place &p, int r) {
    const int x = p.x + (r & (h.box_w - 1)), y = p.y + (r >> h.shift_w & (h.box_h - 1));
    const int row = p.row + (r >> (h.shift_w + h.shift_h));
    if (x >= h.grid_w || y >= h.grid_h || row >= h.grid_n)
        return -1;
    return (row * h.grid_h + y) * h.grid_w + x;
}

/* Writes the sums of a warp's 16 pixels. */
template <class T, class TILE, enum gemm_end END>
__device__ __forceinline__ void end_block(const struct hopper &h, const struct hopper_place &p,
    unsigned char *shared, const float *bias, float *sums) {
    constexpr int FRAGMENTS = TILE::BN / 8;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    if constexpr (END == GEMM_END_ANY) {
        /* The other group may still be multiplying operands in the memory that is written next. */
        named_barrier<1, 128 * GROUPS>();
        gemm_end_any<T, FRAGMENTS>(
            h.g, p.phase, p.part, [&](int i) { return row_of_pixel(h, p, warp * 16 + i); },
            p.n_first, sums, (float *)shared + warp * gemm_staging<FRAGMENTS>::FLOATS);
    } else {
        const int r = warp * 16 + lane / 4;
        const int rows[] = { row_of_pixel(h, p, r), row_of_pixel(h, p, r + 8) };
        gemm_end_pieces<T, FRAGMENTS, END == GEMM_END_GEGLU>(
            h.g, p.phase, rows, p.n_first, bias, sums);
    }
}

/* Does what end_block does if the cluster adds the parts of a split sum. */
template <class T, class TILE>
__device__ __forceinline__ void end_parts(
    const struct hopper &h, const struct hopper_place &p, unsigned char *shared, float *sums) {
    constexpr int LINE = gemm_parts_tile<PIXELS, TILE::BN>::LINE;
    float *tile = (float *)shared, *own = tile + (int)threadIdx.x / 32 * 16 * LINE;
    /* The other group may still be multiplying operands in the memory that is written next. */
    named_barrier<1, 128 * GROUPS>();
#pragma unroll
    for (int j = 0; j < TILE::BN / 8; j++)
        gemm_lay_fragment<LINE>(own + 8 * j, sums + 4 * j);
    cluster_arrive();
    cluster_wait();
    gemm_end_parts<T, PIXELS, TILE::BN, 128 * GROUPS>(
        h.g, p.phase, p.part, (unsigned)(p.cluster_m * TILE::CN + p.cluster_n), TILE::CM * TILE::CN,
        [&](int i) { return row_of_pixel(h, p, i); }, p.n_first, tile);
    cluster_arrive(); /* no longer reads the other blocks' memory */
}

template <class T, class TILE, enum gemm_end END>
__global__ void __launch_bounds__(TILE::THREADS, TILE::BLOCKS) gemm_hopper(
    const __grid_constant__ struct hopper h, const __grid_constant__ struct hopper_maps maps) {
    if (!HOPPER_CODE)
        return;
    DYNAMIC_SHARED(unsigned char, shared);
    constexpr bool PARTS = END == GEMM_END_PARTS, CLUSTERED = PARTS || TILE::CM * TILE::CN > 1;
    uint64_t *const barriers = (uint64_t *)(shared + TILE::DATA_BYTES);
    const struct hopper_barriers b = { barriers, barriers + TILE::STAGES };
    const struct hopper_place p = place_of<TILE, END>(h);
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE::STAGES; i++) {
            mbarrier_init(&b.full[i], 1);
            mbarrier_init(&b.empty[i], 4 * GROUPS * TILE::READERS);
        }
        mbarrier_fence_init();
    }
    if constexpr (CLUSTERED) {
        cluster_arrive_relaxed();
        cluster_wait();
    } else {
        __syncthreads();
    }
    if (group == GROUPS) {
        if constexpr (TILE::TRADES)
            registers_give_back<40>();
        if (warp == 4 * GROUPS && lane == 0)
            produce<TILE>(h, p, &maps, shared, b);
        if constexpr (CLUSTERED)
            cluster_arrive_relaxed();
        if constexpr (PARTS) {
            cluster_wait();
            cluster_arrive_relaxed();
        }
    } else {
        if constexpr (TILE::TRADES)
            registers_take<232>();
        float *bias = (float *)(barriers + 2 * TILE::STAGES) + warp * TILE::BN;
        if constexpr (END == GEMM_END_PLAIN || END == GEMM_END_GEGLU)
            gemm_keep_bias<TILE::BN / 8>(h.g, p.n_first, bias);
        float sums[TILE::BN / 2] = {};
        griddepcontrol_wait();
        consume<T, TILE>(p, shared, b, group, sums);
        if constexpr (PARTS) {
            end_parts<T, TILE>(h, p, shared, sums);
        } else {
            if constexpr (CLUSTERED)
                cluster_arrive_relaxed(); /* no longer uses the others' barriers */
            __syncwarp();                 /* the bias is visible to all lanes */
            end_block<T, TILE, END>(h, p, shared, bias, sums);
        }
    }
    /* Other blocks may still arrive at this block's barriers, or read its sums. */
    if constexpr (CLUSTERED)
        cluster_wait();
}

/* The constants of the static model, in microseconds. They and the rates of the tiles were fitted
 * to measurements of 2,925 candidates on an H100 SXM: tests/kernels/data/choices-h100.tsv. */
#define LAUNCH_US 1.0
#define START_US 2.0 /* a block's start (SHARED_: two per multiprocessor) */
#define SHARED_START_US 3.1
#define END_US 4.1     /* a block's end, for 128 pixels by 160 channels */
#define LONE 0.74      /* a lone block's step time, relative to a shared one */
#define CLUSTER_US 3.2 /* parts added in a cluster: fixed, then per sum */
#define CLUSTER_US_PER_SUM 2.35e-6
#define REDUCE_US 3.4 /* adding parts in memory with a second kernel */
#define REDUCE_US_PER_SUM 1.55e-6

/* Columns: channels of the tile, cluster (CM, CN), stages, blocks per multiprocessor, rate of a
 * block in the static model. */
#define TILES(X)                                                                                   \
    X(160, 1, 1, 5, 1, 1.26)                                                                       \
    X(160, 1, 2, 5, 1, 1.36)                                                                       \
    X(160, 2, 1, 5, 1, 1.46)                                                                       \
    X(160, 2, 2, 5, 1, 1.78)                                                                       \
    X(256, 2, 1, 4, 1, 1.58)                                                                       \
    X(256, 1, 2, 4, 1, 1.34)                                                                       \
    X(128, 1, 1, 6, 1, 1.06)                                                                       \
    X(128, 2, 1, 6, 1, 1.52)                                                                       \
    X(128, 2, 2, 6, 1, 1.49)                                                                       \
    X(80, 1, 1, 7, 1, 0.86)                                                                        \
    X(80, 1, 1, 4, 2, 0.53)                                                                        \
    X(80, 2, 2, 4, 2, 0.61)                                                                        \
    X(80, 2, 4, 4, 2, 0.64)                                                                        \
    X(80, 1, 8, 4, 2, 0.53)                                                                        \
    X(64, 1, 1, 8, 1, 0.88)                                                                        \
    X(64, 1, 1, 4, 2, 0.46)

#define TILE_OF(n, cm, cn, s, blocks) hopper_tile<n, cm, cn, s, blocks>
#define ROW(n, cm, cn, s, blocks, rate)                                                            \
    { "128x" #n "x64 cluster " #cm "x" #cn " stages " #s, PIXELS, n, STEP, s,                      \
        TILE_OF(n, cm, cn, s, blocks)::THREADS, TILE_OF(n, cm, cn, s, blocks)::SHARED, blocks,     \
        rate, (cm) * (cn) },
static const struct gemm_tile tiles[] = { TILES(ROW) };
#undef ROW

typedef void (*hopper_kernel)(const struct hopper h, const struct hopper_maps maps);
struct hopper_entry {
    int cm, cn;
    hopper_kernel f16[GEMM_ENDS], bf16[GEMM_ENDS];
};
#define ENDS(T, ...)                                                                               \
    {                                                                                              \
        gemm_hopper<T, __VA_ARGS__, GEMM_END_PLAIN>, gemm_hopper<T, __VA_ARGS__, GEMM_END_GEGLU>,  \
            gemm_hopper<T, __VA_ARGS__, GEMM_END_ANY>, gemm_hopper<T, __VA_ARGS__, GEMM_END_PARTS> \
    }
#define ROW(n, cm, cn, s, blocks, rate)                                                            \
    { cm, cn, ENDS(__half, TILE_OF(n, cm, cn, s, blocks)),                                         \
        ENDS(__nv_bfloat16, TILE_OF(n, cm, cn, s, blocks)) },
static const struct hopper_entry entries[] = { TILES(ROW) };
#undef ROW

extern "C" const struct gemm_tile *gemm_hopper_tiles(int *count) {
    *count = (int)(sizeof(tiles) / sizeof(tiles[0]));
    return tiles;
}

extern "C" bool gemm_hopper_has(int tile, const struct gemm_shape *shape) {
    const struct cuda_properties *device = cuda_get_properties();
    /* Only Hopper has sm_90a's instructions, and older PTX translated for Hopper does not contain
     * them. An image that is read as if doubled cannot be fetched in boxes. */
    return device->capability == 90 && device->code == 90 && shape->k % 8 == 0 &&
           shape->k_shortcut % 8 == 0 && (tiles[tile].cluster == 1 || !device->no_clusters) &&
           (shape->dtype == DTYPE_F16 || shape->dtype == DTYPE_BF16) &&
           !(shape->is_conv && shape->kind == CONV_3X3_UP && !gemm_is_phased(shape)) &&
           tiles[tile].shared_bytes <= device->shared_bytes_per_block;
}

/* Returns how many clusters the device runs at once if a cluster holds all parts of a tile. Returns
 * 0 if the device refuses such clusters. */
static int active_clusters(int which, int split) {
    const struct gemm_tile *tile = &tiles[which];
    const hopper_kernel kernel = entries[which].bf16[GEMM_END_PARTS]; /* f16's needs the same */
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)tile->cluster;
    cluster.val.clusterDim.y = 1;
    cluster.val.clusterDim.z = (unsigned)split;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)tile->cluster, 1, (unsigned)split);
    config.blockDim = dim3((unsigned)tile->threads);
    config.dynamicSmemBytes = tile->shared_bytes;
    config.attrs = &cluster;
    config.numAttrs = 1;
    int count = 0;
    const bool known = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed,
                           1) == cudaSuccess &&
                       cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           (int)tile->shared_bytes) == cudaSuccess &&
                       cudaOccupancyMaxActiveClusters(&count, kernel, &config) == cudaSuccess;
    (void)cudaGetLastError(); /* clears a refusal, which is no error here */
    return known ? count : 0;
}

extern "C" void gemm_hopper_facts(FILE *out) {
    const struct cuda_properties *device = cuda_get_properties();
    const int count = (int)(sizeof(tiles) / sizeof(tiles[0]));
    const bool has = device->capability == 90 && device->code == 90;
    fprintf(out, "hopper tiles: %d of %d\n", has ? count : 0, count);
    for (int i = 0; has && i < count; i++)
        for (int split = 1; tiles[i].cluster * split <= HOPPER_CLUSTER; split *= 2) {
            const int blocks = tiles[i].cluster * split;
            fprintf(out, "tile %s split %d: %d blocks at once in clusters of %d\n", tiles[i].name,
                split, active_clusters(i, split) * blocks, blocks);
        }
}

/* Does what active_clusters does, but asks the device only once for each tile and number of
 * parts. */
static int known_clusters(int which, int parts) {
    static int known[sizeof(tiles) / sizeof(tiles[0])]
                    [GEMM_MAX_SPLIT + 1]; /* count + 1; 0: not yet asked */
    int *clusters = &known[which][parts];
    if (*clusters == 0)
        *clusters = active_clusters(which, parts) + 1;
    return *clusters - 1;
}

extern "C" bool gemm_hopper_clusters(const struct gemm_candidate *c) {
    return tiles[c->tile].cluster * c->split <= HOPPER_CLUSTER &&
           known_clusters(c->tile, c->split) > 0;
}

extern "C" double gemm_hopper_us(const struct gemm_candidate *c, int64_t m, int64_t n, int phases,
    int64_t units, double multiprocessor_rate) {
    const struct gemm_tile *tile = &tiles[c->tile];
    const struct hopper_entry *entry = &entries[c->tile];
    const bool clustered = gemm_is_clustered(c);
    const int parts = clustered ? c->split : 1;
    const int64_t pixels = (m + PIXELS - 1) / PIXELS, columns = (n + tile->n - 1) / tile->n;
    const int64_t blocks = (pixels + entry->cm - 1) / entry->cm * entry->cm *
                           ((columns + entry->cn - 1) / entry->cn * entry->cn) * phases * c->split;
    const int multiprocessors = cuda_get_properties()->multiprocessors;
    int64_t at_once = (int64_t)known_clusters(c->tile, parts) * tile->cluster * parts;
    if (at_once == 0)
        at_once = multiprocessors;
    const bool lone = tile->blocks > 1 && blocks <= multiprocessors;
    double waves = (double)((blocks + at_once - 1) / at_once);
    /* In a last wave of at most one block per multiprocessor, each block has a multiprocessor to
     * itself. */
    if (tile->blocks > 1 && !lone && waves > 1 && blocks % at_once > 0 &&
        2 * (blocks % at_once) <= at_once)
        waves -= 0.4;
    const double step_us = (double)(PIXELS * tile->n * STEP) / (tile->rate * multiprocessor_rate);
    const double steps = (double)((units + c->split - 1) / c->split);
    const double block_us = (tile->blocks > 1 ? SHARED_START_US : START_US) +
                            END_US * tile->n / 160.0 + steps * step_us * (lone ? LONE : 1.0);
    const double sums = (double)(m * phases * n * c->split);
    const double together_us = c->split == 1 ? 0.0
                               : clustered   ? CLUSTER_US + sums * CLUSTER_US_PER_SUM
                                             : REDUCE_US + sums * REDUCE_US_PER_SUM;
    return LAUNCH_US + waves * block_us + together_us;
}

static int divided_up(int a, int b) {
    return (a + b - 1) / b;
}

/* Whether the pixels can be one line, because no tap reads neighbours. */
static bool is_line(const struct gemm *g) {
    return g->taps == 1;
}

/* Chooses the box that covers the pixels with the fewest tiles; of several such boxes, the
 * widest. */
static void choose_box(struct hopper *h, int cn) {
    int64_t best = INT64_MAX;
    for (int w = PIXELS; w >= 1; w /= 2)
        for (int n = 1; w * n <= PIXELS; n *= 2) {
            const int y = PIXELS / w / n;
            /* A TMA box has at most 256 elements in a dimension. With strides, skipped elements
             * count too. */
            if (w * h->g.stride > 256 || y * h->g.stride > 256)
                continue;
            /* The parts divide the box along its outermost dimension. */
            if ((n > 1 ? n : y > 1 ? y : w) % cn != 0)
                continue;
            const int64_t count = (int64_t)divided_up(h->grid_w, w) * divided_up(h->grid_h, y) *
                                  divided_up(h->grid_n, n);
            if (count >= best)
                continue;
            best = count;
            h->box_w = w;
            h->box_h = y;
            h->box_n = n;
        }
    while (1 << h->shift_w < h->box_w)
        h->shift_w++;
    while (1 << h->shift_h < h->box_h)
        h->shift_h++;
    h->part_n = h->box_n > 1 ? h->box_n / cn : 0;
    h->part_h = h->box_n == 1 && h->box_h > 1 ? h->box_h / cn : 0;
    h->part_w = h->box_n == 1 && h->box_h == 1 ? h->box_w / cn : 0;
}

/* Describes x [row][h][w][channels], or one line of pixels. A box has the pixels of one part and 64
 * channels. */
static bool encode_pixels(CUtensorMap *map, const void *x, int channels, const struct hopper *h,
    int cn, enum dtype dtype, struct error *err) {
    const struct gemm *g = &h->g;
    const bool line = is_line(g);
    const cuuint64_t c = (cuuint64_t)channels, w = (cuuint64_t)(line ? g->m : g->w);
    const cuuint64_t y = (cuuint64_t)(line ? 1 : g->h);
    const cuuint64_t sizes[] = { c, w, y, (cuuint64_t)h->grid_n };
    const cuuint64_t strides[] = { 2 * c, 2 * c * w, 2 * c * w * y };
    const int stride = g->stride;
    const cuuint32_t box[] = { STEP, (cuuint32_t)(h->box_w / (h->part_w ? cn : 1) * stride),
        (cuuint32_t)(h->box_h / (h->part_h ? cn : 1) * stride),
        (cuuint32_t)(h->box_n / (h->part_n ? cn : 1)) };
    const cuuint32_t steps[] = { 1, (cuuint32_t)stride, (cuuint32_t)stride, 1 };
    return tensor_map_encode(map, dtype, 4, x, sizes, strides, box, steps, err);
}

/* Describes weight [lines][tap][channels], in boxes of `rows` lines. */
static bool encode_weight(CUtensorMap *map, const void *weight, int lines, int tap_count,
    int channels, int rows, enum dtype dtype, struct error *err) {
    const cuuint64_t c = (cuuint64_t)channels, taps = (cuuint64_t)tap_count;
    const cuuint64_t sizes[] = { c, taps, (cuuint64_t)lines };
    const cuuint64_t strides[] = { 2 * c, 2 * c * taps };
    const cuuint32_t box[] = { STEP, 1, (cuuint32_t)rows }, steps[] = { 1, 1, 1 };
    return tensor_map_encode(map, dtype, 3, weight, sizes, strides, box, steps, err);
}

/* Without a shortcut, its two maps are left empty; the kernel does not read them. */
static bool encode_maps(struct hopper_maps *maps, const struct hopper *h,
    const struct hopper_entry *entry, int tile_n, enum dtype dtype, struct error *err) {
    const struct gemm *g = &h->g;
    const int rows = tile_n / entry->cm;
    return encode_pixels(&maps->x, g->x, g->c_in, h, entry->cn, dtype, err) &&
           encode_weight(
               &maps->weight, g->weight, g->phases * g->n, g->taps, g->c_in, rows, dtype, err) &&
           (!g->c_shortcut || (encode_pixels(&maps->shortcut, g->shortcut, g->c_shortcut, h,
                                   entry->cn, dtype, err) &&
                                  encode_weight(&maps->shortcut_weight, g->shortcut_weight, g->n, 1,
                                      g->c_shortcut, rows, dtype, err)));
}

extern "C" bool gemm_hopper_run(const struct gemm_candidate *candidate, const struct gemm *g,
    enum dtype dtype, struct error *err) {
    const struct gemm_tile *tile = &tiles[candidate->tile];
    const struct hopper_entry *entry = &entries[candidate->tile];
    const bool line = is_line(g);
    struct hopper h = {};
    h.g = *g;
    h.grid_w = line ? g->m : g->grid_w;
    h.grid_h = line ? 1 : g->grid_h;
    h.grid_n = line ? 1 : g->m / (g->grid_w * g->grid_h);
    choose_box(&h, entry->cn);
    h.tiles_w = divided_up(h.grid_w, h.box_w);
    h.tiles_h = divided_up(h.grid_h, h.box_h);
    h.tiles_m = divided_up(h.tiles_w * h.tiles_h * divided_up(h.grid_n, h.box_n), entry->cm) *
                entry->cm;
    h.tiles_n = divided_up(divided_up(g->n, tile->n), entry->cn) * entry->cn;
    h.steps_c = divided_up(g->c_in, STEP);
    h.steps = g->taps * h.steps_c + divided_up(g->c_shortcut, STEP);
    struct hopper_maps maps = {};
    if (!encode_maps(&maps, &h, entry, tile->n, dtype, err))
        return false;
    const dim3 grid((unsigned)(h.tiles_m * h.tiles_n), (unsigned)g->phases, (unsigned)g->split);
    const struct launch_shape shape = { grid, dim3((unsigned)tile->threads), tile->shared_bytes,
        dim3((unsigned)(entry->cm * entry->cn), 1, g->clustered ? (unsigned)g->split : 1), true };
    const enum gemm_end end = gemm_end_of(g);
    return launch_kernel(&shape, "gemm_hopper", err,
        dtype == DTYPE_F16 ? entry->f16[end] : entry->bf16[end], h, maps);
}
