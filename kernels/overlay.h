/* What the rows of a call change of a model's weights: adapters, without writing to any weight.
 *
 * A `struct low_rank_pair` holds the two factors of one low-rank change (LoRA, LoCon) in the
 * device's memory, made once. A `struct row_overlay` says what one row of a batch changes: from
 * weights of the model to low-rank terms (a pair, times a scale) and to whole replacements, and
 * from norms to other scales and shifts. A `struct overlay` names one of them for each row of a
 * call and stands in `struct compute` (compute.h), where op_linear, op_conv2d, op_group_norm and
 * op_layer_norm find it:
 *
 *   const struct row_overlay *rows[] = { NULL, mine, mine, theirs };
 *   c->overlay = &(struct overlay){ rows, 4 };
 *   unet_forward(unet, c, ...);
 *
 * Rows without a change of a weight take exactly the path that they take without an overlay; a
 * row's bits do not depend on the other rows. A row's replacement comes first, its terms are added
 * to what the replacement (or the base) gives, and activation and GEGLU come after both. A residual
 * may be added before the terms.
 *
 * Memory: a call with an overlay may take more of the arena than one without. What it takes for one
 * row is given back before the next row's is taken wherever the device is the CPU, so that a plan
 * (compute_plan) with each row_overlay in every row holds for any mixture of them.
 *
 * A pair is made by the thread that computes (a device that is not the CPU has one thread only). An
 * overlay is read by one thread at a time; a row_overlay may be part of many overlays.
 */
#ifndef KERNELS_OVERLAY_H
#define KERNELS_OVERLAY_H

#include "kernels/compute.h"

struct low_rank_pair;

/* For outputs of `target`: n of them, whichever they are. Host memory, f32, f16 or bf16:
 * down [rank][k] or [rank][k][1][1], for a 3x3 convolution [rank][k][3][3];
 * up [n][rank] or [n][rank][1][1]. `name` is the layer's, for the error. Both are copied. */
bool low_rank_pair_create(const char *name, const struct packed *target, int64_t n,
    const struct tensor *down, const struct tensor *up, struct low_rank_pair **out,
    struct error *err) __attribute__((warn_unused_result));
void low_rank_pair_destroy(struct low_rank_pair *pair); /* NULL is fine */
size_t low_rank_pair_bytes(const struct low_rank_pair *pair);

/* A pair's factors where they are trained: float arrays of the device, in panels (low_rank_term),
 * whose padding is zero and stays so. */
struct low_rank_factors {
    float *down, *up;               /* borrowed from the pair */
    int64_t down_floats, up_floats; /* with padding */
    int64_t rank, n, k, taps;
};
struct low_rank_factors low_rank_pair_factors(const struct low_rank_pair *pair);
/* The same before there is a pair; without memory. */
struct low_rank_factors low_rank_factors_of(const struct packed *target, int64_t n, int64_t rank);
/* A pair whose factors are all zeros. `memory` is the device's and the caller's, who keeps it as
 * long as the pair: down_floats + up_floats floats, down first; NULL: memory of its own. */
bool low_rank_pair_create_zeros(const char *name, const struct packed *target, int64_t n,
    int64_t rank, float *memory, struct low_rank_pair **out, struct error *err)
    __attribute__((warn_unused_result));
/* What op_low_rank takes; row_overlay_add_low_rank makes it. */
struct low_rank_term low_rank_pair_term(
    const struct low_rank_pair *pair, int64_t first, float scale);

struct row_overlay;

bool row_overlay_create(struct row_overlay **out, struct error *err)
    __attribute__((warn_unused_result));
void row_overlay_destroy(struct row_overlay *overlay); /* NULL is fine */

/* Adds scale * up down to outputs first .. first + n - 1 of `target` (n as the pair has it). Terms
 * of one weight are summed in the order in which they were added. The pair stays the caller's, who
 * keeps it as long as the overlay. */
bool row_overlay_add_low_rank(struct row_overlay *overlay, const struct packed *target,
    int64_t first, const struct low_rank_pair *pair, float scale, struct error *err)
    __attribute__((warn_unused_result));
/* From now on `replacement` stands for `target`, of whose kind and shape it is. Borrowed likewise.
 */
bool row_overlay_replace(struct row_overlay *overlay, const struct packed *target,
    const struct packed *replacement, struct error *err) __attribute__((warn_unused_result));

/* From now on `scale` and `shift`, f32 [c] in the device's memory, stand for the parameters of the
 * group or layer norm whose scale is `gamma`. All three are borrowed likewise. */
bool row_overlay_replace_norm(struct row_overlay *overlay, const struct tensor *gamma,
    const struct tensor *scale, const struct tensor *shift, struct error *err)
    __attribute__((warn_unused_result));

/* For one call: rows[i] of the call's outermost dimension, or NULL: the base weights only. */
struct overlay {
    const struct row_overlay *const *rows; /* borrowed */
    int count;
};

/* Inside kernels/: an overlay's terms in the memory of a device that reads them there. The
 * addresses stay the same for overlays that change the same weights of the same rows, so that what
 * was recorded with one can be replayed with the next, whatever their factors, ranks and scales
 * are. */
struct overlay_tables;

bool overlay_tables_create(const struct kernels *kernels, struct overlay_tables **out,
    struct error *err) __attribute__((warn_unused_result));
void overlay_tables_destroy(struct overlay_tables *tables); /* NULL is fine */

/* What decides which operations an overlay makes of a model's calls, and where its tables lie. */
struct overlay_key {
    uint64_t words[2]; /* zeros for no overlay, or one that changes nothing */
};

/* Puts the overlay (NULL: none) into the tables, in order with the device's work. *moved: the
 * tables lie elsewhere than before. */
bool overlay_tables_update(struct overlay_tables *tables, const struct overlay *overlay,
    struct overlay_key *key, bool *moved, struct error *err) __attribute__((warn_unused_result));

/* Inside kernels/: runs an operation whose arguments are right, as c->overlay wants it. False if
 * that is as without: it has no weights, or it is a norm that no row changes. */
bool overlay_run(struct compute *c, enum operation operation, const void *args);

#endif
