/* Sequences of operations that a device replays as one: a few are kept, the longest unused one
 * dropped for a new one, all of them dropped when the arena's memory changes.
 *
 * A sequence is run as it is called the first time, recorded the second time and replayed from then
 * on: what an entry has to do once for a shape (choose a kernel, load its code) is over by then.
 *
 * Belongs to one arena and one thread.
 */
#ifndef KERNELS_RECORDINGS_H
#define KERNELS_RECORDINGS_H

#include "kernels/compute.h"

/* For the table's device, whose table.recorder may be NULL. Destroyed before the models whose
 * operations are recorded; NULL is fine. */
bool recordings_create(const struct kernels *kernels, struct recordings **out, struct error *err)
    __attribute__((warn_unused_result));
void recordings_destroy(struct recordings *recordings);
/* Drops all that is kept, and the device memory of it; sequences are recorded anew. NULL is fine.
 */
void recordings_clear(struct recordings *recordings);

/* Runs `run(c, user)`, whose operations the device may keep and replay as one at the next call.
 *
 * `key` (at most RECORDING_KEY_MAX bytes, no padding) and `run` say all that decides which
 * operations run calls, with which addresses and scalars: models, sizes, and the addresses of
 * tensors that were not allocated by run itself; where the arena stands is added here, and what of
 * c->overlay decides it: which weights change in which rows, not how. Whatever
 * differs from call to call must come from the contents of tensors. `run` neither uploads nor
 * views nor waits. Without c->recordings, on a device that records nothing and in a dry run this
 * is only run(c, user). */
#define RECORDING_KEY_MAX 128
void compute_recorded(struct compute *c, const void *key, size_t key_bytes,
    void (*run)(struct compute *c, const void *user), const void *user);

struct recordings_figures {
    int kept;                   /* sequences that are recorded now */
    int launches;               /* kernels in the one that was recorded or replayed last */
    int64_t recorded, replayed; /* since it was made */
};
void recordings_get_figures(const struct recordings *recordings, struct recordings_figures *out);

#endif
