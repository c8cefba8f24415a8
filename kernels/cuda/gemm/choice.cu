/* Which kernel computes a linear layer or convolution: all candidates, a static model of their
 * time, and the table of candidates that a tuner selected.
 *
 * The model adds up the waves of blocks over the multiprocessors, the transfer of a split sum's
 * parts through memory, and the end of a block if no other block computes meanwhile. It ignores
 * caches and is only meant to be reasonable, because the tuner measures. gemm_hopper.cu has a model
 * of its own.
 */
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/tune/selections.cuh"
#include "kernels/cuda/tune/tuner.h"

#include <stdio.h>

/* Path and split are chosen for this number of rows, whatever the batch: one image with
 * guidance. */
#define NOMINAL_ROWS 2

/* From this many channels on, the static choice is Hopper's kernel. This is the width of its
 * narrowest tile. */
#define HOPPER_CHANNELS 64

/* The start of a kernel, in microseconds, and the transfer of a split sum's parts, in bytes per
 * microsecond. */
#define LAUNCH_US 3.0
#define PARTIAL_BYTES_PER_US 2.5e6
/* The cost of parts that are added in the shared memory of clusters: two barriers in microseconds,
 * and the transfer in bytes per microsecond, for all clusters together. */
#define CLUSTER_US 1.5
#define CLUSTER_BYTES_PER_US 2.6e6
/* How many outputs per microsecond a multiprocessor finishes once their sums are complete. */
#define END_PER_US 2e4

static bool same_shape(const struct gemm_shape *a, const struct gemm_shape *b) {
    return a->dtype == b->dtype && a->is_conv == b->is_conv && a->geglu == b->geglu &&
           a->plain == b->plain && (!a->is_conv || a->kind == b->kind) && a->n == b->n &&
           a->k == b->k && a->h == b->h && a->w == b->w && a->h_out == b->h_out &&
           a->w_out == b->w_out && a->k_shortcut == b->k_shortcut;
}

static struct selections<struct gemm_shape, struct gemm_candidate> selected;

const struct gemm_tile *gemm_tiles(enum gemm_path path, int *count) {
    switch (path) {
    case GEMM_SIMT:
        return gemm_simt_tiles(count);
    case GEMM_MMA:
        return gemm_mma_tiles(count);
    case GEMM_HOPPER:
        return gemm_hopper_tiles(count);
    default:
        *count = 0;
        return NULL;
    }
}

const char *gemm_candidate_name(const struct gemm_candidate *candidate, char *text, size_t size) {
    static const char *const paths[] = { "simt", "vector", "mma", "hopper" };
    int count;
    const struct gemm_tile *tiles = gemm_tiles(candidate->path, &count);
    snprintf(text, size, "%s%s%s split %d", paths[candidate->path], count ? " " : "",
        count ? tiles[candidate->tile].name : "", candidate->split);
    return text;
}

bool gemm_is_clustered(const struct gemm_candidate *c) {
    int count;
    const struct gemm_tile *tiles = gemm_tiles(c->path, &count);
    if (c->split == 1 || tiles[c->tile].cluster == 0 || cuda_get_properties()->no_clusters ||
        !GEMM_PARTS_MEET(cuda_get_properties()->code))
        return false;
    return tiles[c->tile].cluster * c->split <= CUDA_PORTABLE_CLUSTER ||
           (c->path == GEMM_HOPPER && gemm_hopper_clusters(c));
}

/* Returns the multiply-adds per microsecond that the tensor cores of one multiprocessor do in
 * practice. */
static double multiprocessor_rate(void) {
    const int capability = cuda_get_properties()->capability;
    return capability >= 100 ? 3.0e6 : capability >= 90 ? 2.4e6 : capability >= 80 ? 1.0e6 : 0.4e6;
}

static int64_t divided_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

/* Returns the output pixels of one row and phase. */
static int64_t pixels_of(const struct gemm_shape *s) {
    return gemm_is_phased(s) ? s->h * s->w : s->h_out * s->w_out;
}

/* Returns the number of GEMM_K_UNITs of the sum, including those of a shortcut. */
static int64_t units_of(const struct gemm_shape *s) {
    return divided_up(gemm_taps(s) * s->k, GEMM_K_UNIT) + divided_up(s->k_shortcut, GEMM_K_UNIT);
}

static double expected_us(
    const struct gemm_shape *s, int64_t rows, const struct gemm_candidate *c) {
    int count;
    const struct gemm_tile *tile = &gemm_tiles(c->path, &count)[c->tile];
    const int64_t m = rows * pixels_of(s), phases = gemm_is_phased(s) ? 4 : 1;
    const int64_t units = units_of(s);
    if (c->path == GEMM_HOPPER)
        return gemm_hopper_us(c, m, s->n, (int)phases, units, multiprocessor_rate());
    const int64_t blocks = divided_up(m, tile->m) * divided_up(s->n, tile->n) * phases * c->split;
    const int64_t waves = divided_up(blocks, cuda_get_properties()->multiprocessors);
    const double products = (double)divided_up(units, c->split) * GEMM_K_UNIT * (double)tile->m *
                            (double)tile->n;
    const double end = (double)tile->m * (double)tile->n / END_PER_US;
    double us = LAUNCH_US + (double)waves * products / (tile->rate * multiprocessor_rate()) +
                end * (tile->blocks > 1 ? 1.0 : (double)waves);
    const double parts = (double)(m * phases * s->n * c->split);
    if (gemm_is_clustered(c))
        us += CLUSTER_US + 4.0 * parts / CLUSTER_BYTES_PER_US;
    else if (c->split > 1)
        us += LAUNCH_US + 8.0 * parts / PARTIAL_BYTES_PER_US;
    return us;
}

/* Whether the parts of one row fit in the scratch memory, and each part has enough work to be worth
 * starting. */
static bool split_fits(const struct gemm_shape *s, int split) {
    if (split == 1)
        return true;
    const int64_t phases = gemm_is_phased(s) ? 4 : 1;
    const int64_t columns = divided_up(s->n, 16) * 16;
    return units_of(s) >= 4 * split &&
           pixels_of(s) * phases * columns * split * 4 <= (int64_t)cuda_workspace_bytes();
}

static bool is_vector(const struct gemm_shape *s) {
    return !s->is_conv && s->w == 1;
}

bool gemm_can(const struct gemm_shape *s, const struct gemm_candidate *c) {
    if (c->path == GEMM_VECTOR)
        return is_vector(s);
    int count;
    const struct gemm_tile *tiles = gemm_tiles(c->path, &count);
    if (c->tile < 0 || c->tile >= count || c->split < 1 || c->split > GEMM_MAX_SPLIT ||
        !split_fits(s, c->split) || (s->geglu && tiles[c->tile].n < 16))
        return false;
    switch (c->path) {
    case GEMM_MMA:
        return s->k % 8 == 0 && gemm_mma_has(c->tile, s->dtype);
    case GEMM_HOPPER:
        return gemm_hopper_has(c->tile, s);
    default:
        return true;
    }
}

/* Adds candidates of `path` to `out`, which is sorted by expected time, and returns the new count.
 * If `only_split` is not 0, adds only candidates with that many parts. A full table loses its
 * slowest candidate. */
static int add_path(const struct gemm_shape *s, int64_t rows, enum gemm_path path, int only_split,
    struct gemm_candidate *out, int count, int max) {
    static const int splits[] = { 1, 2, 3, 4, 5, 6, 8, 10, 12, 16 };
    double us[GEMM_MAX_CANDIDATES];
    int tile_count;
    (void)gemm_tiles(path, &tile_count);
    for (int i = 0; i < count; i++)
        us[i] = expected_us(s, rows, &out[i]);
    for (int t = 0; t < tile_count; t++) {
        for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
            const struct gemm_candidate c = { path, t, splits[i] };
            if ((only_split && splits[i] != only_split) || !gemm_can(s, &c))
                continue;
            const double expected = expected_us(s, rows, &c);
            if (count == max && expected >= us[count - 1])
                continue;
            int at = count < max ? count++ : count - 1;
            for (; at > 0 && us[at - 1] > expected; at--) {
                us[at] = us[at - 1];
                out[at] = out[at - 1];
            }
            us[at] = expected;
            out[at] = c;
        }
    }
    return count;
}

/* The static choice. Path and split follow from the shape alone; the tile may follow the batch. */
static struct gemm_candidate static_choice(const struct gemm_shape *s, int64_t rows) {
    struct gemm_candidate best = { GEMM_SIMT, 0, 1 };
    const bool halves = s->dtype != DTYPE_F32;
    /* Measured on an H100: the tile that the model picks takes 4 % longer than the best of all
     * kernels, and mma.sync wins only with few channels. */
    if (!(halves && s->n >= HOPPER_CHANNELS &&
            add_path(s, NOMINAL_ROWS, GEMM_HOPPER, 0, &best, 0, 1)) &&
        !(halves && !is_vector(s) && add_path(s, NOMINAL_ROWS, GEMM_MMA, 0, &best, 0, 1))) {
        best.path = is_vector(s) ? GEMM_VECTOR : GEMM_SIMT;
        return best;
    }
    if (rows != NOMINAL_ROWS)
        add_path(s, rows, best.path, best.split, &best, 0, 1);
    return best;
}

int gemm_candidates(
    const struct gemm_shape *shape, int64_t rows, struct gemm_candidate out[GEMM_MAX_CANDIDATES]) {
    const struct gemm_candidate simt = { GEMM_SIMT, 0, 1 };
    out[0] = static_choice(shape, rows);
    int count = 1;
    if (shape->dtype != DTYPE_F32) {
        struct gemm_candidate all[GEMM_MAX_CANDIDATES - 2]; /* without the first and the last */
        /* At most half of the candidates are portable ones, and fewer on Hopper, where they seldom
         * win. The candidates that are expected to be slowest are dropped. */
        const int portable = GEMM_MAX_CANDIDATES / (out[0].path == GEMM_HOPPER ? 6 : 2);
        int n = add_path(shape, rows, GEMM_MMA, 0, all, 0, portable);
        n = add_path(shape, rows, GEMM_HOPPER, 0, all, n, GEMM_MAX_CANDIDATES - 2);
        for (int i = 0; i < n; i++)
            if (all[i].path != out[0].path || all[i].tile != out[0].tile ||
                all[i].split != out[0].split)
                out[count++] = all[i];
    }
    if (out[0].path != GEMM_SIMT)
        out[count++] = simt;
    return count;
}

bool gemm_select(const struct gemm_shape *shape, const struct gemm_candidate *candidate) {
    return selected.put(shape, candidate);
}

void gemm_select_none(void) {
    selected.clear();
}

struct gemm_candidate gemm_pick(const struct gemm_shape *shape, int64_t rows) {
    const struct gemm_candidate *found = selected.find(shape, &tunable_gemm);
    return found ? *found : static_choice(shape, rows);
}
