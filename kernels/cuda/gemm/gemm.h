/* Inside kernels/cuda/: linear and conv2d as one product (see gemm.cuh), seen from the host.
 *
 * pack.cu packs weights. gemm.cu turns a call into a struct gemm. choice.cu lists the candidates
 * for it (gemm_candidates.h) and picks one. gemm_mma.cu, gemm_hopper.cu and gemm_simt.cu hold the
 * kernels.
 */
#ifndef KERNELS_CUDA_GEMM_GEMM_H
#define KERNELS_CUDA_GEMM_GEMM_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm/gemm_candidates.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the code for sm_`code` adds the parts of a split sum in a cluster. sm_120 has clusters
 * too, but there the kernel of the widest tile would spill registers. */
#define GEMM_PARTS_MEET(code) ((code) >= 90 && (code) < 120)

/* The parts of a split sum consist of blocks of this many products. GEMM_K_UNIT is a multiple of
 * every tile's K step. */
#define GEMM_K_UNIT 64

/* The arguments of the kernels. Element counts of one row of the batch fit in int. */
struct gemm {
    const void *x, *weight; /* weight [phases][n][taps][c_in] in x's dtype */
    const float *bias;      /* [n], or NULL */
    const void *row_add, *residual;
    void *y;
    float *partial;       /* [phases][split][m][n_partial], if split > 1 and not clustered */
    int m;                /* output pixels of one phase, all rows */
    int n;                /* columns: output channels; GEGLU: value and gate alternate */
    int n_out;            /* channels of y */
    int row_add_step;     /* elements from one row of row_add to the next */
    int k;                /* taps * c_in */
    int h, w, c_in;       /* x */
    int grid_h, grid_w;   /* output pixels of one row and phase */
    int limit_h, limit_w; /* coordinates at or above these, or below 0, read zeros */
    int shift;            /* pixel of x = coordinate >> shift; 1: x is doubled */
    int taps_x, taps;     /* taps of one line of the filter, and of all lines */
    int stride, before;
    int phases; /* 1 or 4 */
    /* Further channels of the sum, which have no taps: shortcut [row][h][w][c_shortcut] and its
     * weight [n][c_shortcut]. Without a shortcut, c_shortcut is 0. Only gemm_hopper.cu reads these
     * members. */
    const void *shortcut, *shortcut_weight;
    int c_shortcut;
    int split, n_partial;
    bool clustered; /* gemm_is_clustered, and y_is_f32 is false */
    enum activation activation;
    bool geglu, row_add_is_f32;
    bool y_is_f32; /* y is f32 but x is not; no residual then */
    bool halves;   /* ungated GEGLU: values go to y's first half, gates to the second */
    bool vectors;  /* n_out is a multiple of 8 and all 16-byte accesses are aligned */
};

/* A packed weight. */
struct cuda_packed {
    struct packed base;
    enum dtype dtype;
    void *weight; /* owned: [n][taps][c_in]; GEGLU: value and gate alternate */
    void *phases; /* owned: CONV_3X3_UP's [4][n][2][2][c_in], else NULL */
    float *bias;  /* owned, or NULL */
    size_t weight_bytes, phase_bytes;
};

/* The form of the product for a shape: whether it has phases, and its number of taps. */
bool gemm_is_phased(const struct gemm_shape *shape);
int gemm_taps(const struct gemm_shape *shape);

/* The tiles of each path, and whether the open device can run one of them. */
const struct gemm_tile *gemm_mma_tiles(int *count);
const struct gemm_tile *gemm_simt_tiles(int *count);
const struct gemm_tile *gemm_hopper_tiles(int *count);
bool gemm_mma_has(int tile, enum dtype dtype);
bool gemm_hopper_has(int tile, const struct gemm_shape *shape);
/* Whether the open device can run a cluster of all parts of the candidate's sum. A cluster may have
 * up to 16 blocks, more than every device supports. */
bool gemm_hopper_clusters(const struct gemm_candidate *candidate);
/* Returns the time in microseconds that the static model expects of a candidate. m: pixels of one
 * phase; n: channels; units: GEMM_K_UNITs of the sum; multiprocessor_rate: products per
 * microsecond. */
double gemm_hopper_us(const struct gemm_candidate *candidate, int64_t m, int64_t n, int phases,
    int64_t units, double multiprocessor_rate);
/* Prints how many tiles of Hopper's kernel the device runs. For each tile and cluster size, prints
 * how many blocks run at once. */
void gemm_hopper_facts(FILE *out);

/* Each of these launches g with a candidate of its path; gemm_simt_run takes GEMM_SIMT and
 * GEMM_VECTOR. */
bool gemm_mma_run(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err);
bool gemm_simt_run(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err);
bool gemm_hopper_run(const struct gemm_candidate *candidate, const struct gemm *g, enum dtype dtype,
    struct error *err);
/* Adds the parts of a split sum and finishes the product. */
bool gemm_reduce_run(const struct gemm *g, enum dtype dtype, struct error *err);

/* Returns the candidate for a shape and `rows` rows of a batch: the selected one, or the static
 * choice. Its path and its split do not depend on `rows`. */
struct gemm_candidate gemm_pick(const struct gemm_shape *shape, int64_t rows);

/* The table's entries that are implemented in pack.cu and gemm.cu. */
bool gemm_linear_pack(const struct tensor *weight, const struct tensor *bias, bool geglu,
    enum dtype dtype, struct packed **out, struct error *err);
bool gemm_conv2d_pack(const struct tensor *weight, const struct tensor *bias, enum conv_kind kind,
    enum dtype dtype, struct packed **out, struct error *err);
void gemm_packed_destroy(struct packed *packed);
bool gemm_unpack(const struct packed *packed, float *weight, float *bias, struct error *err);
bool gemm_rewrite(struct packed *packed, const float *weight, const float *bias, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
