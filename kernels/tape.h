/* Training passes: the forward of a model is traced once and then run as a program, forward and
 * backward, in steps.
 *
 * While a tape is made, the wrappers of compute.h hand their calls to it instead of running them.
 * Gradients belong to addresses, not to tensors. The gradient of the value at an address lies at
 * the same place of a second block, the mirror, so in-place calls, views, slices and concatenations
 * need no bookkeeping. The plan derives three things from the addresses: what needs a gradient
 * (everything that depends on a parameter); which write of a gradient is the first one, so that
 * later ones add to it; and which values the backward reads although the forward overwrites them.
 * Those values are copied when they are computed.
 *
 * With gradient checkpointing the program is cut where few bytes are live. The forward keeps only
 * the inputs of each segment. Before a segment's adjoint, the backward runs the segment again, as
 * far as the adjoint needs its values. Segments that are expensive to run again are held instead,
 * as far as memory allows (tape/plan.h). Checkpointing does not change a bit of the gradients.
 *
 *   struct compute like = { .kernels = kernels, .overlay = &trained };
 *   tape_create(&like, forward, user, &out, &options, &tape, err);
 *   for each batch:
 *       fill the inputs; tape_begin(tape);
 *       tape_advance until TAPE_MIDDLE; write the loss's gradient to tape_gradient(tape, &out);
 *       tape_advance until TAPE_END; this has added to every parameter's gradient
 *
 * Only the thread that computes may call these functions.
 */
#ifndef KERNELS_TAPE_H
#define KERNELS_TAPE_H

#include "kernels/compute/compute.h"
#include "kernels/compute/overlay.h"

/* A parameter or input whose gradient is wanted. `gradient`: f32 device memory of the caller, which
 * a pass adds to; NULL: not wanted. */
struct tape_parameter {
    enum tape_parameter_kind {
        TAPE_PAIR,   /* struct low_rank_pair; gradients: down, up (low_rank_pair_factors) */
        TAPE_WEIGHT, /* struct packed; gradients: weight, bias (linear_, conv2d_backward_args) */
        TAPE_NORM,   /* the data of its gamma; gradients: gamma, beta */
        TAPE_TABLE,  /* data of an embedding's table or positions; gradient: [rows][c] */
        TAPE_INPUT, /* a struct tensor of the caller that the forward reads: tape_gradient gives its
                       gradient when the pass has ended */
    } kind;
    const void *what; /* borrowed as long as the tape, like the gradients */
    float *gradient[2];
    /* For a pair: the probability of dropping elements of its input x, with a mask for each pair
     * (dropout_args). 0: no dropout. */
    float dropout;
    uint32_t layer;              /* a different number for each pair */
    const uint64_t *seed, *step; /* host memory, read when the pass runs */
};

/* What a pass tells its caller on the way. Which hooks are called, and in which order, is planned
 * once and is the same in every pass. `index` is the number of a parameter in tape_options, or of a
 * weight in tape_weights. */
enum tape_hook {
    TAPE_NO_HOOK,
    /* This pass does not touch the parameter's gradient any more. Called once for each parameter
     * with a gradient, right behind the last call that adds to it. If there is no such call:
     * where the backward begins. Not for a TAPE_INPUT. */
    TAPE_GRADIENT_DONE,
    /* The calls up to this weight's TAPE_WEIGHT_DONE read it. The pass reads the weight's memory
     * only between the two, so it may hold anything before and after. At most one weight is needed
     * at a time. With checkpointing, calls that run a second time need their weights again. No
     * weight is needed in the middle and at the end of a pass. */
    TAPE_WEIGHT_NEEDED,
    /* These calls have been run (on an accelerator: queued). */
    TAPE_WEIGHT_DONE,
};

struct tape_options {
    const struct tape_parameter *parameters; /* borrowed for the call */
    int count; /* 0: forward only; the pass ends where the forward does */
    bool checkpointing;
    /* NULL, or an arena for several tapes, for example for different batch sizes; borrowed as long
     * as the tape. Only one of the tapes runs a pass at a time, and no tape is made during a pass
     * of another. The arena grows to what the largest tape needs and serves nothing else. */
    struct arena *arena;
    /* Called by tape_advance; NULL: no hooks. On an accelerator the calls before a hook have been
     * queued and need not have run; what the hook queues in turn runs in its place. A false ends
     * the pass with the hook's error, or with ERROR_INTERNAL if it set none, and the hooks that are
     * left are not called. A tape's calls are never recorded as a graph (recordings.h), so no pass
     * is without its hooks. */
    bool (*hook)(void *user, enum tape_hook hook, int index, struct error *err);
    void *user;
};

struct tape;

/* Traces `forward` and plans its passes. `forward` computes with the struct compute that it is
 * given, as if that were `like` with its overlay, in which all rows must make the same changes. It
 * reads and writes tensors of the caller at fixed addresses. The tensors and calls that it makes
 * must not depend on the contents of the caller's tensors.
 *
 * `seed`: an output of `forward` in the caller's memory. With checkpointing its contents are lost
 * after the middle of a pass. The models, pairs and overlays that `forward` uses are borrowed as
 * long as the tape. ERROR_NO_MEMORY if the device has less than tape_bytes.
 */
bool tape_create(const struct compute *like, void (*forward)(struct compute *c, void *user),
    void *user, const struct tensor *seed, const struct tape_options *options, struct tape **out,
    struct error *err) __attribute__((warn_unused_result));
void tape_destroy(struct tape *tape); /* NULL is fine */

/* The activation memory that a tape takes on its device. */
size_t tape_bytes(const struct tape *tape);

/* Returns the packed weights that a pass reads, in the order in which it first needs them:
 * [*count], borrowed from the tape. Empty without a hook. */
const struct packed *const *tape_weights(const struct tape *tape, int *count);

/* Returns the gradient of a tensor in the caller's memory, shaped like the tensor; its data is NULL
 * if there is no gradient. The caller writes the seed's gradient in the middle of every pass, and
 * reads a TAPE_INPUT's gradient at the end. The address may change from pass to pass. */
struct tensor tape_gradient(const struct tape *tape, const struct tensor *of);

enum tape_point {
    TAPE_BETWEEN, /* call tape_advance again */
    TAPE_MIDDLE,  /* the forward is done; write the seed's gradient now */
    TAPE_END,
};
/* Starts a pass from the beginning, even if the last one failed or was not finished. */
void tape_begin(struct tape *tape);
/* Runs (on an accelerator: queues) some calls: at most as much work as the most expensive call or
 * 1/32 of the forward, whichever is more. After a failure the pass is over. */
bool tape_advance(struct tape *tape, enum tape_point *reached, struct error *err)
    __attribute__((warn_unused_result));

/* For use inside kernels/ while a tape is made (compute.tape), for calls with checked arguments.
 * tape_split returns whether it split the call into others; tape_record records the call. */
bool tape_split(struct compute *c, enum operation operation, const void *args);
void tape_record(struct compute *c, enum operation operation, const void *args);

#endif
