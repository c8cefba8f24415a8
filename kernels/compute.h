/* How models call operations: checked, with a sticky error, and with a dry run.
 *
 * A `struct compute` holds one caller's device table, its arena and its error. Each op_* wrapper
 * validates shapes, dtypes and aliasing, then calls the table. After the first failure every
 * further call does nothing, so that a model reads as straight-line arithmetic and checks once, at
 * its end (the way libraries with an error flag on a stream work). In a dry run the wrappers
 * validate and compute nothing: that is how activation memory is planned, and how a wrong shape is
 * found at load instead of in a request.
 *
 * One thread at a time.
 */
#ifndef KERNELS_COMPUTE_H
#define KERNELS_COMPUTE_H

#include "kernels/arena.h"
#include "kernels/kernels.h"

struct recordings;

struct compute {
    const struct kernels *kernels; /* borrowed */
    struct arena *arena;           /* borrowed */
    /* Borrowed, or NULL: what compute_recorded keeps from one call to the next. */
    struct recordings *recordings;
    bool dry_run;
    bool note; /* in a dry run: makes every call known to the device's tuner, if it has one */
    struct error error; /* the first failure; code ERROR_NONE while all is well */
    double flops;       /* work of the products so far: 2 a multiply-add, as the formulas say */
};

static inline bool compute_ok(const struct compute *c) {
    return c->error.code == ERROR_NONE;
}

/* A tensor from the arena; contents undefined. On failure the error sticks and the data is NULL. */
struct tensor compute_tensor_1d(struct compute *c, enum dtype dtype, int64_t a);
struct tensor compute_tensor_2d(struct compute *c, enum dtype dtype, int64_t a, int64_t b);
struct tensor compute_tensor_3d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d);
struct tensor compute_tensor_4d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d, int64_t e);

/* Runs `run(c, user)` once as a dry run and reserves the arena for it. The arena must be empty. */
bool compute_plan(struct compute *c, void (*run)(struct compute *c, void *user), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* Between the host and the device's memory, in order with the operations. In a dry run they do
 * nothing and compute_view returns NULL.
 *
 * upload: tensor_bytes(to) bytes; `from` may change afterwards.
 * view: waits, and returns the tensor's contents for the host to read until the next compute_view
 * or compute_upload; NULL after a failure.
 * pace: once a step; waits until the device is at most one step behind.
 * synchronize: waits for everything. */
void compute_upload(struct compute *c, const void *from, const struct tensor *to);
const void *compute_view(struct compute *c, const struct tensor *from);
void compute_pace(struct compute *c);
void compute_synchronize(struct compute *c);

/* Runs `run(c, user)`, whose operations the device may keep and replay as one at the next call.
 *
 * `key` (at most RECORDING_KEY_MAX bytes, no padding) and `run` say all that decides which
 * operations run calls, with which addresses and scalars: models, sizes, and the addresses of
 * tensors that were not allocated by run itself; where the arena stands is added here. Whatever
 * differs from call to call must come from the contents of tensors. `run` neither uploads nor
 * views nor waits. Without c->recordings, on a device that records nothing and in a dry run this
 * is only run(c, user). */
#define RECORDING_KEY_MAX 128
void compute_recorded(struct compute *c, const void *key, size_t key_bytes,
    void (*run)(struct compute *c, const void *user), const void *user);

/* void op_NAME(struct compute *c, const struct NAME_args *args), for each operation (operations.h):
 * op_linear, op_conv2d, op_group_norm and so on. */
#define WRAPPER(name) void op_##name(struct compute *c, const struct name##_args *args);
OPERATIONS(WRAPPER)
#undef WRAPPER

/* Checked packing. `name` is the tensor's name, for the error. */
bool linear_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, bool geglu, enum dtype dtype, struct packed **out, struct error *err)
    __attribute__((warn_unused_result));
bool conv2d_pack(const struct kernels *kernels, const char *name, const struct tensor *weight,
    const struct tensor *bias, enum conv_kind kind, enum dtype dtype, struct packed **out,
    struct error *err) __attribute__((warn_unused_result));
/* NULL is fine. */
void packed_destroy(struct packed *packed);

/* The output size of a convolution kind for input size h; CONV_3X3_UP gives 2h. */
int64_t conv_out_size(enum conv_kind kind, int64_t h);

#endif
