/* The kernels that can compute a linear layer or a convolution on this device, for the tuner.
 *
 * A candidate is a kernel's path, its tile and the number of parts that k is split into. Every
 * shape has a static choice that needs no tuner; gemm_select replaces it. The key of a choice,
 * struct gemm_shape, holds no batch size. Path and split decide the order of summation, and a row's
 * bits must not depend on the other rows.
 */
#ifndef KERNELS_CUDA_GEMM_GEMM_CANDIDATES_H
#define KERNELS_CUDA_GEMM_GEMM_CANDIDATES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

/* The tuner's cache stores a candidate by its name, which begins with the name of its path. */
enum gemm_path {
    GEMM_SIMT,   /* multiply-adds in f32 for every dtype and shape: the plainest kernel */
    GEMM_VECTOR, /* like GEMM_SIMT, for a linear layer with one token a row (timesteps) */
    GEMM_MMA,    /* tensor cores through mma.sync: f16 from sm_75 on, bf16 from sm_80 on */
    GEMM_HOPPER, /* wgmma and TMA, sm_90 alone */
    GEMM_PATHS,
};

struct gemm_candidate {
    enum gemm_path path;
    int tile;  /* index into gemm_tiles(path), 0 if the path has only one */
    int split; /* parts of k, 1..GEMM_MAX_SPLIT */
};

#define GEMM_MAX_SPLIT 16
#define GEMM_MAX_CANDIDATES 63

struct gemm_tile {
    const char *name; /* "128x160x32" */
    int m, n, k;      /* of the block */
    int stages;
    int threads;
    size_t shared_bytes;
    int blocks;  /* blocks meant to share a multiprocessor */
    double rate; /* products per clock, relative to the path's best: for the static model */
    int cluster; /* blocks in the tile's own cluster; 1: none; 0: cannot be in one */
};

/* What a choice may depend on: the weight, and the sizes of one row. */
struct gemm_shape {
    enum dtype dtype;
    bool is_conv, geglu;
    bool plain;          /* a linear layer or 1x1 convolution followed by bias and residual only */
    enum conv_kind kind; /* if is_conv */
    int64_t n, k;        /* n and k of struct packed */
    int64_t h, w;        /* of one row of x; for a linear layer h = 1 and w = tokens of a row */
    int64_t h_out, w_out;
    int64_t k_shortcut; /* channels of a convolution's shortcut, 0 without one */
};

struct gemm_shape gemm_shape_of_linear(const struct linear_args *args);
struct gemm_shape gemm_shape_of_conv2d(const struct conv2d_args *args);

/* The tiles of a path; *count may be 0. */
const struct gemm_tile *gemm_tiles(enum gemm_path path, int *count);

/* Lists all candidates for this shape on the open device: first the static choice for `rows` rows,
 * then the others by the time that the static model expects. The last is always GEMM_SIMT, the
 * plainest. Returns their number. */
int gemm_candidates(
    const struct gemm_shape *shape, int64_t rows, struct gemm_candidate out[GEMM_MAX_CANDIDATES]);
/* Whether a candidate can compute this shape on the open device. */
bool gemm_can(const struct gemm_shape *shape, const struct gemm_candidate *candidate);
/* "mma 128x160x32 split 2" */
const char *gemm_candidate_name(const struct gemm_candidate *candidate, char *text, size_t size);

/* Whether the parts of the candidate's sum are added in the shared memory of a cluster on the open
 * device (gemm_parts.cuh). Otherwise they go through scratch memory and a second kernel, with the
 * same bits. */
bool gemm_is_clustered(const struct gemm_candidate *candidate);

/* Makes `candidate` (of gemm_candidates), with its tile, compute `shape` from now on for every
 * batch size. Returns false if the table of choices is full. */
bool gemm_select(const struct gemm_shape *shape, const struct gemm_candidate *candidate);
/* Returns to the static choices. */
void gemm_select_none(void);

/* Compute linear and conv2d with one candidate, whatever is selected. The arguments must have
 * passed the checks of op_linear and op_conv2d. GEMM_HOPPER adds a shortcut to its own sum. The
 * other paths compute the shortcut first, as a separate product with the candidate that is selected
 * for that product. */
bool gemm_linear_with(
    const struct gemm_candidate *candidate, const struct linear_args *args, struct error *err);
bool gemm_conv2d_with(
    const struct gemm_candidate *candidate, const struct conv2d_args *args, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
