/* The kernels that can compute group_norm on this device, for the tuner. They sum in different
 * orders. Because a row's bits must not depend on the batch, the choice depends on one row's shape
 * only. */
#ifndef KERNELS_CUDA_NORM_NORM_CANDIDATES_H
#define KERNELS_CUDA_NORM_NORM_CANDIDATES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

enum group_norm_path {
    GROUP_NORM_PARTS, /* two kernels: moments of pieces of the image, then the rest; the plainest */
    GROUP_NORM_SHARED,  /* one kernel: each block keeps a group of a row in shared memory */
    GROUP_NORM_CLUSTER, /* like GROUP_NORM_SHARED, with a cluster per group (sm_90) */
    GROUP_NORM_LINES, /* two kernels over whole pixels, in words of 16 bytes: group_norm_lines.cu */
};

struct group_norm_candidate {
    enum group_norm_path path;
};

#define GROUP_NORM_MAX_CANDIDATES 4

/* What a choice may depend on. */
struct group_norm_shape {
    enum dtype dtype;
    int64_t pixels, channels;
    int groups;
};

struct group_norm_shape group_norm_shape_of(const struct group_norm_args *args);

/* Lists all candidates for this shape on the open device, the static choice first. GROUP_NORM_PARTS
 * is always among them. Returns their number. */
int group_norm_candidates(const struct group_norm_shape *shape,
    struct group_norm_candidate out[GROUP_NORM_MAX_CANDIDATES]);
/* "parts", "shared", "cluster", "lines" */
const char *group_norm_candidate_name(
    const struct group_norm_candidate *candidate, char *text, size_t size);

/* Makes `candidate` compute `shape` from now on. Returns false if the table of choices is full. */
bool group_norm_select(
    const struct group_norm_shape *shape, const struct group_norm_candidate *candidate);

/* Computes group_norm with one candidate, whatever is selected. The arguments must have passed the
 * checks of op_group_norm. */
bool group_norm_with(const struct group_norm_candidate *candidate,
    const struct group_norm_args *args, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
