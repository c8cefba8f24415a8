#include "tests/cuda-emulator/hopper.h"

#include "tests/cuda-emulator/cuda.h"
#include "tests/cuda-emulator/emulator.h"
#include "tests/cuda-emulator/half.h"
#include "tests/cuda-emulator/memory.h"

#include <string.h>
#include <unordered_map>
#include <vector>

/* ---- mbarrier ---- */

/* What lies in a barrier's 8 bytes. */
struct mbarrier {
    uint32_t made : 7; /* MADE, or nobody has made it */
    uint32_t parity : 1;
    uint32_t count : 12, pending : 12;
    int32_t bytes; /* announced and not there; negative: there and not announced */
};
static_assert(sizeof(struct mbarrier) == 8, "");
#define MADE 0x2au

static struct mbarrier *made(uint64_t *barrier, const char *what) {
    struct mbarrier *b = (struct mbarrier *)barrier;
    if (b->made != MADE)
        emulator_die("%s at something that is no mbarrier", what);
    return b;
}

static void end_phase_if_complete(struct mbarrier *b) {
    if (b->pending || b->bytes)
        return;
    b->parity ^= 1;
    b->pending = b->count;
}

static void arrive(struct mbarrier *b) {
    if (!b->pending)
        emulator_die("one more arrives at an mbarrier than the %u it waits for", b->count);
    b->pending--;
    end_phase_if_complete(b);
}

void emulator_mbarrier_init(uint64_t *barrier, unsigned count) {
    emulator_need(90, "mbarrier");
    emulator_need_shared(barrier, 8, 8, "an mbarrier");
    if (count < 1 || count > 4095)
        emulator_die("an mbarrier for %u", count);
    const struct mbarrier b = { MADE, 0, count, count, 0 };
    memcpy(barrier, &b, sizeof(b));
}

void emulator_mbarrier_arrive(uint64_t *barrier, unsigned bytes) {
    emulator_need_shared(barrier, 8, 8, "an mbarrier");
    struct mbarrier *b = made(barrier, "an arrival");
    b->bytes += (int32_t)bytes;
    arrive(b);
}

/* The same place in another block of the cluster. */
static void *in_block(const void *shared, unsigned rank) {
    struct emulator_block *other = emulator_cluster_block(rank);
    if (!other)
        emulator_die("block %u of a cluster of %u", rank, emulator_cluster_blocks());
    return other->shared + ((const unsigned char *)shared - emulator_current->block->shared);
}

void emulator_mbarrier_arrive_cluster(uint64_t *barrier, unsigned rank) {
    emulator_need_shared(barrier, 8, 8, "an mbarrier");
    struct emulator_block *other = emulator_cluster_block(rank);
    if (other && !other->live)
        emulator_die("an arrival at block %u of the cluster, which has exited", rank);
    arrive(made((uint64_t *)in_block(barrier, rank), "an arrival from another block"));
}

const void *emulator_cluster_address(const void *shared, unsigned rank) {
    struct emulator_block *other = emulator_cluster_block(rank);
    emulator_need_shared(shared, 16, 16, "another block's shared memory");
    if (other && !other->live)
        emulator_die("block %u of the cluster is read, which has exited", rank);
    return in_block(shared, rank);
}

struct awaited {
    const struct mbarrier *barrier;
    unsigned parity;
};

static bool has_ended(void *argument) {
    const struct awaited *a = (const struct awaited *)argument;
    return a->barrier->parity != a->parity;
}

void emulator_mbarrier_wait(uint64_t *barrier, unsigned parity, const char *file, int line) {
    emulator_need_shared(barrier, 8, 8, "an mbarrier");
    struct awaited a = { made(barrier, "a wait"), parity & 1 };
    emulator_wait_for(has_ended, &a, "an mbarrier", file, line);
}

/* ---- TMA ---- */

struct box {
    const unsigned char *data;
    uint64_t sizes[4], strides[4]; /* strides in bytes, the innermost's is an element's */
    uint16_t box[4];               /* elements that arrive in each dimension */
    uint8_t steps[4], rank;
};
static_assert(sizeof(struct box) <= sizeof(CUtensorMap), "");

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
    void *data, const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
    (void)type;
    if ((uintptr_t)map % 64 || rank < 3 || rank > 4 || (uintptr_t)data % 16 ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle != CU_TENSOR_MAP_SWIZZLE_128B)
        return CUDA_ERROR_INVALID_VALUE;
    struct box b = {};
    b.data = (const unsigned char *)data;
    b.rank = (uint8_t)rank;
    for (cuuint32_t i = 0; i < rank; i++) {
        const uint64_t stride = i ? strides[i - 1] : 2;
        if (!sizes[i] || sizes[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 || !steps[i] ||
            steps[i] > 8 || (i && (stride % 16 || stride >= (uint64_t)1 << 40)))
            return CUDA_ERROR_INVALID_VALUE;
        b.sizes[i] = sizes[i];
        b.strides[i] = stride;
        b.box[i] = (uint16_t)((box[i] + steps[i] - 1) / steps[i]);
        b.steps[i] = (uint8_t)steps[i];
    }
    /* The swizzle's rows are 128 bytes; here no box has shorter ones. */
    if (b.box[0] * 2 != 128 || b.steps[0] != 1)
        return CUDA_ERROR_INVALID_VALUE;
    memset(map, 0, sizeof(*map));
    memcpy(map, &b, sizeof(b));
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned int,
    unsigned long long, cudaDriverEntryPointQueryResult *result) {
    const bool known = strcmp(symbol, "cuTensorMapEncodeTiled") == 0;
    *function = known ? (void *)cuTensorMapEncodeTiled : NULL;
    if (result)
        *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}

struct load {
    struct box box;
    int64_t at[4];
    unsigned char *shared;
    struct mbarrier *barrier;
    const struct emulator_block *block; /* whose they are */
};

static void load_row(const struct load *l, const int *index, unsigned char *row) {
    int64_t offset = l->at[0] * 2;
    bool inside = true;
    for (int i = 1; i < l->box.rank; i++) {
        const int64_t at = l->at[i] + (int64_t)index[i] * l->box.steps[i];
        inside = inside && at >= 0 && at < (int64_t)l->box.sizes[i];
        offset += at * (int64_t)l->box.strides[i];
    }
    /* What of the row lies in the tensor, then, chunk by chunk, to its place: bits 4 to 6 of an
     * address change with bits 7 to 9. */
    uint16_t line[64] = {};
    const int64_t first = l->at[0] < 0 ? -l->at[0] : 0;
    const int64_t last = (int64_t)l->box.sizes[0] - l->at[0];
    const int64_t end = last < 64 ? last : 64;
    if (inside && first < end) {
        const unsigned char *from = l->box.data + offset + 2 * first;
        if (!emulator_is_device(from, (size_t)(2 * (end - first))))
            emulator_die("out of bounds: a tensor map that reaches beyond its memory");
        memcpy(line + first, from, (size_t)(2 * (end - first)));
    }
    for (int i = 0; i < 8; i++) {
        const uintptr_t to = (uintptr_t)row + (uintptr_t)(16 * i);
        memcpy((void *)(to ^ ((to >> 7 & 7) << 4)), line + 8 * i, 16);
    }
}

static void load_now(const struct load *l) {
    if (!l->block->live)
        emulator_die("a box arrives in block %u of the cluster, which has exited", l->block->rank);
    unsigned char *row = l->shared;
    const int outer = l->box.rank == 4 ? l->box.box[3] : 1;
    for (int z = 0; z < outer; z++)
        for (int y = 0; y < l->box.box[2]; y++)
            for (int x = 0; x < l->box.box[1]; x++, row += 128) {
                const int index[] = { 0, x, y, z };
                load_row(l, index, row);
            }
    l->barrier->bytes -= (int32_t)(row - l->shared);
    end_phase_if_complete(l->barrier);
}

void emulator_tma_load(void *shared, const CUtensorMap *map, uint64_t *barrier, const int *at,
    int rank, uint16_t blocks) {
    emulator_need(90, "cp.async.bulk.tensor");
    struct load l = {};
    memcpy(&l.box, map, sizeof(l.box));
    if (l.box.rank != rank)
        emulator_die("a box of %d dimensions of a tensor of %d", rank, l.box.rank);
    size_t bytes = 128;
    for (int i = 0; i < rank; i++) {
        l.at[i] = at[i];
        bytes *= i ? l.box.box[i] : 1;
    }
    emulator_need_shared(shared, bytes, 128, "cp.async.bulk.tensor");
    if (!emulator_is_device(l.box.data, 16))
        emulator_die("cp.async.bulk.tensor of a tensor that is not in device memory");
    for (unsigned rank_of = 0; rank_of < 16; rank_of++) {
        const bool mine = emulator_current->block->rank == rank_of;
        if (blocks ? !(blocks >> rank_of & 1) : !mine)
            continue;
        l.shared = (unsigned char *)in_block(shared, rank_of);
        l.block = emulator_cluster_block(rank_of);
        l.barrier = made((uint64_t *)in_block(barrier, rank_of), "cp.async.bulk.tensor");
        /* Whoever reads there before the barrier says so shall see it. */
        memset(l.shared, EMULATOR_POISON, bytes);
        emulator_later([l] { load_now(&l); });
    }
}

/* ---- wgmma ---- */

struct product {
    float *sums;
    const unsigned char *a;      /* in shared memory, or NULL: */
    const uint32_t *a_registers; /* of this lane */
    const unsigned char *b;
    unsigned next; /* 0: a row of b is a column of the product; else as in wgmma_m64k16_columns */
    int n;
    bool add;
    enum emulator_element element;
    int group; /* commits before it */
};

struct products {
    std::vector<struct product> started;
    int commits;
};

static std::unordered_map<struct emulator_thread *, struct products> pending;

static float value_of(uint16_t bits, enum emulator_element e) {
    return e == EMULATOR_F16 ? emulator_half_to_float(bits) : emulator_bfloat16_to_float(bits);
}

/* The swizzle is one of addresses: bits 4 to 6 change with bits 7 to 9. */
static float value_at(const unsigned char *place, enum emulator_element e) {
    const uintptr_t at = (uintptr_t)place;
    uint16_t bits;
    memcpy(&bits, (const void *)(at ^ ((at >> 7 & 7) << 4)), 2);
    return value_of(bits, e);
}

/* Rows of 64 k, 8 rows after the other. */
static float row_element(const unsigned char *base, int row, int k, enum emulator_element e) {
    return value_at(base + row * 128 + k * 2, e);
}

/* "MN-major" with the 128-byte swizzle: atoms of 64 n by 8 k; the stride offset, 1024 here, leads
 * to the next 8 k, the leading offset to the next 64 n. */
static float column_element(const struct product *p, int n, int k) {
    return value_at(
        p->b + (size_t)(n / 64) * p->next + k / 8 * 1024 + k % 8 * 128 + n % 64 * 2, p->element);
}

/* A 16 x 16 operand in registers: lane 4 g + t has rows g and g + 8, columns 2 t, 2 t + 1 and those
 * + 8. */
static float register_element(struct product **lanes, int row, int k) {
    const struct product *p = lanes[row % 8 * 4 + k % 8 / 2];
    const uint32_t pair = p->a_registers[row / 8 + k / 8 * 2];
    return value_of((uint16_t)(k % 2 ? pair >> 16 : pair), p->element);
}

static void warp_product(struct product **lanes, int warp) {
    static float a[16][16], b[16][256];
    const struct product *p = lanes[0];
    for (int lane = 1; lane < 32; lane++)
        if (lanes[lane]->a != p->a || lanes[lane]->b != p->b || lanes[lane]->n != p->n ||
            lanes[lane]->next != p->next || lanes[lane]->add != p->add)
            emulator_die("lanes of a warp give wgmma different operands");
    for (int k = 0; k < 16; k++) {
        for (int row = 0; row < 16; row++)
            a[row][k] = p->a ? row_element(p->a, warp * 16 + row, k, p->element)
                             : register_element(lanes, row, k);
        for (int n = 0; n < p->n; n++)
            b[k][n] = p->next ? column_element(p, n, k) : row_element(p->b, n, k, p->element);
    }
    for (int row = 0; row < 16; row++) {
        float sums[256] = {};
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < p->n; n++)
                sums[n] += a[row][k] * b[k][n];
        for (int n = 0; n < p->n; n++) {
            float *sum = &lanes[row % 8 * 4 + n % 8 / 2]->sums[n / 8 * 4 + row / 8 * 2 + n % 2];
            *sum = p->add ? *sum + sums[n] : sums[n];
        }
    }
}

struct wait_lane {
    struct products *products;
    int until; /* groups before this one are done */
    int warp;
};

static void wait_all(void **lanes, unsigned) {
    struct wait_lane *first = (struct wait_lane *)lanes[0];
    const size_t count = first->products->started.size();
    for (size_t i = 0; i < count && first->products->started[i].group < first->until; i++) {
        struct product *all[32];
        for (int lane = 0; lane < 32; lane++) {
            struct wait_lane *l = (struct wait_lane *)lanes[lane];
            if (l->products->started.size() != count || l->until != first->until)
                emulator_die("lanes of a warp wait for different wgmmas");
            all[lane] = &l->products->started[i];
        }
        warp_product(all, first->warp);
    }
}

static void start(const struct product *product) {
    struct products *p = &pending[emulator_current];
    p->started.push_back(*product);
    p->started.back().group = p->commits;
}

/* The first row's line, and all rows after it. */
static void need_lines(const unsigned char *operand, int rows, const char *what) {
    const unsigned char *line = (const unsigned char *)((uintptr_t)operand & ~(uintptr_t)127);
    emulator_need_shared(line, (size_t)rows * 128, 1024, what);
}

void emulator_wgmma(
    float *sums, const void *a, const void *b, int n, bool add, enum emulator_element element) {
    emulator_need(90, "wgmma");
    const struct product p = { sums, (const unsigned char *)a, NULL, (const unsigned char *)b, 0, n,
        add, element, 0 };
    need_lines(p.a, 64, "wgmma's a");
    need_lines(p.b, n, "wgmma's b");
    start(&p);
}

void emulator_wgmma_columns(float *sums, const uint32_t *a, const void *b, unsigned next, int n,
    enum emulator_element element) {
    emulator_need(90, "wgmma");
    const struct product p = { sums, NULL, a, (const unsigned char *)b, next, n, true, element, 0 };
    /* The descriptor has 14 bits for it, in 16-byte units. */
    if (!next || next % 1024 || next >> 18)
        emulator_die("wgmma's b: %u bytes to the next 64 columns", next);
    for (int first = 0; first < n; first += 64)
        emulator_need_shared(p.b + (size_t)(first / 64) * next, 16 * 128, 1024, "wgmma's b");
    start(&p);
}

void emulator_wgmma_commit(void) {
    pending[emulator_current].commits++;
}

void emulator_wgmma_wait(int left) {
    struct products *p = &pending[emulator_current];
    struct wait_lane lane = { p, p->commits - left, (int)(emulator_current->index.x / 32 % 4) };
    emulator_warp(wait_all, "wgmma_wait", 0xffffffffu, &lane, __FILE__, __LINE__);
    size_t done = 0;
    while (done < p->started.size() && p->started[done].group < lane.until)
        done++;
    p->started.erase(p->started.begin(), p->started.begin() + (long)done);
    if (p->started.empty())
        pending.erase(emulator_current);
}

void emulator_products_exit(struct emulator_thread *t) {
    const auto mine = pending.find(t);
    if (mine == pending.end())
        return;
    if (!mine->second.started.empty())
        emulator_die("exit with %zu wgmma that were never waited for", mine->second.started.size());
    pending.erase(mine);
}
