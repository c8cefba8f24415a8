#include "tests/cuda-emulator/twins.h"

#include "tests/cuda-emulator/emulator.h"
#include "tests/cuda-emulator/half.h"
#include "tests/cuda-emulator/memory.h"

#include <string.h>
#include <vector>

static const unsigned ALL = 0xffffffffu;

bool emulator_has(int capability) {
    return emulator_launch_shape.code >= capability;
}

void emulator_need(int capability, const char *what) {
    if (!emulator_has(capability))
        emulator_die("%s needs sm_%d, the kernel is for sm_%d", what, capability, emulator_code());
}

void emulator_need_shared(const void *pointer, size_t bytes, size_t alignment, const char *what) {
    const unsigned char *p = (const unsigned char *)pointer;
    const unsigned char *base = emulator_current->block->shared;
    if (p < base || p + bytes > base + emulator_launch_shape.shared_bytes)
        emulator_die("out of bounds: %s at byte %td of %zu bytes of shared memory", what, p - base,
            emulator_launch_shape.shared_bytes);
    if ((uintptr_t)p % alignment)
        emulator_die("%s at byte %td of shared memory, which is no multiple of %zu", what, p - base,
            alignment);
}

uint32_t emulator_shared_address(const void *shared) {
    const ptrdiff_t byte = (const unsigned char *)shared - emulator_current->block->shared;
    return EMULATOR_SHARED_WINDOW + (uint32_t)byte;
}

/* ---- mma ---- */

template <enum emulator_element E>
__attribute__((always_inline)) static inline void widen(
    const uint16_t *bits, int count, float *out) {
    for (int i = 0; i < count; i++)
        out[i] = E == EMULATOR_F16 ? emulator_half_to_float(bits[i])
                                   : emulator_bfloat16_to_float(bits[i]);
}

struct mma_lane {
    float *c;
    const uint32_t *a;
    const uint32_t *b;
};

/* out[16][8] = a b, each sum in the order of k. Compiled a second time for wide vectors. */
template <int K, enum emulator_element E>
__attribute__((always_inline)) static inline void multiply(
    const uint16_t (&a_bits)[16][K], const uint16_t (&b_bits)[K][8], float (&out)[16][8]) {
    float a[16][K], b[K][8];
    widen<E>(&a_bits[0][0], 16 * K, &a[0][0]);
    widen<E>(&b_bits[0][0], K * 8, &b[0][0]);
    for (int row = 0; row < 16; row++) {
        float sums[8] = {};
        for (int k = 0; k < K; k++)
            for (int n = 0; n < 8; n++)
                sums[n] += a[row][k] * b[k][n];
        memcpy(out[row], sums, sizeof(sums));
    }
}

#define MULTIPLY(name, K, E)                                                                       \
    __attribute__((target_clones("avx2", "default"))) static void name(                            \
        const uint16_t(&a)[16][K], const uint16_t(&b)[K][8], float(&out)[16][8]) {                 \
        multiply<K, E>(a, b, out);                                                                 \
    }
MULTIPLY(multiply_f16, 16, EMULATOR_F16)
MULTIPLY(multiply_bf16, 16, EMULATOR_BF16)
MULTIPLY(multiply_f16_8, 8, EMULATOR_F16)

template <int K>
static void mma_all(void **lanes,
    void (*multiply_all)(const uint16_t (&)[16][K], const uint16_t (&)[K][8], float (&)[16][8])) {
    uint16_t a_bits[16][K], b_bits[K][8];
    float sums[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const struct mma_lane *l = (const struct mma_lane *)lanes[lane];
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 2; i++)
            for (int k = 0; k < K; k += 8) {
                a_bits[group][k + pair + i] = (uint16_t)(l->a[k / 4] >> 16 * i);
                a_bits[group + 8][k + pair + i] = (uint16_t)(l->a[k / 4 + 1] >> 16 * i);
                b_bits[k + pair + i][group] = (uint16_t)(l->b[k / 8] >> 16 * i);
            }
    }
    multiply_all(a_bits, b_bits, sums);
    for (int row = 0; row < 16; row++)
        for (int n = 0; n < 8; n++)
            ((struct mma_lane *)lanes[row % 8 * 4 + n / 2])->c[row / 8 * 2 + n % 2] += sums[row][n];
}

static void mma_f16(void **lanes, unsigned) {
    mma_all<16>(lanes, multiply_f16);
}

static void mma_bf16(void **lanes, unsigned) {
    mma_all<16>(lanes, multiply_bf16);
}

static void mma_f16_8(void **lanes, unsigned) {
    mma_all<8>(lanes, multiply_f16_8);
}

void emulator_mma_m16n8k16(
    float *c, const uint32_t *a, const uint32_t *b, enum emulator_element element) {
    struct mma_lane lane = { c, a, b };
    emulator_need(80, "mma.m16n8k16");
    emulator_warp(element == EMULATOR_F16 ? mma_f16 : mma_bf16, "mma_m16n8k16", ALL, &lane,
        __FILE__, __LINE__);
}

void emulator_mma_m16n8k8(float *c, const uint32_t *a, uint32_t b) {
    struct mma_lane lane = { c, a, &b };
    emulator_need(75, "mma.m16n8k8");
    emulator_warp(mma_f16_8, "mma_m16n8k8_f16", ALL, &lane, __FILE__, __LINE__);
}

/* ---- ldmatrix ---- */

struct ldmatrix_lane {
    uint32_t *r;
    const uint16_t *row;
};

template <int COUNT, bool TRANSPOSE> static void ldmatrix_all(void **lanes, unsigned) {
    for (int i = 0; i < COUNT; i++)
        for (int lane = 0; lane < 32; lane++) {
            uint16_t pair[2];
            for (int j = 0; j < 2; j++) {
                const int row = TRANSPOSE ? lane % 4 * 2 + j : lane / 4;
                const int column = TRANSPOSE ? lane / 4 : lane % 4 * 2 + j;
                pair[j] = ((struct ldmatrix_lane *)lanes[8 * i + row])->row[column];
            }
            ((struct ldmatrix_lane *)lanes[lane])->r[i] = pair[0] | (uint32_t)pair[1] << 16;
        }
}

void emulator_ldmatrix(uint32_t *r, const void *row, int count, bool transpose) {
    static const emulator_warp_function functions[5][2] = { {}, {},
        { ldmatrix_all<2, false>, ldmatrix_all<2, true> }, {},
        { ldmatrix_all<4, false>, ldmatrix_all<4, true> } };
    struct ldmatrix_lane lane = { r, (const uint16_t *)row };
    emulator_need(75, "ldmatrix");
    if (emulator_current->lane < 8 * count)
        emulator_need_shared(row, 16, 16, "ldmatrix");
    emulator_warp(functions[count][transpose], "ldmatrix", ALL, &lane, __FILE__, __LINE__);
}

/* ---- cp.async ---- */

struct copy {
    void *to;
    const void *from;
    int bytes;
    unsigned group;
};

struct emulator_copies {
    std::vector<struct copy> copies; /* in order of issue */
    unsigned groups;                 /* committed so far */
};

struct emulator_copies *emulator_copies_create(void) {
    return new emulator_copies();
}

static void copy_16(const struct copy &c) {
    unsigned char line[16] = {};
    memcpy(line, c.from, (size_t)c.bytes);
    memcpy(c.to, line, sizeof(line));
}

void emulator_cp_async_16(void *shared, const void *global, int bytes) {
    struct emulator_copies *c = emulator_current->copies;
    const struct copy copy = { shared, global, bytes, c->groups };
    if (bytes < 0 || bytes > 16)
        emulator_die("cp.async of %d bytes", bytes);
    emulator_need_shared(shared, 16, 16, "cp.async");
    if (bytes && (uintptr_t)global % 16)
        emulator_die("cp.async from %p, which is not at a multiple of 16", global);
    if (bytes && !emulator_is_device(global, (size_t)bytes))
        emulator_die("out of bounds: cp.async of %d bytes from %p", bytes, global);
    copy_16(copy);
    if (!emulator_has(80))
        return;
    /* Poison exposes a read or write before the wait. */
    memset(shared, EMULATOR_POISON, 16);
    c->copies.push_back(copy);
}

void emulator_cp_async_commit(void) {
    emulator_current->copies->groups++;
}

void emulator_cp_async_wait(int pending) {
    struct emulator_copies *c = emulator_current->copies;
    size_t done = 0;
    while (done < c->copies.size() && (int)(c->groups - c->copies[done].group) > pending)
        copy_16(c->copies[done++]);
    c->copies.erase(c->copies.begin(), c->copies.begin() + (ptrdiff_t)done);
}

void emulator_copies_exit(struct emulator_thread *t) {
    if (!t->copies->copies.empty())
        emulator_die("exit with %zu cp.async that were never waited for", t->copies->copies.size());
    t->copies->groups = 0;
    emulator_products_exit(t);
    emulator_mbarriers_exit(t);
}

static bool is_not_staged(void *) {
    return !emulator_is_staged();
}

void emulator_griddepcontrol_wait(void) {
    emulator_current->block->waited_for_grid = true;
    emulator_wait_for(is_not_staged, NULL, "griddepcontrol_wait", __FILE__, __LINE__);
}

void emulator_griddepcontrol_launch(void) {
    if (emulator_launch_shape.programmatic && !emulator_current->block->waited_for_grid)
        emulator_die(
            "griddepcontrol_launch before griddepcontrol_wait: the kernel behind would not "
            "wait for the one ahead");
}
