/* wgmma and setmaxnreg: the instructions that a group of four warps issues together.
 *
 * A product is computed as late as possible, when a wait requires it, and into a copy of its sums.
 * From the first wgmma until the wgmma_hold after the wait, the thread's own sums are poison. All
 * lanes of a warp, and all warps of a group, must issue the same instructions. A hash of them (the
 * trail) is kept and compared at every wait. */
#include "tests/cuda-emulator/emulator.h"
#include "tests/cuda-emulator/half.h"
#include "tests/cuda-emulator/hopper/hopper.h"

#include <algorithm>
#include <string.h>
#include <vector>

/* ---- descriptors ---- */

/* An operand in shared memory. Elements lie in lines of `line` bytes. Eight lines are an atom,
 * within which the swizzle moves 16-byte pieces. */
struct operand {
    const unsigned char *start;
    unsigned line, leading, stride;
    bool columns; /* a line runs along the rows, not along k */
};

/* Matrix descriptor of PTX ISA 9.0, "Asynchronous warpgroup level matrix shared memory layout". */
static struct operand decode(uint64_t bits, bool columns, int count, const char *what) {
    static const unsigned lines[] = { 0, 128, 64, 32 };
    struct operand o = {};
    const unsigned address = (unsigned)(bits & 0x3fff) << 4, base = (unsigned)(bits >> 49 & 7);
    o.leading = (unsigned)(bits >> 16 & 0x3fff) << 4;
    o.stride = (unsigned)(bits >> 32 & 0x3fff) << 4;
    o.line = lines[bits >> 62];
    o.columns = columns;
    if (bits & ((uint64_t)3 << 14 | (uint64_t)3 << 30 | (uint64_t)7 << 46 | (uint64_t)0x3ff << 52))
        emulator_die(
            "%s: descriptor %016llx has bits that mean nothing", what, (unsigned long long)bits);
    if (!o.line)
        emulator_die("%s: descriptor %016llx has no swizzle", what, (unsigned long long)bits);
    /* Within an atom, a descriptor's address may only move to one of the 16 elements of a row. */
    const unsigned atom = 8 * o.line, inside = address % atom;
    if (base || inside >= o.line || inside % 32 || (columns && inside))
        emulator_die("%s at byte %u of shared memory: not where an atom of %u bytes begins", what,
            address - EMULATOR_SHARED_WINDOW, atom);
    if (!o.stride || o.stride % atom)
        emulator_die("%s: a stride of %u bytes between atoms of %u", what, o.stride, atom);
    if (columns ? !o.leading || o.leading % atom : o.leading > 16)
        emulator_die("%s: a leading offset of %u bytes", what, o.leading);
    o.start = emulator_current->block->shared + (int)(address - EMULATOR_SHARED_WINDOW);
    const unsigned char *atoms = o.start - inside;
    if (!columns) {
        emulator_need_shared(atoms, (size_t)((count - 1) / 8) * o.stride + atom, atom, what);
        return o;
    }
    for (unsigned first = 0; first < 2 * (unsigned)count; first += o.line)
        emulator_need_shared(
            atoms + (size_t)(first / o.line) * o.leading, o.stride + atom, atom, what);
    return o;
}

/* Reads 8 adjacent elements. They are k = 8 i .. 8 i + 7 of row `row`; with `columns`, they are
 * rows 8 i .. 8 i + 7 of k = `row`. The swizzle changes bits 4 and up of an address by bits 7 and
 * up. */
static void read_piece(const struct operand &o, int row, int i, uint16_t *out) {
    const unsigned byte = 16 * (unsigned)i;
    const size_t offset = (size_t)(row / 8) * o.stride + (size_t)(row % 8) * o.line +
                          (o.columns ? (size_t)(byte / o.line) * o.leading + byte % o.line : byte);
    const uintptr_t at = (uintptr_t)o.start + offset;
    memcpy(out, (const void *)(at ^ ((at >> 7 & (o.line / 16 - 1)) << 4)), 16);
}

/* ---- a thread's state ---- */

/* The value of sums that belong to wgmma: a signalling NaN, so that any arithmetic changes it. */
static const uint32_t TAKEN = 0xffa5a5a5u;

/* Registers as they were at wgmma_hold. */
struct held {
    const uint32_t *first;
    int count;
    uint64_t stamp, hash;
};

struct sums {
    float *place; /* the thread's own sums, poisoned */
    int count;
    std::vector<float> values;
};

struct product {
    float *place;
    uint32_t a_values[4];
    const uint32_t *a_registers; /* or NULL: `a` is in shared memory */
    struct operand a, b;
    int n;
    bool add;
    enum emulator_element element;
    int group; /* number of commits before this product */
};

struct emulator_products {
    std::vector<struct product> started;
    std::vector<struct sums> sums; /* sums that wgmma has taken and not returned */
    std::vector<struct held> held;
    uint64_t clock, fenced; /* count the holds and fences */
    uint64_t trail;
    int commits;
};

/* A group of four warps. */
struct group {
    std::vector<uint64_t> trails; /* the trail's hash at each wait */
    int waits[4];
};

static struct {
    struct group groups[EMULATOR_MAX_THREADS / 128];
    int share;                                /* registers per thread at the start */
    int registers[EMULATOR_MAX_THREADS / 32]; /* per thread of each warp; 0: still the share */
} blocks[EMULATOR_MAX_CLUSTER];

struct emulator_products *emulator_products_create(void) {
    return new emulator_products();
}

static struct emulator_products *mine(void) {
    return emulator_current->products;
}

static int block_threads(void) {
    const dim3 b = emulator_launch_shape.block;
    return (int)(b.x * b.y * b.z);
}

static int warp_of(const struct emulator_thread *t) {
    const dim3 b = emulator_launch_shape.block;
    return (int)(t->index.x + b.x * (t->index.y + b.y * t->index.z)) / 32;
}

/* Returns the registers per thread if `count` blocks share a multiprocessor. */
static int share_of(int count) {
    return std::min(65536 / block_threads() / count / 8 * 8, 255);
}

static int registers_of(unsigned rank, int warp) {
    const int changed = blocks[rank].registers[warp];
    return changed ? changed : blocks[rank].share;
}

void emulator_products_begin(unsigned rank) {
    for (struct group &g : blocks[rank].groups) {
        g.trails.clear();
        memset(g.waits, 0, sizeof(g.waits));
    }
    blocks[rank].share = share_of(1);
    memset(blocks[rank].registers, 0, sizeof(blocks[rank].registers));
}

void emulator_products_end(unsigned rank) {
    for (int i = 0; i + 4 <= block_threads() / 32; i += 4)
        for (int warp = i + 1; warp < i + 4; warp++) {
            const int *waits = blocks[rank].groups[i / 4].waits;
            if (waits[warp - i] != waits[0])
                emulator_die("warp %d waited for %d groups of wgmma, warp %d of its group for %d",
                    warp, waits[warp - i], i, waits[0]);
            if (registers_of(rank, warp) != registers_of(rank, i))
                emulator_die("setmaxnreg by warp %d and not by warp %d of its group", i, warp);
        }
}

/* Dies unless the operation is issued by a whole group. */
static void need_group(const char *what) {
    if (emulator_current->parted)
        emulator_die("%s where lanes of the warp may have parted: nothing brought them together "
                     "after they waited for an mbarrier",
            what);
    if ((warp_of(emulator_current) / 4 + 1) * 128 > block_threads())
        emulator_die("%s in a group of fewer than four warps", what);
}

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 29;
}

static void leave_trail(uint64_t what, uint64_t first, uint64_t second) {
    mine()->trail = mix(mix(mix(mine()->trail, what), first), second);
}

/* ---- hold and fence ---- */

static uint64_t hash_of(const uint32_t *words, int count) {
    uint32_t low = 0, high = 0;
    for (int i = 0; i < count; i++) {
        low += words[i] * (uint32_t)(2 * i + 1);
        high ^= words[i] + (uint32_t)i * 0x9e3779b9u;
    }
    return (uint64_t)high << 32 | low;
}

static struct sums *find_sums(struct emulator_products *p, const float *place) {
    for (struct sums &s : p->sums)
        if (s.place == place)
            return &s;
    return NULL;
}

/* Returns the sums to the thread, if wgmma has them. */
static void give_back(struct emulator_products *p, const void *first, int count) {
    struct sums *s = find_sums(p, (const float *)first);
    if (!s)
        return;
    for (const struct product &product : p->started)
        if (product.place == s->place)
            emulator_die("wgmma_hold of sums that are under way");
    if (s->count != count)
        emulator_die("wgmma_hold of %d registers, wgmma's sums are %d", count, s->count);
    for (int i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, s->place + i, sizeof(bits));
        if (bits != TAKEN)
            emulator_die("sums were written between wgmma and the wgmma_hold behind its wait");
    }
    memcpy(s->place, s->values.data(), (size_t)count * sizeof(float));
    std::swap(*s, p->sums.back());
    p->sums.pop_back();
}

void emulator_wgmma_hold(const void *first, int count) {
    struct emulator_products *p = mine();
    const uint32_t *words = (const uint32_t *)first;
    const struct held held = { words, count, ++p->clock, 0 };
    give_back(p, first, count);
    struct held *place = NULL;
    for (struct held &h : p->held)
        if (h.first == words)
            place = &h;
    if (!place) {
        p->held.push_back(held);
        place = &p->held.back();
    }
    *place = held;
    place->hash = hash_of(words, count);
}

void emulator_wgmma_fence(void) {
    need_group("wgmma_fence");
    mine()->fenced = ++mine()->clock;
    leave_trail((uint64_t)__builtin_return_address(0), 1, 0);
}

/* Checks registers that wgmma is about to take: they must be held, then fenced, and unchanged
 * since. */
static void need_held(const void *first, int count, const char *what) {
    const struct emulator_products *p = mine();
    const uint32_t *words = (const uint32_t *)first;
    for (const struct held &h : p->held) {
        if (words < h.first || words + count > h.first + h.count)
            continue;
        if (h.stamp > p->fenced)
            emulator_die("no wgmma_fence between %s and wgmma", what);
        if (hash_of(h.first, h.count) != h.hash)
            emulator_die("%s changed after wgmma_hold", what);
        return;
    }
    emulator_die("no wgmma_hold of %s before wgmma", what);
}

static void take_sums(float *place, int count) {
    struct emulator_products *p = mine();
    const struct sums *taken = find_sums(p, place);
    if (taken && taken->count != count)
        emulator_die("wgmma of %d sums after one of %d on the same", count, taken->count);
    if (taken)
        return;
    need_held(place, count, "the sums");
    p->sums.push_back({ place, count, std::vector<float>(place, place + count) });
    for (int i = 0; i < count; i++)
        memcpy(place + i, &TAKEN, sizeof(TAKEN));
}

/* ---- products ---- */

__attribute__((target_clones("avx2", "default"))) static void widen(
    const uint16_t *bits, int count, enum emulator_element e, float *out) {
    if (e == EMULATOR_F16)
        for (int i = 0; i < count; i++)
            out[i] = emulator_half_to_float(bits[i]);
    else
        for (int i = 0; i < count; i++)
            out[i] = emulator_bfloat16_to_float(bits[i]);
}

/* sums[n] += one row of a times the columns of b, in the order of k. */
__attribute__((target_clones("avx2", "default"))) static void multiply_row(
    const float *a, const float (*b)[256], int n, float *sums) {
    for (int k = 0; k < 16; k++)
        for (int i = 0; i < n; i++)
            sums[i] += a[k] * b[k][i];
}

static void read_a(struct product **lanes, int warp, uint16_t (*a)[16]) {
    const struct product *p = lanes[0];
    for (int row = 0; row < 16; row++)
        for (int i = 0; i < 2; i++) {
            if (!p->a_registers) {
                read_piece(p->a, warp * 16 + row, i, a[row] + 8 * i);
                continue;
            }
            /* Lane 4 g + t has rows g and g + 8, in columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. */
            for (int k = 0; k < 8; k++)
                a[row][8 * i + k] =
                    (uint16_t)(lanes[row % 8 * 4 + k / 2]->a_values[row / 8 + 2 * i] >>
                               (k % 2 ? 16 : 0));
        }
}

static void read_b(const struct product *p, uint16_t (*b)[256]) {
    if (p->b.columns) {
        for (int k = 0; k < 16; k++)
            for (int i = 0; i < p->n / 8; i++)
                read_piece(p->b, k, i, b[k] + 8 * i);
        return;
    }
    for (int n = 0; n < p->n; n++) {
        uint16_t line[16];
        read_piece(p->b, n, 0, line);
        read_piece(p->b, n, 1, line + 8);
        for (int k = 0; k < 16; k++)
            b[k][n] = line[k];
    }
}

static void warp_product(struct product **lanes, float **sums_of, int warp) {
    static uint16_t a_bits[16][16], b_bits[16][256];
    static float a[16][16], b[16][256];
    const struct product *p = lanes[0];
    for (int lane = 0; p->a_registers && lane < 32; lane++)
        if (memcmp(lanes[lane]->a_registers, lanes[lane]->a_values, sizeof(p->a_values)) != 0)
            emulator_die("wgmma's left operand changed while it was under way, lane %d", lane);
    read_a(lanes, warp, a_bits);
    read_b(p, b_bits);
    widen(&a_bits[0][0], 256, p->element, &a[0][0]);
    for (int k = 0; k < 16; k++)
        widen(b_bits[k], p->n, p->element, b[k]);
    for (int row = 0; row < 16; row++) {
        float sums[256] = {};
        multiply_row(a[row], b, p->n, sums);
        for (int n = 0; n < p->n; n += 2) {
            float *to = sums_of[row % 8 * 4 + n % 8 / 2] + n / 8 * 4 + row / 8 * 2;
            to[0] = p->add ? to[0] + sums[n] : sums[n];
            to[1] = p->add ? to[1] + sums[n + 1] : sums[n + 1];
        }
    }
}

struct wait_lane {
    struct emulator_products *products;
    int until; /* all products of earlier groups are complete */
    const struct emulator_thread *thread;
};

/* Checks that all warps of a group issued the same instructions up to their waits. */
static void compare_trails(const struct wait_lane *lane) {
    const int warp = warp_of(lane->thread);
    struct group *g = &blocks[lane->thread->block->rank].groups[warp / 4];
    const size_t wait = (size_t)g->waits[warp % 4]++;
    if (wait == g->trails.size())
        g->trails.push_back(lane->products->trail);
    else if (g->trails[wait] != lane->products->trail)
        emulator_die("warps of a group issue different wgmma");
}

static void wait_all(void **lanes, unsigned) {
    struct wait_lane *first = (struct wait_lane *)lanes[0];
    for (int lane = 1; lane < 32; lane++)
        if (((struct wait_lane *)lanes[lane])->products->trail != first->products->trail)
            emulator_die("lanes of a warp issue different wgmma: lane %d and lane 0", lane);
    compare_trails(first);
    const size_t count = first->products->started.size();
    for (size_t i = 0; i < count && first->products->started[i].group < first->until; i++) {
        struct product *all[32];
        float *sums[32];
        for (int lane = 0; lane < 32; lane++) {
            struct emulator_products *p = ((struct wait_lane *)lanes[lane])->products;
            all[lane] = &p->started[i];
            sums[lane] = find_sums(p, all[lane]->place)->values.data();
        }
        warp_product(all, sums, warp_of(first->thread) % 4);
    }
}

static void start(struct product product, uint64_t a, uint64_t b, const void *site) {
    struct emulator_products *p = mine();
    const int registers = registers_of(emulator_current->block->rank, warp_of(emulator_current));
    if (product.n / 2 + 4 > registers)
        emulator_die("wgmma of %d sums in %d registers", product.n / 2, registers);
    take_sums(product.place, product.n / 2);
    product.group = p->commits;
    p->started.push_back(product);
    leave_trail((uint64_t)site, a, b);
    leave_trail((uint64_t)product.n, product.add, product.element);
}

void emulator_wgmma(
    float *sums, uint64_t a, uint64_t b, int n, bool add, enum emulator_element element) {
    emulator_need(90, "wgmma");
    need_group("wgmma");
    struct product p = {};
    p.place = sums;
    p.a = decode(a, false, 64, "wgmma's a");
    p.b = decode(b, false, n, "wgmma's b");
    p.n = n;
    p.add = add;
    p.element = element;
    start(p, a, b, __builtin_return_address(0));
}

void emulator_wgmma_columns(
    float *sums, const uint32_t *a, uint64_t b, int n, enum emulator_element element) {
    emulator_need(90, "wgmma");
    need_group("wgmma");
    struct product p = {};
    need_held(a, 4, "the left operand");
    p.place = sums;
    p.a_registers = a;
    memcpy(p.a_values, a, sizeof(p.a_values));
    p.b = decode(b, true, n, "wgmma's b");
    p.n = n;
    p.add = true;
    p.element = element;
    start(p, 0, b, __builtin_return_address(0));
}

void emulator_wgmma_commit(void) {
    need_group("wgmma_commit");
    mine()->commits++;
    leave_trail((uint64_t)__builtin_return_address(0), 2, 0);
}

void emulator_wgmma_wait(int left) {
    struct emulator_products *p = mine();
    need_group("wgmma_wait");
    leave_trail((uint64_t)__builtin_return_address(0), 3, (uint64_t)left);
    struct wait_lane lane = { p, p->commits - left, emulator_current };
    emulator_warp(wait_all, "wgmma_wait", 0xffffffffu, &lane, __FILE__, __LINE__);
    size_t done = 0;
    while (done < p->started.size() && p->started[done].group < lane.until)
        done++;
    p->started.erase(p->started.begin(), p->started.begin() + (long)done);
}

void emulator_products_exit(struct emulator_thread *t) {
    struct emulator_products *p = t->products;
    if (!p->clock && p->started.empty())
        return;
    if (!p->started.empty())
        emulator_die("exit with %zu wgmma that were never waited for", p->started.size());
    p->sums.clear();
    p->held.clear();
    p->clock = p->fenced = p->trail = 0;
    p->commits = 0;
}

/* ---- setmaxnreg ---- */

struct claim {
    unsigned rank;
    int warp, registers;
};

static bool is_granted(void *argument) {
    const struct claim *c = (const struct claim *)argument;
    int *registers = blocks[c->rank].registers, free = 0;
    for (int warp = 0; warp < block_threads() / 32; warp++)
        free += blocks[c->rank].share - registers_of(c->rank, warp);
    if (free < c->registers - registers_of(c->rank, c->warp))
        return false;
    registers[c->warp] = c->registers;
    return true;
}

static void give_registers(void **lanes, unsigned) {
    const struct claim *c = (const struct claim *)lanes[0];
    blocks[c->rank].registers[c->warp] = c->registers;
}

/* The emulator does not know the number of blocks per multiprocessor in the kernel's launch bounds.
 * It assumes the smallest number for which this claim is allowed. */
static void lower_share(const struct claim *c) {
    int *share = &blocks[c->rank].share;
    for (int count = 2; *share > c->registers && count <= 2048 / block_threads(); count++)
        *share = share_of(count);
}

void emulator_registers(int count, bool take) {
    const char *what = take ? "registers_take" : "registers_give_back";
    emulator_need(90, "setmaxnreg");
    need_group(what);
    struct claim claim = { emulator_current->block->rank, warp_of(emulator_current), count };
    if (take)
        lower_share(&claim);
    const int has = registers_of(claim.rank, claim.warp);
    if (count < 24 || count > 256 || count % 8 || (take ? count < has : count > has))
        emulator_die("%s: from %d registers to %d", what, has, count);
    emulator_warp(take ? nullptr : give_registers, what, 0xffffffffu, &claim, __FILE__, __LINE__);
    if (take)
        emulator_wait_for(is_granted, &claim, what, __FILE__, __LINE__);
}
