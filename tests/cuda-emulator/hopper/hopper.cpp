#include "tests/cuda-emulator/hopper/hopper.h"

#include "tests/cuda-emulator/cuda.h"
#include "tests/cuda-emulator/emulator.h"
#include "tests/cuda-emulator/half.h"
#include "tests/cuda-emulator/memory.h"

#include <algorithm>
#include <string.h>
#include <vector>

/* ---- mbarrier ---- */

/* The layout of a barrier's 8 bytes. */
struct mbarrier {
    uint32_t made : 6;    /* MADE once the barrier was initialized */
    uint32_t visible : 1; /* to TMA and to other blocks, because mbarrier_fence_init was called */
    uint32_t parity : 1;
    uint32_t count : 12, pending : 12;
    int32_t bytes; /* announced but not arrived yet; negative: arrived but not announced */
};
static_assert(sizeof(struct mbarrier) == 8, "");
#define MADE 0x2au

static struct mbarrier *made(uint64_t *barrier, const char *what) {
    struct mbarrier *b = (struct mbarrier *)barrier;
    if (b->made != MADE)
        emulator_die("%s at something that is no mbarrier", what);
    return b;
}

/* Returns the barrier for TMA or another block. Dies if it is not visible to them. */
static struct mbarrier *visible(uint64_t *barrier, const char *what) {
    struct mbarrier *b = made(barrier, what);
    if (!b->visible)
        emulator_die("%s at an mbarrier that no mbarrier_fence_init made visible", what);
    return b;
}

/* Barriers that were initialized but not fenced, and the thread that initialized them. */
struct unfenced {
    const struct emulator_thread *thread;
    struct mbarrier *barrier;
};

static std::vector<struct unfenced> unfenced;

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
    const struct mbarrier b = { MADE, 0, 0, count, count, 0 };
    memcpy(barrier, &b, sizeof(b));
    unfenced.push_back({ emulator_current, (struct mbarrier *)barrier });
}

/* Removes this thread's barriers from the list; `show` makes them visible. */
static void end_unfenced(const struct emulator_thread *thread, bool show) {
    unfenced.erase(std::remove_if(unfenced.begin(), unfenced.end(),
                       [=](const struct unfenced &u) {
                           if (u.thread == thread && show)
                               u.barrier->visible = 1;
                           return u.thread == thread;
                       }),
        unfenced.end());
}

void emulator_mbarrier_fence_init(void) {
    end_unfenced(emulator_current, true);
}

void emulator_mbarriers_exit(const struct emulator_thread *t) {
    if (!unfenced.empty())
        end_unfenced(t, false);
}

void emulator_mbarrier_arrive(uint64_t *barrier, unsigned bytes) {
    emulator_need_shared(barrier, 8, 8, "an mbarrier");
    struct mbarrier *b = made(barrier, "an arrival");
    b->bytes += (int32_t)bytes;
    if (b->bytes >= 1 << 20)
        emulator_die("an mbarrier is to count %d bytes, it has 20 bits for them", b->bytes);
    arrive(b);
}

/* Returns the address of the same place in another block of the cluster. */
static void *in_block(const void *shared, unsigned rank) {
    struct emulator_block *other = emulator_cluster_block(rank);
    if (!other)
        emulator_die("block %u of a cluster of %u", rank, emulator_cluster_blocks());
    if (other != emulator_current->block && !emulator_cluster_has_met())
        emulator_die("the shared memory of block %u of the cluster, which may not have started: no "
                     "barrier of the cluster came before",
            rank);
    return other->shared + ((const unsigned char *)shared - emulator_current->block->shared);
}

void emulator_mbarrier_arrive_cluster(uint64_t *barrier, unsigned rank) {
    emulator_need_shared(barrier, 8, 8, "an mbarrier");
    struct emulator_block *other = emulator_cluster_block(rank);
    if (other && !other->live)
        emulator_die("an arrival at block %u of the cluster, which has exited", rank);
    arrive(visible((uint64_t *)in_block(barrier, rank), "an arrival from another block"));
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
    emulator_current->parted = true; /* each lane leaves the wait independently */
}

/* ---- TMA ---- */

#define RANK_MAX 5

struct box {
    const unsigned char *data;
    uint64_t sizes[RANK_MAX], strides[RANK_MAX - 1]; /* strides: in bytes, from dimension 1 on */
    /* Number of elements that arrive in each dimension. */
    uint16_t box[RANK_MAX];
    uint8_t steps[RANK_MAX], rank;
    uint8_t span; /* of the swizzle, in bytes; 0: none */
};
static_assert(sizeof(struct box) <= sizeof(CUtensorMap), "");

/* Checks the rules in CUDA's documentation of cuTensorMapEncodeTiled, for 16-bit elements without
 * interleave. Returns what is wrong, or NULL. */
static const char *fault_of_box(
    const struct box *b, const cuuint32_t *box, const cuuint32_t *steps) {
    if ((uintptr_t)b->data % 16)
        return "the tensor's address is no multiple of 16";
    for (int i = 0; i < b->rank; i++) {
        if (!b->sizes[i] || b->sizes[i] > (uint64_t)1 << 32)
            return "a size is not in 1 to 2^32";
        if (!box[i] || box[i] > 256)
            return "a box is not in 1 to 256";
        if (!steps[i] || steps[i] > 8)
            return "a step is not in 1 to 8";
    }
    for (int i = 0; i < b->rank - 1; i++) {
        const uint64_t inner = i ? b->strides[i - 1] : 2 * b->sizes[0];
        if (b->strides[i] % 16 || b->strides[i] >= (uint64_t)1 << 40)
            return "a stride is no multiple of 16 below 2^40";
        if (b->strides[i] < inner)
            return "a stride is less than the one before it";
    }
    if (box[0] * 2 % 16)
        return "a box's row is no multiple of 16 bytes";
    /* CUDA allows a shorter row too, but does not document where its elements are placed. */
    if (b->span && box[0] * 2 != b->span)
        return "a box's row is not the swizzle's span";
    return NULL;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank,
    void *data, const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
    const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
    CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
    if (!map || (uintptr_t)map % 64 || !rank || rank > RANK_MAX || swizzle > 3 || promotion > 3 ||
        fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
        (type != CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type != CU_TENSOR_MAP_DATA_TYPE_BFLOAT16))
        return CUDA_ERROR_INVALID_VALUE;
    struct box b = {};
    b.data = (const unsigned char *)data;
    b.rank = (uint8_t)rank;
    b.span = (uint8_t)(swizzle ? 16 << swizzle : 0);
    memcpy(b.sizes, sizes, rank * sizeof(*sizes));
    memcpy(b.strides, strides, (rank - 1) * sizeof(*strides));
    if (fault_of_box(&b, box, steps))
        return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < RANK_MAX; i++) {
        b.steps[i] = i && i < rank ? (uint8_t)steps[i] : 1; /* CUDA ignores the innermost step */
        b.box[i] = i < rank ? (uint16_t)((box[i] + b.steps[i] - 1) / b.steps[i]) : 1;
        if (i >= rank)
            b.sizes[i] = 1;
    }
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
    int64_t at[RANK_MAX];
    unsigned char *shared;
    struct mbarrier *barrier;
    const struct emulator_block *block; /* the block that owns the shared memory and the barrier */
};

static void load_row(const struct load *l, const int *index, unsigned char *row) {
    const struct box *box = &l->box;
    int64_t offset = l->at[0] * 2;
    bool inside = true;
    for (int i = 1; i < box->rank; i++) {
        const int64_t at = l->at[i] + (int64_t)index[i] * box->steps[i];
        inside = inside && at >= 0 && at < (int64_t)box->sizes[i];
        offset += at * (int64_t)box->strides[i - 1];
    }
    /* Copies the part of the row that lies inside the tensor, then moves it to its place piece by
     * piece. The swizzle changes bits 4 and up of an address by bits 7 and up. */
    uint16_t line[256] = {};
    const int64_t first = l->at[0] < 0 ? -l->at[0] : 0;
    const int64_t last = (int64_t)box->sizes[0] - l->at[0];
    const int64_t end = last < box->box[0] ? last : box->box[0];
    if (inside && first < end) {
        const unsigned char *from = box->data + offset + 2 * first;
        if (!emulator_is_device(from, (size_t)(2 * (end - first))))
            emulator_die("out of bounds: a tensor map that reaches beyond its memory");
        memcpy(line + first, from, (size_t)(2 * (end - first)));
    }
    const uintptr_t moved = box->span ? box->span / 16 - 1 : 0;
    for (int i = 0; i < box->box[0] / 8; i++) {
        const uintptr_t to = (uintptr_t)row + (uintptr_t)(16 * i);
        memcpy((void *)(to ^ ((to >> 7 & moved) << 4)), line + 8 * i, 16);
    }
}

static void load_now(const struct load *l) {
    if (!l->block->live)
        emulator_die("a box arrives in block %u of the cluster, which has exited", l->block->rank);
    unsigned char *row = l->shared;
    const uint16_t *box = l->box.box;
    for (int v = 0; v < box[4]; v++)
        for (int z = 0; z < box[3]; z++)
            for (int y = 0; y < box[2]; y++)
                for (int x = 0; x < box[1]; x++, row += 2 * box[0]) {
                    const int index[] = { 0, x, y, z, v };
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
    size_t bytes = 2;
    for (int i = 0; i < rank; i++) {
        l.at[i] = at[i];
        bytes *= l.box.box[i];
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
        l.barrier = visible((uint64_t *)in_block(barrier, rank_of), "cp.async.bulk.tensor");
        /* Poison exposes a read before the barrier reports the bytes. */
        memset(l.shared, EMULATOR_POISON, bytes);
        emulator_later([l] { load_now(&l); });
    }
}
