/* What can compute group_norm on this device, for the tuner. Which one is a property of one row's
 * shape, because they sum in different orders and a row's bits must not depend on the batch. */
#ifndef KERNELS_CUDA_NORM_CANDIDATES_H
#define KERNELS_CUDA_NORM_CANDIDATES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

enum group_norm_path {
    GROUP_NORM_PARTS, /* two kernels: moments of pieces of the image, then the rest: the plainest */
    GROUP_NORM_SHARED,  /* one kernel: a block keeps one group of one row in shared memory */
    GROUP_NORM_CLUSTER, /* the same with a cluster of blocks for each group (sm_90) */
};

struct group_norm_candidate {
    enum group_norm_path path;
};

#define GROUP_NORM_MAX_CANDIDATES 3

/* What a choice may depend on. */
struct group_norm_shape {
    enum dtype dtype;
    int64_t pixels, channels;
    int groups;
};

struct group_norm_shape group_norm_shape_of(const struct group_norm_args *args);

/* All that can compute this shape on the open device, the static choice first; GROUP_NORM_PARTS is
 * always there. Returns how many. */
int group_norm_candidates(const struct group_norm_shape *shape,
    struct group_norm_candidate out[GROUP_NORM_MAX_CANDIDATES]);
/* "parts", "shared", "cluster" */
const char *group_norm_candidate_name(
    const struct group_norm_candidate *candidate, char *text, size_t size);

/* From now on `shape` is computed by `candidate`. False if the table of choices is full. */
bool group_norm_select(
    const struct group_norm_shape *shape, const struct group_norm_candidate *candidate);
/* Back to the static choices. */
void group_norm_select_none(void);

/* group_norm by one candidate, whatever is selected. Arguments as checked by op_group_norm. */
bool group_norm_with(const struct group_norm_candidate *candidate,
    const struct group_norm_args *args, struct error *err);

#ifdef __cplusplus
}
#endif

#endif
