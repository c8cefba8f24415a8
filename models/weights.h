/* Where a model's weights come from.
 *
 * A model asks a `struct weights` for tensors by their diffusers names; behind it stands a
 * checkpoint (weights_from_checkpoint) or, in tests, anything else. */
#ifndef MODELS_WEIGHTS_H
#define MODELS_WEIGHTS_H

#include "kernels/kernels.h"

struct weights {
    /* As checkpoint_tensor: a view of exactly this shape, valid as long as the source, or an error
     * that names the tensor. */
    bool (*get)(void *user, const char *name, int rank, const int64_t *shape, struct tensor *out,
        struct error *err);
    /* Called after a model took all it needs: false if the source has tensors left over, or is no
     * longer what it was. May be NULL. */
    bool (*end)(void *user, struct error *err);
    void *user;
    const struct kernels *kernels; /* borrowed */
    enum dtype dtype;              /* what the packed weights are kept in; kernels packs it */
    /* Ask for every tensor, so that names and shapes are checked, but pack nothing: every struct
     * packed stays NULL. */
    bool check_only;
};

#endif
