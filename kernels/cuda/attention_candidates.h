/* What can compute attention on this device, for the tuner.
 *
 * A candidate is a kernel's path and its tile. For every shape there is a static choice that needs
 * no tuner; attention_select puts another in its place. The key, struct attention_shape, holds no
 * batch size: a row's bits must not depend on the other rows, and path and tile decide in which
 * blocks the keys are taken.
 */
#ifndef KERNELS_CUDA_ATTENTION_CANDIDATES_H
#define KERNELS_CUDA_ATTENTION_CANDIDATES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

enum attention_path {
    ATTENTION_PLAIN,  /* multiply-adds in f32 for every dtype, shape, address and mask */
    ATTENTION_WIDE,   /* tensor cores, any head of a multiple of 8 up to 512 channels */
    ATTENTION_FLASH,  /* tensor cores, heads of 40, 64, 80 and 160 channels */
    ATTENTION_WHOLE,  /* the same for as few keys as fit one block: the text's 77 */
    ATTENTION_HOPPER, /* wgmma and TMA, sm_90 alone: heads of 40, 64, 80 and 160 channels */
};

struct attention_candidate {
    enum attention_path path;
    int tile; /* index into attention_tile_list(path), 0 where a path has one tile only */
};

#define ATTENTION_MAX_CANDIDATES 24

struct attention_tile {
    const char *name;  /* "d40 128x64": largest head, queries and keys of a block */
    int head_dim;      /* the only one, or, of ATTENTION_WIDE, the largest */
    int queries, keys; /* of a block */
    int threads;
    bool sm75;           /* has an f16 variant for sm_75 */
    bool whole;          /* takes as many keys as fit one block, and no more */
    size_t shared_bytes; /* 0: depends on the head */
};

/* What a choice may depend on. */
struct attention_shape {
    enum dtype dtype;
    int heads, head_dim;
    int64_t tq, tk;
    bool causal;
    bool plain_only; /* a dtype, addresses, steps or scale that only ATTENTION_PLAIN takes */
};

struct attention_shape attention_shape_of(const struct attention_args *args);

/* What the rows of a call with lengths are computed as, whatever tk is, so that a row's bits depend
 * on its own length alone: few keys, which one block takes whole, as this many, and more of them as
 * twice as many. Where that are two candidates, either is launched and skips the other's rows. */
#define ATTENTION_FEW_KEYS 80

/* The shapes that decide how a call is computed: its own, or with lengths one or both of those.
 * Returns how many. */
int attention_shapes_of(const struct attention_args *args, struct attention_shape shapes[2]);

/* The tiles of a path; *count may be 0. */
const struct attention_tile *attention_tile_list(enum attention_path path, int *count);

/* All that can compute this shape on the open device, the static choice first; the last is always
 * ATTENTION_PLAIN, the plainest, which is then there twice if it is the static choice among others.
 * Returns how many. */
int attention_candidates(
    const struct attention_shape *shape, struct attention_candidate out[ATTENTION_MAX_CANDIDATES]);
/* "flash d40 128x64" */
const char *attention_candidate_name(
    const struct attention_candidate *candidate, char *text, size_t size);

/* From now on `shape` is computed by `candidate` (of attention_candidates). False if the table of
 * choices is full. */
bool attention_select(
    const struct attention_shape *shape, const struct attention_candidate *candidate);
/* Back to the static choices. */
void attention_select_none(void);

/* attention by one candidate, whatever is selected. Arguments as checked by op_attention; with
 * lengths that a candidate for these shapes can take. */
bool attention_with(const struct attention_candidate *candidate, const struct attention_args *args,
    struct error *err);

#ifdef __cplusplus
}
#endif

#endif
