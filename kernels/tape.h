/* Training passes: the forward of a model is traced once and then run as a program, forward and
 * backward, in steps.
 *
 * While a tape is made, the wrappers of compute.h hand their calls over instead of running them.
 * The backward is the adjoint of memory: the gradient of what lies at an address lies at the same
 * place of a second block, the mirror, so that calls in place, views, slices and concatenations
 * need no bookkeeping. From the addresses follows, once: what needs a gradient (what a parameter
 * reaches), which write of a gradient is the first and which adds, and which values the backward
 * reads after the forward has overwritten them; those are copied when they are made.
 *
 * With gradient checkpointing the program is cut where few bytes are live; the forward keeps only
 * what goes into each segment, and the backward runs a segment again, as far as it needs its
 * values, before its adjoint. The gradients have the same bits with it and without.
 *
 *   struct compute like = { .kernels = kernels, .overlay = &trained };
 *   tape_create(&like, forward, user, &out, &options, &tape, err);
 *   for each batch:
 *       fill the inputs; tape_begin(tape);
 *       tape_advance until TAPE_MIDDLE; write the loss's gradient to tape_gradient(tape, &out);
 *       tape_advance until TAPE_END; every parameter's gradient has been added to
 *
 * One thread at a time, the one that computes.
 */
#ifndef KERNELS_TAPE_H
#define KERNELS_TAPE_H

#include "kernels/compute.h"
#include "kernels/overlay.h"

/* Something whose gradient is wanted. Gradients are device memory of the caller's, f32, and are
 * added to; NULL: not wanted. */
struct tape_parameter {
    enum tape_parameter_kind {
        TAPE_PAIR,   /* struct low_rank_pair: down, up, in panels (low_rank_pair_factors) */
        TAPE_WEIGHT, /* struct packed: weight, bias (linear_backward_args, conv2d_backward_args) */
        TAPE_NORM,   /* the data of its gamma: gamma, beta */
        TAPE_TABLE,  /* the data of an embedding's table, or of its positions: [rows][c] */
        TAPE_INPUT,  /* struct tensor, of the caller's, that the forward reads: its gradient is at
                        tape_gradient when the pass has ended */
    } kind;
    const void *what; /* borrowed, like the gradients, as long as the tape */
    float *gradient[2];
    /* Of a pair: what it takes of x is dropped out, each pair with a mask of its own
     * (dropout_args). 0: nothing is. */
    float dropout;
    uint32_t layer;              /* another one for each pair */
    const uint64_t *seed, *step; /* host memory, read when the pass runs */
};

struct tape_options {
    const struct tape_parameter *parameters; /* borrowed for the call */
    int count; /* 0: the forward alone, at whose end the pass has ended */
    bool checkpointing;
    /* NULL, or borrowed as long as the tape: an arena for several tapes of which one pass at a time
     * runs, of other sizes of batch, say. It becomes as large as the largest of them needs, and is
     * used for nothing else. No tape is made during a pass of another. */
    struct arena *arena;
};

struct tape;

/* `forward` computes with the compute that it is given, as if it were `like` with its overlay (all
 * rows of which have the same changes), from tensors of the caller's at fixed addresses. Its
 * tensors and calls must not depend on what those hold. `seed`: an output of it, in the caller's
 * memory. With checkpointing its contents are lost after the middle of a pass. The models, pairs
 * and overlays that it uses are borrowed as long as the tape. ERROR_NO_MEMORY if the device has
 * less than tape_bytes. */
bool tape_create(const struct compute *like, void (*forward)(struct compute *c, void *user),
    void *user, const struct tensor *seed, const struct tape_options *options, struct tape **out,
    struct error *err) __attribute__((warn_unused_result));
void tape_destroy(struct tape *tape); /* NULL is fine */

/* The activation memory that a tape takes of its device; tape_measure plans without taking any. */
size_t tape_bytes(const struct tape *tape);
bool tape_measure(const struct compute *like, void (*forward)(struct compute *c, void *user),
    void *user, const struct tensor *seed, const struct tape_options *options, size_t *bytes,
    struct error *err) __attribute__((warn_unused_result));

/* The gradient of a tensor in the caller's memory: of the seed, which the caller writes in the
 * middle of every pass, or of a TAPE_INPUT, to be read at its end. Like the tensor; its data is
 * NULL if it has none. It may lie elsewhere in each pass. */
struct tensor tape_gradient(const struct tape *tape, const struct tensor *of);

enum tape_point {
    TAPE_BETWEEN, /* go on */
    TAPE_MIDDLE,  /* the forward is done, the seed's gradient is wanted */
    TAPE_END,
};
/* A pass from the beginning, whatever became of the last one. */
void tape_begin(struct tape *tape);
/* Runs (on an accelerator: queues) some calls, no more of them than the dearest takes, or one part
 * in 32 of the forward. After a failure the pass is over. */
bool tape_advance(struct tape *tape, enum tape_point *reached, struct error *err)
    __attribute__((warn_unused_result));

/* What the plan came to. */
struct tape_figures {
    size_t values_bytes, gradient_bytes, saved_bytes, scratch_bytes; /* parts of tape_bytes */
    int calls;                                                       /* of the forward */
    int adjoints;                                                    /* of the backward */
    int again; /* calls of the forward that the backward runs a second time */
    int segments;
    int advances;                               /* of a pass */
    double forward_flops, flops, advance_flops; /* of the forward, a pass, the largest advance */
    double call_flops;                          /* of the dearest call */
};
void tape_get_figures(const struct tape *tape, struct tape_figures *out);

/* Inside kernels/, while a tape is made (compute.tape): whether the call, whose arguments are
 * right, was split into others; and writing it down. */
bool tape_split(struct compute *c, enum operation operation, const void *args);
void tape_record(struct compute *c, enum operation operation, const void *args);

#endif
