/* Internal to kernels/tape/: the declarations that its files share. tape.c combines the parts:
 *
 *   trace.c     records the calls of a forward pass
 *   adjoint.c   makes the calls of the backward from them
 *   segments.c  decides where checkpointing cuts the forward
 *   program.c   puts both in order, with the copies of values that the backward needs
 *   hooks.c     puts hooks between them, if the caller has one
 *   terms.c     puts low-rank terms where the device reads them
 *
 * Until a tape has its memory, all addresses in it are planned addresses: those of the arena's
 * plan, and further blocks of addresses after them.
 */
#ifndef KERNELS_TAPE_PLAN_H
#define KERNELS_TAPE_PLAN_H

#include "kernels/tape.h"
#include "kernels/tape/call.h"

enum tape_block {
    BLOCK_VALUES,    /* the forward's arena */
    BLOCK_GRADIENTS, /* the mirror of BLOCK_VALUES */
    BLOCK_OUTSIDE,   /* gradients of tensors in the caller's memory */
    BLOCK_SAVED, /* copies of values: first those kept across segments, then those of one segment */
    BLOCK_TEMPORARY,
    BLOCK_COUNT
};
#define BLOCK_SPAN ((uintptr_t)1 << 50)

/* One step of a pass: a call, a hook, a copy, or zeroing. */
struct work {
    struct call *call;   /* borrowed; NULL for the others */
    enum tape_hook hook; /* TAPE_NO_HOOK for the others */
    int index;           /* of the hook */
    void *to;
    const void *from; /* source of a copy; NULL: zeros */
    size_t bytes;
    double flops;
};
struct works {
    struct work *items; /* owned */
    size_t count;
};

/* A call of the forward. */
struct traced {
    struct call *call;           /* owned */
    unsigned reached;            /* bit i: its tensor i depends on a parameter (or is one) */
    bool reaches;                /* its output depends on a parameter */
    size_t adjoint, adjoint_end; /* its range of tape.adjoints */
    double flops;
};

/* A range of the caller's memory whose values have a gradient. */
struct outside {
    struct interval of;
    size_t at; /* place in BLOCK_OUTSIDE */
};

/* The sizes and counts of the plan. */
struct tape_figures {
    size_t saved_bytes, scratch_bytes; /* parts of tape_bytes */
    int calls;                         /* in the forward */
    int adjoints;                      /* in the backward */
    int again; /* calls of the forward that the backward runs a second time */
    int segments;
    int advances; /* in a pass */
    /* Of the forward, of a pass, and of the largest call of tape_advance. */
    double forward_flops, flops, advance_flops;
    double call_flops; /* of the most expensive call */
};

struct tape {
    const struct kernels *kernels;     /* borrowed */
    struct tape_parameter *parameters; /* owned, as are all arrays here */
    int parameter_count;
    struct traced *calls;
    size_t call_count;
    bool splits; /* a low_rank is being split into its terms */

    uintptr_t base; /* where planned addresses begin */
    size_t block_bytes[BLOCK_COUNT];
    struct outside *outsides;
    size_t outside_count;

    struct works adjoints; /* the calls in it are owned; in order */
    size_t ending;         /* in adjoints: where zeroing of input gradients begins */
    struct works program;
    size_t middle; /* index in program where the backward begins */
    size_t next;
    double advance_flops; /* the most that one tape_advance runs */

    bool (*hook)(void *user, enum tape_hook hook, int index, struct error *err); /* or NULL */
    void *user;                                                                  /* of the hook */
    const struct packed **weights; /* the weights that its hooks number, borrowed */
    size_t weight_count;

    void *terms; /* owned device memory that low_rank calls read, or NULL */
    size_t terms_bytes;

    struct arena *arena;  /* the blocks, then scratch; owned unless `shared` */
    bool shared;          /* the arena is borrowed and shared with other tapes */
    char *memory;         /* the blocks; NULL before they are allocated */
    char *outside_memory; /* BLOCK_OUTSIDE in `memory` */
    struct compute compute;
    struct tape_figures figures;
};

static inline uintptr_t tape_address(const struct tape *tape, enum tape_block block, size_t at) {
    return tape->base + (uintptr_t)block * BLOCK_SPAN + at;
}

/* Whether the address is a planned one. If so, sets its block and its place in the block. */
static inline bool tape_place(
    const struct tape *tape, uintptr_t address, enum tape_block *block, size_t *at) {
    const uintptr_t from_base = address - tape->base;
    if (address < tape->base || from_base >= BLOCK_COUNT * BLOCK_SPAN)
        return false;
    *block = (enum tape_block)(from_base / BLOCK_SPAN);
    *at = from_base % BLOCK_SPAN;
    return true;
}

bool works_add(struct works *works, const struct work *work, struct error *err)
    __attribute__((warn_unused_result));

/* Returns the parameter with this `kind` and `what`, or NULL. */
const struct tape_parameter *tape_find_parameter(
    const struct tape *tape, enum tape_parameter_kind kind, const void *what);
/* Returns the trained pair whose factors the term uses, or NULL. */
const struct tape_parameter *tape_find_pair(
    const struct tape *tape, const struct low_rank_term *term);

/* Sets `reached`, `reaches` and the adjoints of all calls. The backward starts from the gradient of
 * `seed`. */
bool tape_adjoin(struct tape *tape, const struct tensor *seed, struct error *err)
    __attribute__((warn_unused_result));

/* Uploads the terms of all low_rank calls, unless the device reads host memory. */
bool tape_upload_terms(struct tape *tape, struct error *err) __attribute__((warn_unused_result));

/* Segments of the forward: segment i is calls [cuts[i], cuts[i + 1]). While the forward runs, a
 * held segment saves what its backward reads, so that it need not run a second time. The last
 * segment is always held. */
struct segments {
    size_t *cuts; /* owned: count + 1 */
    bool *held;   /* owned: count */
    size_t count;
};

/* Puts the program together for these segments. *saved: the size of BLOCK_SAVED. Without `write`,
 * only computes *saved and changes nothing else. */
bool tape_put_together(struct tape *tape, const struct segments *segments, bool write,
    size_t *saved, struct error *err) __attribute__((warn_unused_result));
/* Puts the hooks into the program and lists tape.weights. */
bool tape_put_hooks(struct tape *tape, struct error *err) __attribute__((warn_unused_result));
/* Sets bytes[i] to what the backward of call i saves if the forward is one segment. `bytes` has one
 * element per call and belongs to the caller. */
bool tape_saved_by_call(struct tape *tape, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

/* Chooses the segments that take the least memory. Then holds segments, up to the share of memory
 * that segments.c allows (HELD_SHARE). Segments whose second run would cost the most work per saved
 * byte are held first. */
bool tape_choose_segments(struct tape *tape, struct segments *segments, struct error *err)
    __attribute__((warn_unused_result));
void segments_finish(struct segments *segments); /* a zeroed struct is fine */

#endif
