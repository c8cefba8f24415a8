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
#include "kernels/backward.h"
#include "kernels/kernels.h"

struct recordings;
struct overlay;
struct overlay_tables;
struct tape;

struct compute {
    const struct kernels *kernels; /* borrowed */
    struct arena *arena;           /* borrowed */
    /* Borrowed, or NULL: what compute_recorded (recordings.h) keeps from call to call. */
    struct recordings *recordings;
    /* Borrowed, or NULL: what each row of a call changes of the weights (overlay.h); op_linear and
     * op_conv2d see to it. */
    const struct overlay *overlay;
    const struct overlay_tables *tables; /* compute_recorded's own, while it runs a sequence */
    struct tape *tape; /* borrowed, or NULL: takes every call down instead (tape.h) */
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

/* Runs `run(c, user)` once as a dry run; *peak: bytes of the arena that it takes. */
bool compute_measure(struct compute *c, void (*run)(struct compute *c, void *user), void *user,
    size_t *peak, struct error *err) __attribute__((warn_unused_result));
/* compute_measure, and reserves the arena for it, which must be empty. Recordings are dropped if
 * its memory changes. */
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

/* void op_NAME(struct compute *c, const struct NAME_args *args), for each operation (operations.h):
 * op_linear, op_conv2d, op_group_norm and so on. */
#define WRAPPER(name) void op_##name(struct compute *c, const struct name##_args *args);
ALL_OPERATIONS(WRAPPER)
#undef WRAPPER

#endif
