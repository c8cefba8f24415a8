/* attention on Hopper (sm_90a): wgmma on tiles that TMA loads, heads of 40, 64, 80 and 160
 * channels.
 *
 * A block computes 64 queries for each group of four warps. One further thread only requests tiles:
 * q once, then keys and values in the order in which they are multiplied. They go into a ring of
 * stages; barriers say when a stage is full and when it is empty. TMA sees a head's channels as a
 * dimension of its own, so that rows of 64 channels end with zeros and not with the next head. A
 * head of 80 is two such slices, one of 160 three.
 *
 * Scores are products of two operands in shared memory. The weights made from them stay in
 * registers and are the left operand of the product with the values, whose rows are read as
 * columns. The scores of the next block of keys are computed while the values of the present block
 * are summed, and the sums go on while the next block's weights are computed. The groups of warps
 * take turns in starting products, so that one group computes exponentials while another waits for
 * its scores.
 *
 * TMA also loads what lies beyond a row's own length, which may be anything. In the last block of
 * values, the requesting thread's warp overwrites these rows with zeros before they are multiplied
 * with their weights, which are 0.
 */
#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/gemm/tensor_map.h"
#include "kernels/cuda/launch_simple.cuh"
#include "kernels/cuda/ptx_hopper.cuh"

#define ROW_BYTES 128 /* 64 channels */

template <int D_, int GROUPS_, int BK_, int STAGES_, int BLOCKS_, int PASSES_> struct hopper_tile {
    static constexpr int D = D_, GROUPS = GROUPS_, BK = BK_, STAGES = STAGES_;
    /* Tiles of queries that a block computes one after the other, with the same keys and values,
     * which stay loaded. The queries of later passes are loaded ahead. */
    static constexpr int PASSES = PASSES_;
    static constexpr int BLOCKS = BLOCKS_; /* blocks per multiprocessor, as registers allow */
    /* All keys fit one block: one stage for the keys, one for the values. */
    static constexpr bool WHOLE = STAGES == 2;
    static constexpr bool TURNS = GROUPS > 1 && !WHOLE;
    static constexpr int THREADS = 128 * (GROUPS + 1), BQ = 64 * GROUPS;
    /* REGISTERS: per thread, as compiled. While the kernel runs, threads that request tiles have
     * FEW and threads that compute have MANY. */
    static constexpr int REGISTERS = 65536 / THREADS / BLOCKS / 8 * 8;
    static constexpr int FEW = GROUPS > 2 ? 56 : 40;
    static constexpr int MANY = (REGISTERS * (GROUPS + 1) - FEW) / GROUPS / 8 * 8;
    static constexpr bool DEALS = REGISTERS < 240; /* otherwise every thread has enough registers */
    static constexpr int STEPS = (D + 15) / 16, SLICES = (D + 63) / 64;
    static constexpr int KF = BK / 8, DF = D / 8; /* fragments of keys and of v */
    /* In the loop of the smallest heads, the unit for exponentials is the bottleneck, by a tenth. A
     * part of the exponentials is therefore computed without it. */
    static constexpr int SPARED = D == 40 && !WHOLE ? 8 : 0;
    static constexpr int Q_SLICE = BQ * ROW_BYTES, SLICE = BK * ROW_BYTES;
    static constexpr int Q_BYTES = SLICES * Q_SLICE, STAGE_BYTES = SLICES * SLICE;
    static constexpr int DATA_BYTES = PASSES * Q_BYTES + STAGES * STAGE_BYTES;
    static constexpr int SHARED = DATA_BYTES + (1 + PASSES + 2 * STAGES) * 8;
    static_assert(!DEALS || MANY <= 240, "");
    static_assert(PASSES == 1 || WHOLE, "");
    static_assert(D % 8 == 0 && BK % 16 == 0 && SHARED * BLOCKS <= 227 << 10, "");
};

/* The block's position and its parts of the shared memory. */
struct hopper_block {
    unsigned char *q, *stages;
    uint64_t *q_full, *full, *empty; /* q_full: one per pass; full and empty: one per stage */
    uint64_t *cleared;               /* complete when zeros follow the last value */
    int first;                       /* query */
    int head, row;
    int keys;   /* of the row */
    int passes; /* passes with queries */
};

/* A position in the ring: the next stage. */
template <class TILE> struct hopper_ring {
    int stage;
    unsigned parity;

    __device__ __forceinline__ void advance() {
        if (++stage == TILE::STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
};

/* Requests SLICES slices of 64 channels, for the tokens from `first` on; zeros after the last
 * token. */
template <int SLICES>
__device__ __forceinline__ void fetch(const struct hopper_block &b, const CUtensorMap *map,
    int first, unsigned char *to, int slice_bytes, uint64_t *full) {
    mbarrier_arrive_expect_tx(full, (unsigned)(SLICES * slice_bytes));
#pragma unroll
    for (int i = 0; i < SLICES; i++)
        tma_load_4d(to + i * slice_bytes, map, full, i * 64, b.head, first, b.row);
}

template <class TILE>
__device__ __forceinline__ void fetch_stage(const struct hopper_block &b, const CUtensorMap *map,
    int block, struct hopper_ring<TILE> *ring) {
    /* The first wait for a stage returns at once: on a new barrier, the phase before the first
     * counts as ended. */
    mbarrier_wait(&b.empty[ring->stage], ring->parity ^ 1);
    fetch<TILE::SLICES>(b, map, block * TILE::BK, b.stages + ring->stage * TILE::STAGE_BYTES,
        TILE::SLICE, &b.full[ring->stage]);
    ring->advance();
}

/* Requests all tiles; run by one thread. */
template <class TILE>
__device__ __forceinline__ void produce(const struct hopper_block &b, const CUtensorMap *q_map,
    const CUtensorMap *k_map, const CUtensorMap *v_map) {
    const int blocks = (b.keys + TILE::BK - 1) / TILE::BK;
    struct hopper_ring<TILE> ring = {
        0, 0
    };
    fetch<TILE::SLICES>(b, q_map, b.first, b.q, TILE::Q_SLICE, b.q_full);
    fetch_stage<TILE>(b, k_map, 0, &ring);
    for (int block = 1; block < blocks; block++) {
        fetch_stage<TILE>(b, k_map, block, &ring);
        fetch_stage<TILE>(b, v_map, block - 1, &ring);
    }
    fetch_stage<TILE>(b, v_map, blocks - 1, &ring);
    for (int pass = 1; pass < b.passes; pass++)
        fetch<TILE::SLICES>(b, q_map, b.first + pass * TILE::BQ, b.q + pass * TILE::Q_BYTES,
            TILE::Q_SLICE, b.q_full + pass);
}

/* Writes zeros after the last value. Run by the warp whose first lane has requested all tiles. */
template <class TILE> __device__ __forceinline__ void clear_values(const struct hopper_block &b) {
    const int blocks = (b.keys + TILE::BK - 1) / TILE::BK, last = 2 * blocks - 1;
    const int stage = last % TILE::STAGES, there = b.keys - (blocks - 1) * TILE::BK;
    const int pieces = (TILE::BK - there) * (ROW_BYTES / 16), lane = (int)threadIdx.x % 32;
    unsigned char *v = b.stages + stage * TILE::STAGE_BYTES + there * ROW_BYTES;
    __syncwarp();
    mbarrier_wait(&b.full[stage], (unsigned)(last / TILE::STAGES) % 2);
    for (int i = lane; i < TILE::SLICES * pieces; i += 32)
        *(uint4 *)(v + i / pieces * TILE::SLICE + i % pieces * 16) = make_uint4(0, 0, 0, 0);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0)
        mbarrier_arrive(b.cleared);
}

/* The state of a warp, which computes 16 queries. */
template <class T, class TILE> struct hopper_warp {
    float scores[TILE::KF][4], sums[TILE::DF][4];
    uint32_t weights[TILE::BK / 16][4];
    float largest[2], total[2];
    const unsigned char *q; /* queries of the warp's group */
    struct hopper_ring<TILE> ring;
    int query; /* the first */
    int group; /* number of the warp's group of four */

    /* Waits for this group's turn to start products. */
    __device__ __forceinline__ void wait_turn() const {
        if constexpr (TILE::TURNS)
            turn_wait(1 + group);
    }

    /* Gives the turn to the next group. After the last block of keys, the last group keeps it,
     * because no group waits for it. */
    __device__ __forceinline__ void give_turn(bool last) const {
        if constexpr (TILE::TURNS)
            if (group < TILE::GROUPS - 1 || !last)
                turn_give(group < TILE::GROUPS - 1 ? 2 + group : 1);
    }

    /* Waits for the ring's next stage, and returns its number. */
    __device__ __forceinline__ int receive(const struct hopper_block &b) {
        const int stage = ring.stage;
        mbarrier_wait(&b.full[stage], ring.parity);
        __syncwarp(); /* lanes leave the wait independently */
        ring.advance();
        return stage;
    }

    static __device__ __forceinline__ void release(const struct hopper_block &b, int stage) {
        if (threadIdx.x % 32 == 0)
            mbarrier_arrive(&b.empty[stage]);
    }

    /* Starts scores = q k^T. Returns the stage of the keys. */
    __device__ __forceinline__ int start_scores(const struct hopper_block &b) {
        const int stage = receive(b);
        const unsigned char *k = b.stages + stage * TILE::STAGE_BYTES;
        wgmma_hold<4 * TILE::KF>(&scores[0][0]);
        wgmma_fence();
#pragma unroll
        for (int s = 0; s < TILE::STEPS; s++)
            wgmma_m64k16<T, TILE::BK>(&scores[0][0], q, s / 4 * TILE::Q_SLICE + s % 4 * 32, k,
                s / 4 * TILE::SLICE + s % 4 * 32, s > 0);
        wgmma_commit();
        return stage;
    }

    /* Starts sums += weights v. Returns the stage of the values. */
    __device__ __forceinline__ int start_sums(const struct hopper_block &b) {
        const int stage = receive(b);
        const unsigned char *v = b.stages + stage * TILE::STAGE_BYTES;
        wgmma_hold<4 * TILE::DF>(&sums[0][0]);
        wgmma_hold<TILE::BK / 4>(&weights[0][0]);
        wgmma_fence();
#pragma unroll
        for (int t = 0; t < TILE::BK / 16; t++)
            wgmma_m64k16_columns<T, TILE::D>(
                &sums[0][0], weights[t], v, t * 16 * ROW_BYTES, TILE::SLICE);
        wgmma_commit();
        return stage;
    }

    /* Hides the scores beyond the row's keys. Call when the scores of block `block` are ready. */
    __device__ __forceinline__ void hide(const struct hopper_block &b, int block) {
        const int keys = b.keys - block * TILE::BK;
        wgmma_hold<4 * TILE::KF>(&scores[0][0]);
        if (keys < TILE::BK)
            hide_keys<TILE::KF>(scores, keys, keys);
    }

    __device__ __forceinline__ void pack() {
#pragma unroll
        for (int t = 0; t < TILE::BK / 16; t++)
            pack_weights<T>(scores + 2 * t, weights[t]);
    }

    /* Computes the warp's queries of one pass. Reads the ring from its first stage on. */
    __device__ __forceinline__ void consume(
        const struct attention &a, const struct hopper_block &b, int pass) {
        const float c = a.scale * 1.4426950408889634f; /* log2 e */
        float shrink[2];
        clear_fragments<TILE::KF>(scores);
        clear_fragments<TILE::DF>(sums);
        mbarrier_wait(b.q_full + pass, 0);
        __syncwarp(); /* rejoins the lanes: a turn needs whole warps */
        if (TILE::TURNS && group == TILE::GROUPS - 1)
            turn_give(1); /* the first turn of the first group */
        wait_turn();
        int keys = start_scores(b);
        give_turn(b.keys <= TILE::BK);
        wgmma_wait<0>();
        release(b, keys);
        hide(b, 0);
        soften<TILE::KF, true, TILE::SPARED>(scores, c, largest, total, shrink);
        pack();
        for (int block = 1; !TILE::WHOLE && block * TILE::BK < b.keys; block++) {
            wait_turn();
            keys = start_scores(b);
            const int values = start_sums(b);
            give_turn(b.keys - block * TILE::BK <= TILE::BK);
            wgmma_wait<1>();
            release(b, keys);
            hide(b, block);
            soften<TILE::KF, false, TILE::SPARED>(scores, c, largest, total, shrink);
            wgmma_wait_after(total[0] + total[1]); /* sums continue while weights are computed */
            wgmma_wait<0>();
            wgmma_hold<4 * TILE::DF>(&sums[0][0]);
            release(b, values);
            shrink_sums<TILE::DF>(sums, shrink);
            pack();
        }
        if (a.lengths)
            mbarrier_wait(b.cleared, 0);
        start_sums(b);
        wgmma_wait<0>();
        wgmma_hold<4 * TILE::DF>(&sums[0][0]);
        /* If all scores are -inf, the result must be NaN. With weights of 0 it would be 0 / 0, but
         * the weights that spared_exp2 computes are never 0. The sum is therefore set to NaN. */
        if constexpr (TILE::SPARED > 0)
#pragma unroll
            for (int r = 0; r < 2; r++)
                if (largest[r] == MINUS_INFINITY)
                    total[r] = __uint_as_float(0x7fffffffu);
    }
};

/* Grid: x tiles of queries, y heads, z rows. */
template <class T, class TILE>
__global__ void __launch_bounds__(TILE::THREADS, TILE::BLOCKS) attention_hopper(
    const __grid_constant__ struct attention a, const __grid_constant__ CUtensorMap q_map,
    const __grid_constant__ CUtensorMap k_map, const __grid_constant__ CUtensorMap v_map) {
    if (!HOPPER_CODE)
        return;
    DYNAMIC_SHARED(unsigned char, shared);
    struct hopper_block b;
    b.q = shared;
    b.stages = shared + TILE::PASSES * TILE::Q_BYTES;
    b.q_full = (uint64_t *)(shared + TILE::DATA_BYTES);
    b.full = b.q_full + TILE::PASSES;
    b.empty = b.full + TILE::STAGES;
    b.cleared = b.empty + TILE::STAGES;
    b.first = (int)blockIdx.x * TILE::PASSES * TILE::BQ;
    b.passes = min((a.tq - b.first + TILE::BQ - 1) / TILE::BQ, TILE::PASSES);
    b.head = (int)blockIdx.y;
    b.row = (int)blockIdx.z;
    const int warp = (int)threadIdx.x / 32, group = warp / 4;
    if (threadIdx.x == 0) {
        for (int i = 0; i < TILE::PASSES; i++)
            mbarrier_init(&b.q_full[i], 1);
        mbarrier_init(b.cleared, 1);
        for (int i = 0; i < TILE::STAGES; i++) {
            mbarrier_init(&b.full[i], 1);
            mbarrier_init(&b.empty[i], 4 * TILE::GROUPS);
        }
        mbarrier_fence_init();
    }
    __syncthreads();
    griddepcontrol_wait();
    b.keys = keys_of(a, b.row);
    if (b.keys == 0)
        return;
    if (group == TILE::GROUPS) {
        if constexpr (TILE::DEALS)
            registers_give_back<TILE::FEW>();
        if (threadIdx.x == 128 * TILE::GROUPS)
            produce<TILE>(b, &q_map, &k_map, &v_map);
        if (a.lengths && warp == 4 * TILE::GROUPS)
            clear_values<TILE>(b);
        griddepcontrol_launch();
        return;
    }
    if constexpr (TILE::DEALS)
        registers_take<TILE::MANY>();
    struct hopper_warp<T, TILE> w;
    w.group = group;
    const int64_t step = (int64_t)a.heads * a.d;
    T *y = (T *)a.y + (int64_t)b.row * a.tq * step + (int64_t)b.head * a.d;
#pragma unroll 1
    for (int pass = 0; pass < b.passes; pass++) {
        w.q = b.q + pass * TILE::Q_BYTES + group * 64 * ROW_BYTES;
        w.ring.stage = 0;
        w.ring.parity = 0;
        w.query = b.first + pass * TILE::BQ + warp * 16;
        w.consume(a, b, pass);
        if (pass == b.passes - 1)
            griddepcontrol_launch();
        write_queries<T, TILE::DF>(w.sums, w.total, y, step, w.query, a.tq);
    }
}

/* Columns: head_dim, groups, keys per block, stages (2: all keys in one block), blocks per
 * multiprocessor, passes. For each head_dim, the tile that was fastest on an H100 comes first. */
#define TILES(X)                                                                                   \
    X(40, 3, 128, 4, 1, 1)                                                                         \
    X(40, 3, 64, 4, 1, 1)                                                                          \
    X(40, 2, 128, 4, 1, 1)                                                                         \
    X(40, 2, 64, 4, 2, 1)                                                                          \
    X(40, 2, 80, 2, 2, 2)                                                                          \
    X(40, 2, 80, 2, 2, 1)                                                                          \
    X(64, 2, 128, 4, 1, 1)                                                                         \
    X(64, 2, 80, 2, 2, 1)                                                                          \
    X(80, 2, 128, 4, 1, 1)                                                                         \
    X(80, 2, 80, 2, 2, 1)                                                                          \
    X(160, 1, 64, 4, 1, 1)                                                                         \
    X(160, 2, 64, 4, 1, 1)                                                                         \
    X(160, 1, 80, 2, 2, 1)

typedef void (*hopper_kernel)(const struct attention a, const CUtensorMap q_map,
    const CUtensorMap k_map, const CUtensorMap v_map);
struct hopper_entry {
    int q_box; /* queries requested at once */
    hopper_kernel f16, bf16;
};

#define TILE_OF(d, groups, keys, s, blocks, passes) hopper_tile<d, groups, keys, s, blocks, passes>
#define TILE(d, groups, keys, s, blocks, passes)                                                   \
    { "d" #d " " #passes "x" #groups "x64 by " #keys, d, 64 * groups * passes, keys,               \
        128 * (groups + 1), false, TILE_OF(d, groups, keys, s, blocks, passes)::WHOLE,             \
        (size_t)TILE_OF(d, groups, keys, s, blocks, passes)::SHARED },
#define ENTRY(d, groups, keys, s, blocks, passes)                                                  \
    { 64 * groups, attention_hopper<__half, TILE_OF(d, groups, keys, s, blocks, passes)>,          \
        attention_hopper<__nv_bfloat16, TILE_OF(d, groups, keys, s, blocks, passes)> },

static const struct attention_tile tiles[] = { TILES(TILE) };
static const struct hopper_entry entries[] = { TILES(ENTRY) };

extern "C" const struct attention_tile *attention_hopper_tiles(int *count) {
    *count = (int)(sizeof(tiles) / sizeof(tiles[0]));
    return tiles;
}

/* Describes [row][token][head][channel], with tokens `step` elements apart. A box has 64 channels
 * of one head, of `box_tokens` tokens. */
static bool encode_heads(CUtensorMap *map, const struct attention *a, const void *data, int tokens,
    int64_t step, int box_tokens, enum dtype dtype, struct error *err) {
    const cuuint64_t sizes[] = { (cuuint64_t)a->d, (cuuint64_t)a->heads, (cuuint64_t)tokens,
        (cuuint64_t)a->rows };
    const cuuint64_t strides[] = { 2 * (cuuint64_t)a->d, 2 * (cuuint64_t)step,
        2 * (cuuint64_t)step * (cuuint64_t)tokens };
    const cuuint32_t box[] = { 64, 1, (cuuint32_t)box_tokens, 1 }, steps[] = { 1, 1, 1, 1 };
    return tensor_map_encode(map, dtype, 4, data, sizes, strides, box, steps, err);
}

extern "C" bool attention_hopper_run(const struct attention_candidate *candidate,
    const struct attention *a, enum dtype dtype, struct error *err) {
    const struct attention_tile *tile = &tiles[candidate->tile];
    const struct hopper_entry *entry = &entries[candidate->tile];
    CUtensorMap q_map, k_map, v_map;
    if (!encode_heads(&q_map, a, a->q, a->tq, a->q_step, entry->q_box, dtype, err) ||
        !encode_heads(&k_map, a, a->k, a->tk, a->k_step, tile->keys, dtype, err) ||
        !encode_heads(&v_map, a, a->v, a->tk, a->v_step, tile->keys, dtype, err))
        return false;
    return launch(dtype == DTYPE_F16 ? entry->f16 : entry->bf16,
        attention_grid(a, attention_query_tiles(a, tile)), tile->threads, tile->shared_bytes,
        "attention_hopper", err, *a, q_map, k_map, v_map);
}
