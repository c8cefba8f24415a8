/* How models call operations: checked, with a sticky error, and with a dry run.
 *
 * A `struct compute` holds one caller's device table, its arena and its error. Each op_* wrapper
 * validates shapes, dtypes and aliasing, then calls the table. After the first failure every further
 * call does nothing, so that a model reads as straight-line arithmetic and checks once, at its end
 * (the way libraries with an error flag on a stream work). In a dry run the wrappers validate and
 * compute nothing: that is how activation memory is planned, and how a wrong shape is found at load
 * instead of in a request.
 *
 * One thread at a time.
 */
#ifndef KERNELS_COMPUTE_H
#define KERNELS_COMPUTE_H

#include "kernels/arena.h"
#include "kernels/kernels.h"

struct compute {
    const struct kernels *kernels; /* borrowed */
    struct arena *arena;           /* borrowed */
    bool dry_run;
    struct error error; /* the first failure; code ERROR_NONE while all is well */
    double flops;       /* work of the products so far: 2 a multiply-add, as the formulas say */
};

static inline bool compute_ok(const struct compute *c) {
    return c->error.code == ERROR_NONE;
}

/* A tensor from the arena; contents undefined. On failure the error sticks and the data is NULL. */
struct tensor compute_tensor_2d(struct compute *c, enum dtype dtype, int64_t a, int64_t b);
struct tensor compute_tensor_3d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d);
struct tensor compute_tensor_4d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d, int64_t e);

/* Runs `run(c, user)` once as a dry run and reserves the arena for it. The arena must be empty. */
bool compute_plan(struct compute *c, void (*run)(struct compute *c, void *user), void *user,
    struct error *err) __attribute__((warn_unused_result));

void op_linear(struct compute *c, const struct linear_args *args);
void op_conv2d(struct compute *c, const struct conv2d_args *args);
void op_group_norm(struct compute *c, const struct group_norm_args *args);
void op_layer_norm(struct compute *c, const struct layer_norm_args *args);
void op_attention(struct compute *c, const struct attention_args *args);
void op_embedding(struct compute *c, const struct embedding_args *args);
void op_timestep_embedding(struct compute *c, const struct timestep_embedding_args *args);
void op_add(struct compute *c, const struct add_args *args);
void op_concat(struct compute *c, const struct concat_args *args);
void op_combine(struct compute *c, const struct combine_args *args);
void op_convert(struct compute *c, const struct convert_args *args);

/* Checked packing. `name` is the tensor's name, for the error. */
bool linear_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, bool geglu, enum dtype dtype, struct packed **out,
    struct error *err) __attribute__((warn_unused_result));
bool conv2d_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, enum conv_kind kind, enum dtype dtype, struct packed **out,
    struct error *err) __attribute__((warn_unused_result));
/* NULL is fine. */
void packed_destroy(struct packed *packed);

/* The output size of a convolution kind for input size h; CONV_3X3_UP gives 2h. */
int64_t conv_out_size(enum conv_kind kind, int64_t h);

#endif
