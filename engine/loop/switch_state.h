/* What the engine knows of a switch to another checkpoint (engine/loop/switch.h). */
#ifndef ENGINE_LOOP_SWITCH_STATE_H
#define ENGINE_LOOP_SWITCH_STATE_H

#include "base/error.h"
#include "base/limits.h"

#include <stdbool.h>
#include <stdint.h>

enum switch_state {
    SWITCH_NONE,     /* no switch was asked for yet */
    SWITCH_CHECKING, /* the calling thread checks the files */
    SWITCH_DRAINING, /* the old checkpoint finishes its orders or requests and is unloaded */
    SWITCH_LOADING,
    SWITCH_DONE,
    SWITCH_FAILED, /* `error` says why */
};

/* The latest switch that was asked for. */
struct model_switch {
    enum switch_state state;
    char name[MODEL_NAME_MAX_BYTES + 1];
    bool unloads_first; /* the old checkpoint is unloaded before the new one is loaded */
    int waits_for;      /* orders that are not finished */
    uint64_t needed_bytes, available_bytes;
    double progress; /* 0 to 1, of loading */
    double took_s;   /* once the switch is over */
    struct error error;
};

/* The keeper of orders. */
struct engine_orders {
    /* Counts the orders for the old checkpoint that are neither finished nor set aside. Waits for
     * the disk. If nobody will work on these orders, fails with the reason. A switch that waits for
     * the orders then fails with the same reason. */
    bool (*count)(void *user, int *count, struct error *err);
    void *user;
};

#endif
