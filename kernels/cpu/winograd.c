/* 3x3 convolution, stride 1, by Winograd's minimal filtering F(m x m, 3 x 3), m = 2 or 4.
 *
 *   Y = A^T [ (G g G^T) . (B^T d B) ] A       for each m x m output tile, t = m + 2:
 *
 * the t x t input pixels d of a tile and the 3 x 3 filter g are transformed, multiplied element by
 * element (summed over input channels, so t * t matrix products), and transformed back. That is
 * t * t / m / m multiplications an output instead of 9: 4 for m = 2 and 2.25 for m = 4.
 *
 * m = 4 interpolates at 0, +-5/8, +-3/2 and infinity. The error of one convolution is then 4 times
 * that of the direct sum; with the usual points 0, +-1, +-2 instead, it would be 10 times. With m =
 * 2 it is 1.5 times.
 *
 * Nearest upsampling costs nothing here, because only the index of the input pixel changes. The
 * gradient of upsampling sums two by two pixels of a tile before they are stored. A gradient's
 * filters are transposed, a square of inputs and outputs at a time, before they are transformed.
 *
 * There are two ways, chosen by the size of all transformed filters U (for m = 4, four times the
 * weight) and by the number of tiles:
 *  - U is small (FUSED_BYTES) and all threads have enough tiles: U is made once, and a task
 *    computes a few tiles from input to output
 *    pixels; nothing in between leaves the second-level cache.
 *  - otherwise: tiles are taken in chunks whose transformed input V stays in the third-level
 * cache, and a task takes CHUNK_PANELS panels of output channels: it transforms their filters for
 *    CHUNK_K inputs at a time, multiplies, and transforms back.
 */
#include "kernels/cpu/matmul_isa.h"

#include <omp.h>

#define FUSED_BYTES (64 << 20) /* of U */
#define FUSED_TILES 48         /* tiles per task, at most */
#define CHUNK_BYTES (12 << 20) /* of V */
#define CHUNK_PANELS 4         /* of a task */
#define CHUNK_K 320            /* input channels that a task transforms at a time */
#define TILE_MAX 6
#define POINTS_MAX (TILE_MAX * TILE_MAX)
#define SPREAD 16 /* floats between the planes, so that they do not share cache sets */

#define A1 0.625f
#define A2 0.390625f
#define A3 0.244140625f
#define B1 1.5f
#define B2 2.25f
#define B3 3.375f

/* out = B^T d, for one line of m + 2 values that are `step` apart in both; out may be d. */
INLINE void input_line(int m, const vf *d, vf *out, int step) {
    vf d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    if (m == 2) {
        out[0 * step] = d0 - d2;
        out[1 * step] = d1 + d2;
        out[2 * step] = d2 - d1;
        out[3 * step] = d1 - d3;
        return;
    }
    vf d4 = d[4 * step], d5 = d[5 * step];
    vf even_a = d4 - B2 * d2, odd_a = d3 - B2 * d1;
    vf even_b = d4 - A2 * d2, odd_b = d3 - A2 * d1;
    out[0 * step] = A2 * B2 * d0 + (d4 - (A2 + B2) * d2);
    out[1 * step] = even_a + A1 * odd_a;
    out[2 * step] = even_a - A1 * odd_a;
    out[3 * step] = even_b + B1 * odd_b;
    out[4 * step] = even_b - B1 * odd_b;
    out[5 * step] = A2 * B2 * d1 + (d5 - (A2 + B2) * d3);
}

/* out = G g, for one line of 3 values `step` apart to m + 2 values `out_step` apart. */
INLINE void filter_line(int m, const vf *g, int step, vf *out, int out_step) {
    vf g0 = g[0], g1 = g[step], g2 = g[2 * step];
    if (m == 2) {
        vf even = 0.5f * (g0 + g2), odd = 0.5f * g1;
        out[0] = g0;
        out[out_step] = even + odd;
        out[2 * out_step] = even - odd;
        out[3 * out_step] = g2;
        return;
    }
    const float scale_a = 1.0f / (2 * A2 * (A2 - B2)), scale_b = 1.0f / (2 * B2 * (B2 - A2));
    vf even_a = scale_a * g0 + (scale_a * A2) * g2, odd_a = (scale_a * A1) * g1;
    vf even_b = scale_b * g0 + (scale_b * B2) * g2, odd_b = (scale_b * B1) * g1;
    out[0] = (1.0f / (A2 * B2)) * g0;
    out[out_step] = even_a + odd_a;
    out[2 * out_step] = even_a - odd_a;
    out[3 * out_step] = even_b + odd_b;
    out[4 * out_step] = even_b - odd_b;
    out[5 * out_step] = g2;
}

/* out = A^T p, for one line of m + 2 values to m values. */
INLINE void output_line(int m, const vf *p, int step, vf *out, int out_step) {
    if (m == 2) {
        out[0] = p[0] + p[step] + p[2 * step];
        out[out_step] = p[step] - p[2 * step] - p[3 * step];
        return;
    }
    vf sum_a = p[step] + p[2 * step], difference_a = p[step] - p[2 * step];
    vf sum_b = p[3 * step] + p[4 * step], difference_b = p[3 * step] - p[4 * step];
    out[0] = p[0] + sum_a + sum_b;
    out[out_step] = A1 * difference_a + B1 * difference_b;
    out[2 * out_step] = A2 * sum_a + B2 * sum_b;
    out[3 * out_step] = A3 * difference_a + (B3 * difference_b + p[5 * step]);
}

/* The sizes and buffers of one call. */
struct plan {
    const struct matmul_job *job;
    bool enlarge;                    /* x is read as if enlarged two by two */
    bool pool;                       /* two by two pixels are summed into one of y */
    int64_t h, w;                    /* size of the image that is cut into tiles */
    int64_t tiles_y, tiles_x, tiles; /* `tiles`: the tiles of all rows */
    bool fused;
    int64_t chunk;         /* tiles in V */
    int64_t part;          /* tiles per task */
    int64_t panels;        /* of a task */
    int64_t plane;         /* floats from one point of V to the next */
    int64_t filter_k;      /* input channels in U */
    int64_t filter_plane;  /* floats from one point of U to the next, for one panel */
    int64_t product_plane; /* floats from one point of products to the next */
    size_t shared_bytes, thread_bytes;
    float *shared; /* V [t * t][chunk][k]; fused: U [panel][t * t][k][PANEL] */
    char *threads; /* each: U [t * t][filter_k][PANEL] (fused: V), then products [t *
                      t][part][panels][PANEL] */
};

/* Returns the tiles per fused task: enough to share the reading of U, but few enough that all
 * threads end at about the same time. */
static int64_t fused_tiles(int64_t tiles) {
    int64_t threads = omp_get_max_threads(), best = FUSED_TILES, best_cost = INT64_MAX;
    for (int64_t n = FUSED_TILES; n >= 12; n -= 12) {
        int64_t tasks = (tiles + n - 1) / n, rounds = (tasks + threads - 1) / threads;
        int64_t cost = rounds * (n + 3);
        if (cost < best_cost) {
            best = n;
            best_cost = cost;
        }
    }
    return best;
}

static struct plan make_plan(const struct matmul_job *job, int m) {
    int64_t k = job->weight->k, points = (m + 2) * (m + 2), panels = job->weight->panel_count;
    int64_t threads = omp_get_max_threads();
    struct plan plan = { .job = job };
    plan.enlarge = job->upsample && !job->weight->turned;
    plan.pool = job->upsample && job->weight->turned;
    plan.h = plan.pool ? job->h : job->h_out;
    plan.w = plan.pool ? job->w : job->w_out;
    plan.tiles_y = (plan.h + m - 1) / m;
    plan.tiles_x = (plan.w + m - 1) / m;
    plan.tiles = job->rows * plan.tiles_y * plan.tiles_x;
    int64_t filter_bytes = panels * points * (k * PANEL + SPREAD) * (int64_t)sizeof(float);
    plan.fused = filter_bytes <= FUSED_BYTES && plan.tiles >= 2 * FUSED_TILES * threads;
    if (plan.fused) {
        plan.chunk = plan.part = fused_tiles(plan.tiles);
        plan.panels = panels;
        plan.filter_k = k;
    } else {
        int64_t fits = CHUNK_BYTES / (points * k * (int64_t)sizeof(float));
        int64_t chunks = fits < TILE_ROWS ? plan.tiles : (plan.tiles + fits - 1) / fits;
        plan.chunk = (plan.tiles + chunks - 1) / chunks;
        /* If the groups of panels alone give fewer than two tasks per thread, a chunk is also
         * divided into parts. */
        plan.panels = panels < CHUNK_PANELS ? panels : CHUNK_PANELS;
        int64_t groups = (panels + plan.panels - 1) / plan.panels;
        int64_t parts = (2 * threads + groups - 1) / groups;
        plan.part = ((plan.chunk + parts - 1) / parts + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
        plan.filter_k = k < CHUNK_K ? k : CHUNK_K;
    }
    plan.plane = plan.chunk * k + SPREAD;
    plan.filter_plane = plan.filter_k * PANEL + SPREAD;
    plan.product_plane = (plan.part + TILE_ROWS) * plan.panels * PANEL + SPREAD;
    int64_t input = points * plan.plane, filter = points * plan.panels * plan.filter_plane;
    int64_t products = points * plan.product_plane;
    plan.shared_bytes = (size_t)(plan.fused ? filter : input) * sizeof(float);
    plan.thread_bytes = (size_t)((plan.fused ? input : filter) + products) * sizeof(float);
    return plan;
}

size_t MATMUL(winograd_scratch)(const struct matmul_job *job, int tile) {
    struct plan plan = make_plan(job, tile);
    return plan.shared_bytes + (size_t)omp_get_max_threads() * plan.thread_bytes;
}

static float *thread_memory(const struct plan *plan) {
    return (float *)(plan->threads + (size_t)omp_get_thread_num() * plan->thread_bytes);
}

/* Computes V of one tile: out[point * plane][k]. */
INLINE void transform_input(int m, bool bf16, const struct plan *plan, int64_t tile, float *out) {
    const struct matmul_job *job = plan->job;
    const int t = m + 2;
    int64_t k = job->weight->k;
    int64_t row = tile / (plan->tiles_y * plan->tiles_x);
    int64_t top = tile / plan->tiles_x % plan->tiles_y * m - 1;
    int64_t left = tile % plan->tiles_x * m - 1;
    int64_t h_in = plan->enlarge ? job->h_out : job->h, w_in = plan->enlarge ? job->w_out : job->w;
    int shift = plan->enlarge ? 1 : 0;
    const char *pixels[POINTS_MAX];
    const size_t element = bf16 ? 2 : 4;
    for (int i = 0; i < t * t; i++) {
        int64_t y = top + i / t, x = left + i % t;
        bool inside = y >= 0 && y < h_in && x >= 0 && x < w_in;
        int64_t pixel = (row * job->h + (y >> shift)) * job->w + (x >> shift);
        pixels[i] = inside ? (const char *)job->x + (size_t)(pixel * k) * element
                           : (const char *)job->weight->zeros;
    }
    for (int64_t c = 0; c < k; c += LANES) {
        vf d[POINTS_MAX];
#pragma GCC unroll 36
        for (int i = 0; i < t * t; i++)
            d[i] = load_lanes(pixels[i], c, LANES, bf16);
#pragma GCC unroll 6
        for (int i = 0; i < t; i++)
            input_line(m, d + i, d + i, t);
#pragma GCC unroll 6
        for (int i = 0; i < t; i++)
            input_line(m, d + i * t, d + i * t, 1);
#pragma GCC unroll 36
        for (int i = 0; i < t * t; i++)
            store(out + i * plan->plane + c, d[i]);
    }
}

/* Transforms the nine taps of LANES filters into points, which are `plane` floats apart. */
INLINE void transform_taps(int m, const vf g[9], int64_t plane, float *out) {
    const int t = m + 2;
    vf half[3 * TILE_MAX], u[POINTS_MAX];
#pragma GCC unroll 3
    for (int j = 0; j < 3; j++)
        filter_line(m, g + j, 3, half + j, 3);
#pragma GCC unroll 6
    for (int j = 0; j < t; j++)
        filter_line(m, half + 3 * j, 1, u + j * t, 1);
#pragma GCC unroll 36
    for (int j = 0; j < t * t; j++)
        store(out + j * plane, u[j]);
}

/* Does what transform_filter does, for a turned weight, LANES inputs at a time. */
INLINE void transform_turned(
    int m, const struct plan *plan, int64_t panel, int64_t first, int64_t length, float *out) {
    const struct matmul_weight *weight = plan->job->weight;
    for (int64_t i = 0; i < length; i += LANES) {
        float taps[9][LANES * PANEL] __attribute__((aligned(64)));
        for (int j = 0; j < 9; j++) /* dx uses the forward's taps in reverse order */
            MATMUL(turned_block)(weight, panel, (8 - j) * weight->k + first + i, LANES, taps[j]);
        for (int64_t c = 0; c < LANES * PANEL; c += LANES) {
            vf g[9];
#pragma GCC unroll 9
            for (int j = 0; j < 9; j++)
                g[j] = load(taps[j] + c);
            transform_taps(m, g, plan->filter_plane, out + i * PANEL + c);
        }
    }
}

/* Computes U of inputs [first, first + length) of one panel: out[point *
 * filter_plane][length][PANEL]. */
INLINE void transform_filter(
    int m, const struct plan *plan, int64_t panel, int64_t first, int64_t length, float *out) {
    const struct matmul_weight *weight = plan->job->weight;
    int64_t tap = weight->k * PANEL;
    if (weight->turned) {
        transform_turned(m, plan, panel, first, length, out);
        return;
    }
    for (int64_t i = 0; i < length * PANEL; i += LANES) {
        vf g[9];
        int64_t at = panel * 9 * tap + first * PANEL + i;
        if (weight->bf16) {
#pragma GCC unroll 9
            for (int j = 0; j < 9; j++)
                g[j] = load_bf16((const uint16_t *)weight->panels + at + j * tap);
        } else {
#pragma GCC unroll 9
            for (int j = 0; j < 9; j++)
                g[j] = load((const float *)weight->panels + at + j * tap);
        }
        transform_taps(m, g, plan->filter_plane, out + i);
    }
}

/* Sums two by two pixels of a tile. Pixels outside the picture count as zero. */
INLINE void pool_tile(int m, const struct plan *plan, int64_t top, int64_t left, vf *y) {
    for (int i = 0; i < m * m; i++) {
        const int64_t to = i / m / 2 * m + i % m / 2;
        const vf v = top + i / m < plan->h && left + i % m < plan->w ? y[i] : (vf){ 0 };
        y[to] = (i / m | i % m) & 1 ? y[to] + v : v;
    }
}

/* Transforms one panel of one tile back to pixels; adds bias, row_add and residual. */
INLINE void transform_output(
    int m, bool bf16, const struct plan *plan, const float *products, int64_t tile, int64_t panel) {
    const struct matmul_job *job = plan->job;
    const int t = m + 2;
    const int shrink = plan->pool ? 2 : 1;
    int64_t n = job->weight->n;
    int64_t row = tile / (plan->tiles_y * plan->tiles_x);
    int64_t top = tile / plan->tiles_x % plan->tiles_y * m, left = tile % plan->tiles_x * m;
    for (int c = 0; c < PANEL && panel * PANEL + c < n; c += LANES) {
        int64_t column = panel * PANEL + c;
        int lanes = n - column < LANES ? (int)(n - column) : LANES;
        vf p[POINTS_MAX], half[4 * TILE_MAX], y[16];
        vf add = load(job->weight->bias + column);
        if (job->row_add)
            add += load_lanes(
                job->row_add, row * job->row_add_step + column, lanes, job->row_add_bf16);
#pragma GCC unroll 36
        for (int i = 0; i < t * t; i++)
            p[i] = load(products + i * plan->product_plane + c);
#pragma GCC unroll 6
        for (int i = 0; i < t; i++)
            output_line(m, p + i, t, half + i, t);
#pragma GCC unroll 4
        for (int i = 0; i < m; i++)
            output_line(m, half + i * t, 1, y + i * m, 1);
        if (plan->pool)
            pool_tile(m, plan, top, left, y);
        for (int i = 0; i < m * m; i++) {
            int64_t py = top / shrink + i / m, px = left / shrink + i % m;
            if (i / m >= m / shrink || i % m >= m / shrink || py >= job->h_out || px >= job->w_out)
                continue;
            int64_t at = ((row * job->h_out + py) * job->w_out + px) * n + column;
            vf v = y[i] + add;
            if (job->residual)
                v += load_lanes(job->residual, at, lanes, bf16);
            store_lanes(job->y, at, v, lanes, bf16);
        }
    }
}

/* Multiplies `count` tiles of V with the panels of U, for inputs [at, at + length). */
static void multiply(const struct plan *plan, int points, const float *input, int64_t count,
    int64_t at, int64_t length, int64_t panels, const float *filter, float *products) {
    int64_t k = plan->job->weight->k, stride = plan->panels * PANEL;
    for (int i = 0; i < points; i++) {
        int step;
        for (int64_t r = 0; r < count; r += step) {
            const float *rows[TILE_ROWS];
            step = tile_rows(count - r);
            for (int j = 0; j < step; j++)
                rows[j] = input + i * plan->plane + (r + j < count ? r + j : r) * k;
            for (int64_t p = 0; p < panels; p++)
                MATMUL(tile_product)
            (step, rows, at, length, filter + (p * points + i) * plan->filter_plane,
                products + i * plan->product_plane + r * stride + p * PANEL, stride, at > 0);
        }
    }
}

/* Transforms back and writes `count` tiles from `first` on, for the panels from `panel` on. */
INLINE void finish(int m, bool bf16, const struct plan *plan, const float *products, int64_t first,
    int64_t count, int64_t panel, int64_t panels) {
    for (int64_t r = 0; r < count; r++)
        for (int64_t p = 0; p < panels; p++)
            transform_output(
                m, bf16, plan, products + (r * plan->panels + p) * PANEL, first + r, panel + p);
}

INLINE void run_fused(int m, bool bf16, const struct plan *plan) {
    const int points = (m + 2) * (m + 2);
    int64_t k = plan->job->weight->k;
#pragma omp parallel
    {
        float *input = thread_memory(plan), *products = input + points * plan->plane;
#pragma omp for schedule(dynamic)
        for (int64_t p = 0; p < plan->panels; p++)
            transform_filter(m, plan, p, 0, k, plan->shared + p * points * plan->filter_plane);
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < plan->tiles; first += plan->part) {
            int64_t left = plan->tiles - first, count = left < plan->part ? left : plan->part;
            for (int64_t r = 0; r < count; r++)
                transform_input(m, bf16, plan, first + r, input + r * k);
            for (int64_t at = 0; at < k; at += BLOCK_K)
                multiply(plan, points, input, count, at, k - at < BLOCK_K ? k - at : BLOCK_K,
                    plan->panels, plan->shared + at * PANEL, products);
            finish(m, bf16, plan, products, first, count, 0, plan->panels);
        }
    }
}

/* Runs one task of a chunk: computes the panels from `panel` on for `count` tiles, from tile first
 * + slot on. `first` is the chunk's first tile. */
INLINE void run_panels(int m, bool bf16, const struct plan *plan, int64_t first, int64_t slot,
    int64_t count, int64_t panel) {
    const int points = (m + 2) * (m + 2);
    int64_t k = plan->job->weight->k, left = plan->job->weight->panel_count - panel;
    int64_t panels = left < plan->panels ? left : plan->panels;
    float *filter = thread_memory(plan);
    float *products = filter + points * plan->panels * plan->filter_plane;
    for (int64_t at = 0; at < k; at += plan->filter_k) {
        int64_t length = k - at < plan->filter_k ? k - at : plan->filter_k;
        for (int64_t p = 0; p < panels; p++)
            transform_filter(
                m, plan, panel + p, at, length, filter + p * points * plan->filter_plane);
        multiply(
            plan, points, plan->shared + slot * k, count, at, length, panels, filter, products);
    }
    finish(m, bf16, plan, products, first + slot, count, panel, panels);
}

INLINE void run_chunks(int m, bool bf16, const struct plan *plan) {
    int64_t panel_count = plan->job->weight->panel_count, k = plan->job->weight->k;
#pragma omp parallel
    for (int64_t first = 0; first < plan->tiles; first += plan->chunk) {
        int64_t left = plan->tiles - first, count = left < plan->chunk ? left : plan->chunk;
#pragma omp for schedule(dynamic, 4)
        for (int64_t slot = 0; slot < count; slot++)
            transform_input(m, bf16, plan, first + slot, plan->shared + slot * k);
#pragma omp for schedule(dynamic) collapse(2)
        for (int64_t panel = 0; panel < panel_count; panel += plan->panels) {
            for (int64_t slot = 0; slot < count; slot += plan->part)
                run_panels(m, bf16, plan, first, slot,
                    count - slot < plan->part ? count - slot : plan->part, panel);
        }
    }
}

INLINE void run(int m, bool bf16, const struct plan *plan) {
    if (plan->fused)
        run_fused(m, bf16, plan);
    else
        run_chunks(m, bf16, plan);
}

static void run_2_f32(const struct plan *plan) {
    run(2, false, plan);
}

static void run_4_f32(const struct plan *plan) {
    run(4, false, plan);
}

static void run_2_bf16(const struct plan *plan) {
    run(2, true, plan);
}

static void run_4_bf16(const struct plan *plan) {
    run(4, true, plan);
}

void MATMUL(winograd)(const struct matmul_job *job, int tile, void *scratch) {
    struct plan plan = make_plan(job, tile);
    plan.shared = scratch;
    plan.threads = (char *)scratch + plan.shared_bytes;
    if (job->bf16)
        (tile == 4 ? run_4_bf16 : run_2_bf16)(&plan);
    else
        (tile == 4 ? run_4_f32 : run_2_f32)(&plan);
}
