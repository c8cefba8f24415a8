/* Inside kernels/cuda/: attention seen from the host. attention.cu turns a call into a struct
 * attention and picks a candidate. attention_plain.cu, attention_flash.cu, attention_wide.cu and
 * attention_hopper.cu hold the kernels. */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_H
#define KERNELS_CUDA_ATTENTION_ATTENTION_H

#include "kernels/cuda/attention/attention_candidates.h"
#include "kernels/cuda/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The arguments of the kernels. q, k and v point at channel 0 of head 0 of token 0. */
struct attention {
    const void *q, *k, *v;
    void *y;                        /* [rows][tq][heads * d] */
    int64_t q_step, k_step, v_step; /* elements from one token to the next */
    int rows, heads, d, tq, tk;
    float scale;
    bool causal;
    const int *lengths; /* keys of each row, in the device's memory; NULL: tk */
    int fewest, most;   /* with lengths: rows with other counts are skipped */
};

/* Each of these launches `a` with a candidate of its path. */
bool attention_plain_run(const struct attention *a, enum dtype dtype, struct error *err);
bool attention_flash_run(const struct attention_candidate *candidate, const struct attention *a,
    enum dtype dtype, struct error *err);
bool attention_wide_run(const struct attention_candidate *candidate, const struct attention *a,
    enum dtype dtype, struct error *err);
bool attention_hopper_run(const struct attention_candidate *candidate, const struct attention *a,
    enum dtype dtype, struct error *err);

/* The tiles of each path, and the shared memory that a tile takes for heads of d channels. */
const struct attention_tile *attention_flash_tiles(int *count);
const struct attention_tile *attention_whole_tiles(int *count);
const struct attention_tile *attention_wide_tiles(int *count);
const struct attention_tile *attention_hopper_tiles(int *count);
size_t attention_wide_shared_bytes(int tile, int d);

#ifdef __cplusplus
}
#endif

#endif
