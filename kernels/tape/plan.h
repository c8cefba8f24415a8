/* Inside a tape: what its parts share. tape.c makes them work together:
 *   trace.c     takes the calls of a forward pass down
 *   adjoint.c   makes the calls of the backward of them
 *   segments.c  decides where the forward is cut for checkpointing
 *   program.c   puts both in order, with the copies of values that the backward needs
 *   terms.c     puts low-rank terms where the device reads them
 *
 * Until a tape has its memory, all addresses of its own are planned ones: those that the arena's
 * plan gave, and beside them other blocks of addresses. */
#ifndef KERNELS_TAPE_PLAN_H
#define KERNELS_TAPE_PLAN_H

#include "kernels/tape.h"
#include "kernels/tape/call.h"

enum tape_block {
    BLOCK_VALUES,    /* the forward's arena */
    BLOCK_GRADIENTS, /* its mirror */
    BLOCK_OUTSIDE,   /* gradients of the caller's tensors */
    BLOCK_SAVED,     /* values: first what goes into segments, then what one of them saves */
    BLOCK_TEMPORARY,
    BLOCK_COUNT
};
#define BLOCK_SPAN ((uintptr_t)1 << 50)

/* One thing that a pass does. */
struct work {
    struct call *call; /* borrowed; NULL: */
    void *to;
    const void *from; /* a copy; NULL: zeros */
    size_t bytes;
    double flops;
};
struct works {
    struct work *items; /* owned */
    size_t count, room;
};

/* A call of the forward. */
struct traced {
    struct call *call;           /* owned */
    unsigned reached;            /* bits: those of its tensors that a parameter reaches */
    bool reaches;                /* and its output */
    size_t adjoint, adjoint_end; /* its part of tape.adjoints */
    double flops;
};

/* Memory of the caller's that has a gradient. */
struct outside {
    struct interval of;
    size_t at; /* in BLOCK_OUTSIDE */
};

struct tape {
    const struct kernels *kernels;     /* borrowed */
    struct tape_parameter *parameters; /* owned, and so are: */
    int parameter_count;
    struct traced *calls;
    size_t call_count, call_room;
    bool splits; /* a low_rank into its terms, just now */

    uintptr_t base; /* where planned addresses begin */
    size_t block_bytes[BLOCK_COUNT];
    struct outside *outsides;
    size_t outside_count, outside_room;

    struct works adjoints; /* its calls are owned; in order */
    size_t ending;         /* of adjoints: what comes after all calls' */
    struct works program;
    size_t middle; /* in the program: where the backward begins */
    size_t next;
    double advance_flops; /* the most that one advance runs, if it runs more than one call */

    void *terms; /* owned, the device's: what low_rank calls read there, or NULL */
    size_t terms_bytes;

    struct arena *arena;  /* the blocks, then scratch; owned, or: */
    bool shared;          /* borrowed, with other tapes */
    char *memory;         /* the blocks, once they are there */
    char *outside_memory; /* BLOCK_OUTSIDE of them */
    struct compute compute;
    struct tape_figures figures;
};

static inline uintptr_t tape_address(const struct tape *tape, enum tape_block block, size_t at) {
    return tape->base + (uintptr_t)block * BLOCK_SPAN + at;
}

/* Whether the address is a planned one, of which block, and where. */
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

/* Room for one more item behind `count`. */
bool tape_grow(void **items, size_t *room, size_t count, size_t size, struct error *err)
    __attribute__((warn_unused_result));

/* The parameter of this kind and thing, or NULL. */
const struct tape_parameter *tape_find_parameter(
    const struct tape *tape, enum tape_parameter_kind kind, const void *what);
/* The trained pair whose factors the term has, or NULL. */
const struct tape_parameter *tape_find_pair(
    const struct tape *tape, const struct low_rank_term *term);

/* Fills reached, reaches and the adjoints. `seed`: its gradient is there at the start. */
bool tape_adjoin(struct tape *tape, const struct tensor *seed, struct error *err)
    __attribute__((warn_unused_result));

/* Puts the terms of all low_rank calls into the device's memory, if that is not the host's. */
bool tape_upload_terms(struct tape *tape, struct error *err) __attribute__((warn_unused_result));

/* Segments of the forward: calls [cuts[i], cuts[i + 1]). What the backward reads of a held one is
 * saved while the forward runs, and it does not run again; the last one is always held. */
struct segments {
    size_t *cuts; /* owned: count + 1 */
    bool *held;   /* owned: count */
    size_t count;
};

/* Puts the program together for these segments; *saved: BLOCK_SAVED's size. Without `write` that is
 * all: nothing else changes. */
bool tape_put_together(struct tape *tape, const struct segments *segments, bool write,
    size_t *saved, struct error *err) __attribute__((warn_unused_result));
/* Bytes that each call's backward saves if the forward is one segment: owned by the caller. */
bool tape_saved_by_call(struct tape *tape, size_t *bytes, struct error *err)
    __attribute__((warn_unused_result));

/* The segments that take the least memory, of which those whose second run is the dearest by what
 * they save are held, as far as memory for checkpointing goes. */
bool tape_choose_segments(struct tape *tape, struct segments *segments, struct error *err)
    __attribute__((warn_unused_result));
void segments_finish(struct segments *segments); /* a zeroed one is fine */

#endif
