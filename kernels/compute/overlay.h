/* How each row of a call changes a model's weights. This is how adapters are applied without
 * writing to any weight.
 *
 * A `struct low_rank_pair` holds the two factors of one low-rank change (LoRA, LoCon) in the
 * device's memory, made once. A `struct row_overlay` describes the changes of one row of a batch:
 * low-rank terms (a pair, times a scale) or whole replacements for weights of the model, and other
 * scales and shifts for norms. A `struct overlay` names one row_overlay for each row of a call. It
 * is set in `struct compute` (compute.h), where op_linear, op_conv2d, op_group_norm and
 * op_layer_norm find it:
 *
 *   const struct row_overlay *rows[] = { NULL, mine, mine, theirs };
 *   c->overlay = &(struct overlay){ rows, 4 };
 *   unet_forward(unet, c, ...);
 *
 * A row that does not change a weight is computed exactly as without an overlay. A row's bits do
 * not depend on the other rows. For each row, the product with the row's replacement (or with the
 * base weight if the row has none) is computed first. Then the row's terms are added. Activation
 * and GEGLU come last. A residual may be added before the terms.
 *
 * Memory: a call with an overlay may take more of the arena than one without. On the CPU, the
 * memory of one row is released before the next row is computed. So plan (compute_plan) once for
 * each row_overlay, with that row_overlay in all rows; the memory is then enough for any mixture of
 * them.
 *
 * Pairs are made by the thread that computes, because an accelerator may be used from one thread
 * only. An overlay is read by one thread at a time; a row_overlay may be part of many overlays.
 */
#ifndef KERNELS_COMPUTE_OVERLAY_H
#define KERNELS_COMPUTE_OVERLAY_H

#include "kernels/compute/compute.h"

struct low_rank_pair;

/* Creates a pair from copies of two factors, for n outputs of `target`; row_overlay_add_low_rank
 * says for which ones. The factors lie in host memory as f32, f16 or bf16: down [rank][k] or
 * [rank][k][1][1], for a 3x3 convolution [rank][k][3][3]; up [n][rank] or [n][rank][1][1]. `name`
 * is the layer's name in error messages. */
bool low_rank_pair_create(const char *name, const struct packed *target, int64_t n,
    const struct tensor *down, const struct tensor *up, struct low_rank_pair **out,
    struct error *err) __attribute__((warn_unused_result));
void low_rank_pair_destroy(struct low_rank_pair *pair); /* NULL is fine */
size_t low_rank_pair_bytes(const struct low_rank_pair *pair);

/* A pair's factors for training: float arrays on the device, in panels (low_rank_term). Their
 * padding is zero and must stay zero. */
struct low_rank_factors {
    float *down, *up;               /* borrowed from the pair */
    int64_t down_floats, up_floats; /* including padding */
    int64_t rank, n, k, taps;
};
struct low_rank_factors low_rank_pair_factors(const struct low_rank_pair *pair);
/* Returns the sizes that a pair's factors will have; the pointers are NULL. */
struct low_rank_factors low_rank_factors_of(const struct packed *target, int64_t n, int64_t rank);
/* Creates a pair whose factors are all zeros. `memory` is device memory for down_floats + up_floats
 * floats, down first. The caller owns it and keeps it as long as the pair. If `memory` is NULL, the
 * pair allocates its own. */
bool low_rank_pair_create_zeros(const char *name, const struct packed *target, int64_t n,
    int64_t rank, float *memory, struct low_rank_pair **out, struct error *err)
    __attribute__((warn_unused_result));
/* Returns the pair as a term for op_low_rank; row_overlay_add_low_rank uses this. */
struct low_rank_term low_rank_pair_term(
    const struct low_rank_pair *pair, int64_t first, float scale);

struct row_overlay;

bool row_overlay_create(struct row_overlay **out, struct error *err)
    __attribute__((warn_unused_result));
void row_overlay_destroy(struct row_overlay *overlay); /* NULL is fine */

/* Adds scale * up down to outputs first .. first + n - 1 of `target`, where n is the pair's. Terms
 * of one weight are summed in the order in which they were added. The caller owns the pair and
 * keeps it as long as the overlay. */
bool row_overlay_add_low_rank(struct row_overlay *overlay, const struct packed *target,
    int64_t first, const struct low_rank_pair *pair, float scale, struct error *err)
    __attribute__((warn_unused_result));
/* Uses `replacement` instead of `target` from now on; both have the same kind and shape. The
 * overlay borrows `replacement` until the overlay is destroyed. */
bool row_overlay_replace(struct row_overlay *overlay, const struct packed *target,
    const struct packed *replacement, struct error *err) __attribute__((warn_unused_result));

/* Uses `scale` and `shift`, f32 [c] in the device's memory, instead of the parameters of the group
 * or layer norm whose scale is `gamma`. The overlay borrows all three tensors until the overlay is
 * destroyed. */
bool row_overlay_replace_norm(struct row_overlay *overlay, const struct tensor *gamma,
    const struct tensor *scale, const struct tensor *shift, struct error *err)
    __attribute__((warn_unused_result));

/* The terms of this many rows are added by one call of low_rank. No batch in training may be
 * larger: low_rank_backward then adds once to the gradient of each factor, and low_rank's dropout
 * numbers the elements of the whole batch. */
#define OVERLAY_ROWS_AT_ONCE 256

/* For one call: rows[i] belongs to row i of the call's outermost dimension; NULL means the base
 * weights only. */
struct overlay {
    const struct row_overlay *const *rows; /* borrowed */
    int count;
};

/* For use inside kernels/: an overlay's terms in device memory, for devices whose kernels read the
 * terms from there. The addresses stay the same for all overlays that change the same weights of
 * the same rows. A recording made with one such overlay can thus be replayed with another one,
 * whatever their factors, ranks and scales. */
struct overlay_tables;

bool overlay_tables_create(const struct kernels *kernels, struct overlay_tables **out,
    struct error *err) __attribute__((warn_unused_result));
void overlay_tables_destroy(struct overlay_tables *tables); /* NULL is fine */

/* Identifies the operations that an overlay adds to a model's calls, and the addresses of its
 * tables. */
struct overlay_key {
    uint64_t words[2]; /* zero without an overlay, or if it changes nothing */
};

/* Writes the overlay (NULL: none) into the tables, in order with the device's work. *moved: whether
 * the tables' addresses changed. */
bool overlay_tables_update(struct overlay_tables *tables, const struct overlay *overlay,
    struct overlay_key *key, bool *moved, struct error *err) __attribute__((warn_unused_result));

/* For use inside kernels/: runs an operation with checked arguments, with the changes of
 * c->overlay. Returns false, having done nothing, if the overlay changes nothing here: the
 * operation has no weights, or it is a norm that no row changes. */
bool overlay_run(struct compute *c, enum operation operation, const void *args);

#endif
