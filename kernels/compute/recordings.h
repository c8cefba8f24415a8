/* Sequences of operations that a device replays as a whole. A few sequences are kept. A new
 * sequence replaces the least recently used one. All are dropped when the arena's memory changes.
 *
 * The first call of a sequence runs it. The second call records it and replays the recording, and
 * all later calls replay it. Recording waits for the second call, because in the first call the
 * operations do work that is needed only once per shape (choosing a kernel, loading its code).
 *
 * Belongs to one arena and one thread.
 */
#ifndef KERNELS_COMPUTE_RECORDINGS_H
#define KERNELS_COMPUTE_RECORDINGS_H

#include "kernels/compute/compute.h"

/* Creates an empty set for the table's device; kernels->recorder may be NULL. Destroy it before the
 * models whose operations are recorded. recordings_destroy accepts NULL. */
bool recordings_create(const struct kernels *kernels, struct recordings **out, struct error *err)
    __attribute__((warn_unused_result));
void recordings_destroy(struct recordings *recordings);
/* Drops all recordings and frees their device memory; sequences are recorded anew. Accepts NULL. */
void recordings_clear(struct recordings *recordings);

/* Runs `run(c, user)`. The device may record the operations that `run` calls, and replay them as a
 * whole at a later call.
 *
 * `key` (at most RECORDING_KEY_MAX bytes, no padding) and `run` must determine which operations
 * `run` calls, with which addresses and scalars: models, sizes, and the addresses of tensors that
 * `run` does not allocate itself. Two things are added to the key here: the arena's position, and
 * which weights c->overlay changes in which rows (not the changes themselves). Everything else that
 * differs between calls must lie in the contents of tensors. `run` must not upload, view or wait.
 * Without c->recordings, on a device that cannot record, and in a dry run, this just calls run(c,
 * user).
 */
#define RECORDING_KEY_MAX 128
void compute_recorded(struct compute *c, const void *key, size_t key_bytes,
    void (*run)(struct compute *c, const void *user), const void *user);

struct recordings_figures {
    int kept;                   /* sequences recorded now */
    int launches;               /* kernels in the sequence last recorded or replayed */
    int64_t recorded, replayed; /* since recordings_create */
};
void recordings_get_figures(const struct recordings *recordings, struct recordings_figures *out);

#endif
