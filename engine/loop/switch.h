/* Changing the checkpoint of a running engine: which checkpoints there are, which one is current,
 * and the switch from one to another.
 *
 * Requests accepted before a switch finish on the checkpoint they were resolved for. If both
 * checkpoints fit into memory, the old one serves until the new one is loaded, and is freed when
 * its last request ends. Otherwise the old one is unloaded first, and no request is accepted
 * meanwhile. Either way, if the new checkpoint cannot be loaded, the old one stays in service.
 * Adapters are matched to the new one.
 *
 * Orders are requests that are written down as jobs and resolved when their turn comes. A switch
 * waits until the last of them has ended. Requests are accepted during this wait; new orders are
 * not, so that it ends. */
#ifndef ENGINE_LOOP_SWITCH_H
#define ENGINE_LOOP_SWITCH_H

#include "engine/loop/engine.h"

enum switch_state {
    SWITCH_NONE,     /* no switch was asked for yet */
    SWITCH_CHECKING, /* the calling thread checks the files */
    SWITCH_DRAINING, /* the old checkpoint finishes its orders or requests and is unloaded */
    SWITCH_LOADING,
    SWITCH_DONE,
    SWITCH_FAILED, /* `error` says why */
};
const char *switch_state_name(enum switch_state state); /* "none", "checking", ... */

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

/* Copies the state of the latest switch. Any thread; does not wait. */
void engine_get_switch(struct engine *engine, struct model_switch *out);

struct engine_model_entry {
    char *name, *path; /* owned; path: below --model-root, or as given at the start */
    bool is_folder, leads_out, current;
    uint64_t bytes;
};
struct engine_models {
    struct engine_model_entry *items; /* owned; by name; before them the checkpoint the daemon was
                                         started with, if it is not below the root */
    size_t count;
    char current[MODEL_NAME_MAX_BYTES + 1]; /* "": none is loaded */
    bool has_root;
    struct model_switch last;
};
/* Lists the checkpoints. Reads the folder, so the calling thread must be allowed to wait. The
 * caller calls engine_models_finish. */
bool engine_models(struct engine *engine, struct engine_models *out, struct error *err)
    __attribute__((warn_unused_result));
void engine_models_finish(struct engine_models *models);

/* Begins a switch to `name`, one of engine_models. Reads the headers of the checkpoint's files,
 * then returns; the rest runs in the background. *out (may be NULL) tells the state: SWITCH_DONE if
 * that checkpoint is current already. Errors: ERROR_NOT_FOUND; ERROR_CONFLICT while another switch
 * is under way, or if the old checkpoint would have to be unloaded first and a training job needs
 * it; ERROR_NO_MEMORY if the new one does not fit at all; ERROR_UNAVAILABLE while the engine
 * accepts no requests; or what is wrong with the files.
 *
 * If this returned true with another state than SWITCH_DONE, `done` (may be NULL) is called exactly
 * once, from a thread of the engine, with NULL or the reason for the failure. Several callers may
 * ask for the same name; each gets its `done`. */
bool engine_switch(struct engine *engine, const char *name,
    void (*done)(const struct error *err, void *user), void *user, struct model_switch *out,
    struct error *err) __attribute__((warn_unused_result));

/* The keeper of orders. */
struct engine_orders {
    /* Counts the orders for the old checkpoint that are neither finished nor set aside. Waits for
     * the disk. Fails with the reason if nobody will work on them; a switch that waits for them
     * then fails with it. */
    bool (*count)(void *user, int *count, struct error *err);
    void *user;
};
/* Called once; what `orders` points to is borrowed until engine_clear_orders returns. */
void engine_set_orders(struct engine *engine, const struct engine_orders *orders);
/* `count` is not called again once this has returned: the daemon is stopping. */
void engine_clear_orders(struct engine *engine);
/* Tells the engine, from any thread, that `count` may return something else now. Does not wait. */
void engine_orders_changed(struct engine *engine);

/* Call before resolving an order that will be written down: the current checkpoint stays until
 * engine_end_order. ERROR_UNAVAILABLE while a switch waits for the orders before it. */
bool engine_begin_order(struct engine *engine, struct error *err)
    __attribute__((warn_unused_result));
/* Call when the order is written down, so that `count` includes it, or will never be. */
void engine_end_order(struct engine *engine);

/* Whether the daemon has a --model-root, so that there are models to switch to. */
bool engine_has_models(const struct engine *engine);

/* Path of a model, malloc'd, for callers that load it themselves. Waits for the disk. */
bool engine_model_path(struct engine *engine, const char *name, char **path, struct error *err)
    __attribute__((warn_unused_result));

/* Keeps the current checkpoint in memory until engine_let_go_model, so that all of *info may be
 * used. `holder` names who holds it, for messages: "the training job snow". Returns NULL with
 * ERROR_UNAVAILABLE if no checkpoint is loaded, or it is about to be unloaded. */
struct engine_model *engine_hold_model(
    struct engine *engine, const char *holder, struct pipeline_info *info, struct error *err);
void engine_let_go_model(struct engine_model *model); /* NULL is fine */
/* Whether engine_hold_model would succeed now. */
bool engine_has_model(struct engine *engine);

#endif
