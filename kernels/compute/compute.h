/* How models call operations: with checked arguments, a sticky error and a dry run.
 *
 * A `struct compute` holds one caller's device table, arena and error. Each op_* wrapper validates
 * shapes, dtypes and aliasing, then calls the table. After the first failure every further call
 * does nothing. A model is therefore straight-line code that checks for an error once, at its end.
 * In a dry run the wrappers only validate; they compute nothing. That is how activation memory is
 * planned, and how a wrong shape is found at load instead of during a request.
 *
 * One thread at a time.
 */
#ifndef KERNELS_COMPUTE_COMPUTE_H
#define KERNELS_COMPUTE_COMPUTE_H

#include "kernels/backward.h"
#include "kernels/compute/arena.h"
#include "kernels/kernels.h"

struct recordings;
struct overlay;
struct overlay_tables;
struct tape;

struct compute {
    const struct kernels *kernels; /* borrowed */
    struct arena *arena;           /* borrowed */
    /* Borrowed, or NULL: the sequences that compute_recorded (recordings.h) keeps between calls. */
    struct recordings *recordings;
    /* Borrowed, or NULL: what each row of a call changes in the weights (overlay.h). The op_*
     * wrappers apply it. */
    const struct overlay *overlay;
    const struct overlay_tables *tables; /* set by compute_recorded while it runs a sequence */
    struct tape *tape; /* borrowed, or NULL: records every call instead of running it (tape.h) */
    bool dry_run;
    bool note;          /* in a dry run: report each call to the device's tuner, if any */
    struct error error; /* the first failure; code ERROR_NONE while all is well */
    double flops;       /* work of the products so far: 2 for each multiply-add */
};

static inline bool compute_ok(const struct compute *c) {
    return c->error.code == ERROR_NONE;
}

/* Allocates a tensor from the arena, contents undefined. On failure sets the error and returns a
 * tensor whose data is NULL. */
struct tensor compute_tensor_1d(struct compute *c, enum dtype dtype, int64_t a);
struct tensor compute_tensor_2d(struct compute *c, enum dtype dtype, int64_t a, int64_t b);
struct tensor compute_tensor_3d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d);
struct tensor compute_tensor_4d(
    struct compute *c, enum dtype dtype, int64_t a, int64_t b, int64_t d, int64_t e);

/* Runs `run(c, user)` once as a dry run. *peak: the arena bytes that it needs. */
bool compute_measure(struct compute *c, void (*run)(struct compute *c, void *user), void *user,
    size_t *peak, struct error *err) __attribute__((warn_unused_result));
/* Does what compute_measure does, then reserves the peak in the arena, which must be empty. Drops
 * the recordings if the arena's memory changes. */
bool compute_plan(struct compute *c, void (*run)(struct compute *c, void *user), void *user,
    struct error *err) __attribute__((warn_unused_result));

/* Copies between the host's and the device's memory, in order with the operations. In a dry run
 * they do nothing and compute_view returns NULL.
 *
 *  - upload: copies tensor_bytes(to) bytes; `from` may change afterwards.
 *  - view: waits, and returns the tensor's contents for the host to read until the next
 *    compute_view or compute_upload; NULL after a failure.
 *  - pace: called once a step; waits until the device is at most one step behind.
 *  - synchronize: waits for everything.
 */
void compute_upload(struct compute *c, const void *from, const struct tensor *to);
const void *compute_view(struct compute *c, const struct tensor *from);
void compute_pace(struct compute *c);
void compute_synchronize(struct compute *c);

/* Declares void op_NAME(struct compute *c, const struct NAME_args *args) for each operation
 * (operations.h): op_linear, op_conv2d, op_group_norm and so on. */
#define WRAPPER(name) void op_##name(struct compute *c, const struct name##_args *args);
ALL_OPERATIONS(WRAPPER)
#undef WRAPPER

#endif
