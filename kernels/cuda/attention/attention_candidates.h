/* The kernels that can compute attention on this device, for the tuner.
 *
 * A candidate is a kernel's path and its tile. Every shape has a static choice that needs no tuner;
 * attention_select replaces it. The key of a choice, struct attention_shape, holds no batch size.
 * Path and tile decide how the keys are divided into blocks, and a row's bits must not depend on
 * the other rows.
 */
#ifndef KERNELS_CUDA_ATTENTION_ATTENTION_CANDIDATES_H
#define KERNELS_CUDA_ATTENTION_ATTENTION_CANDIDATES_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/kernels.h"

enum attention_path {
    ATTENTION_PLAIN,  /* multiply-adds in f32 for every dtype, shape, address and mask */
    ATTENTION_WIDE,   /* tensor cores, heads of up to 512 channels, a multiple of 8 */
    ATTENTION_FLASH,  /* tensor cores, heads of 40, 64, 80 and 160 channels */
    ATTENTION_WHOLE,  /* like FLASH; all keys must fit one block (a text has 77) */
    ATTENTION_HOPPER, /* wgmma and TMA, sm_90 alone: heads of 40, 64, 80 and 160 channels */
};

struct attention_candidate {
    enum attention_path path;
    int tile; /* index into attention_tile_list(path); 0 if the path has only one tile */
};

#define ATTENTION_MAX_CANDIDATES 24

struct attention_tile {
    const char *name;  /* "d40 128x64": head_dim, queries and keys of a block */
    int head_dim;      /* only this one; for ATTENTION_WIDE at most this */
    int queries, keys; /* of a block */
    int threads;
    bool sm75;           /* has an f16 variant for sm_75 */
    bool whole;          /* all keys must fit one block */
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

/* In a call with lengths, the candidate does not depend on the call's tk. Rows of at most
 * ATTENTION_FEW_KEYS keys use the candidate for tk = ATTENTION_FEW_KEYS (one block takes all their
 * keys). Longer rows use the candidate for tk = 2 * ATTENTION_FEW_KEYS. A row's bits thus depend on
 * its own length alone. If these two candidates differ, both are launched, and each launch skips
 * the rows of the other. */
#define ATTENTION_FEW_KEYS 80

/* Fills in the shapes that decide how a call is computed, and returns their number. Without
 * lengths, this is the call's own shape. With lengths, it is the shape with tk = ATTENTION_FEW_KEYS
 * and, if the call has more keys, also the shape with twice that tk. */
int attention_shapes_of(const struct attention_args *args, struct attention_shape shapes[2]);

/* The tiles of a path; *count may be 0. */
const struct attention_tile *attention_tile_list(enum attention_path path, int *count);

/* Lists all candidates for this shape on the open device. The static choice is the first,
 * ATTENTION_PLAIN the last; it appears only once. Returns their number. */
int attention_candidates(
    const struct attention_shape *shape, struct attention_candidate out[ATTENTION_MAX_CANDIDATES]);
/* "flash d40 128x64" */
const char *attention_candidate_name(
    const struct attention_candidate *candidate, char *text, size_t size);

/* Makes `candidate` (of attention_candidates) compute `shape` from now on. Returns false if the
 * table of choices is full. */
bool attention_select(
    const struct attention_shape *shape, const struct attention_candidate *candidate);

/* Computes attention with one candidate, whatever is selected. The arguments must have passed the
 * checks of op_attention, and the candidate must be able to take the lengths. */
bool attention_with(const struct attention_candidate *candidate, const struct attention_args *args,
    struct error *err);

#ifdef __cplusplus
}
#endif

#endif
