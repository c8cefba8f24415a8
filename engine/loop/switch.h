/* Changing the checkpoint of a running engine: which checkpoints there are, which one is current,
 * and the switch from one to another.
 *
 * Requests accepted before a switch finish on the checkpoint they were resolved for. If both
 * checkpoints fit into memory, the old one stays in use until the new one is loaded, and is freed
 * when its last request ends. Otherwise the old one is unloaded first, and no request is accepted
 * meanwhile. In both cases, if the new checkpoint cannot be loaded, the old one is used again.
 * Adapters are matched to the layers of the new one.
 *
 * Orders are requests that are stored as jobs and resolved when the jobs run. A switch waits until
 * the last order has ended. During this wait requests are accepted, but new orders are refused, so
 * that the wait ends. */
#ifndef ENGINE_LOOP_SWITCH_H
#define ENGINE_LOOP_SWITCH_H

#include "engine/loop/engine.h"
#include "engine/loop/switch_state.h"

const char *switch_state_name(enum switch_state state); /* "none", "checking", ... */

/* Copies the state of the last switch. Any thread; does not wait. */
void engine_get_switch(struct engine *engine, struct model_switch *out);

struct engine_model_entry {
    char *name, *path; /* owned; path: below --model-root, or as the daemon got it */
    bool is_folder, leads_out, current;
    uint64_t bytes;
};
struct engine_models {
    struct engine_model_entry *items; /* owned; first the daemon's own checkpoint, if it is not
                                         below the root; the others by name */
    size_t count;
    char current[MODEL_NAME_MAX_BYTES + 1]; /* "": no checkpoint is loaded */
    bool has_root;
    struct model_switch last;
};
/* Lists the checkpoints. Reads the folder, so call it on a thread that may wait for the disk. The
 * caller calls engine_models_finish. */
bool engine_models(struct engine *engine, struct engine_models *out, struct error *err)
    __attribute__((warn_unused_result));
void engine_models_finish(struct engine_models *models);

/* Begins a switch to `name`, one of engine_models. Reads the headers of the checkpoint's files,
 * then returns; the rest runs in the background. *out (may be NULL) tells the state; it is
 * SWITCH_DONE if that checkpoint is already current. ERROR_NOT_FOUND if there is no such
 * checkpoint. ERROR_CONFLICT while another switch is in progress, or if a training job needs the
 * old checkpoint, which would have to be unloaded first. ERROR_NO_MEMORY if the new one does not
 * fit at all. ERROR_UNAVAILABLE while the engine accepts no requests. Other errors tell what is
 * wrong with the files.
 *
 * If this returns true with any state except SWITCH_DONE, `done` (may be NULL) is called exactly
 * once, on a thread of the engine, with NULL or the reason for the failure. Several callers may ask
 * for the same name; `done` of each is called. */
bool engine_switch(struct engine *engine, const char *name,
    void (*done)(const struct error *err, void *user), void *user, struct model_switch *out,
    struct error *err) __attribute__((warn_unused_result));

/* Call it once. What `orders` points to is borrowed until engine_clear_orders returns. */
void engine_set_orders(struct engine *engine, const struct engine_orders *orders);
/* Call it when the daemon stops. `count` is not called after this has returned. */
void engine_clear_orders(struct engine *engine);
/* Tells the engine, from any thread, that `count` may return something else now. Does not wait. */
void engine_orders_changed(struct engine *engine);

/* Call before resolving an order that will be stored: a switch then waits for engine_end_order.
 * ERROR_UNAVAILABLE while a switch already waits for earlier orders. */
bool engine_begin_order(struct engine *engine, struct error *err)
    __attribute__((warn_unused_result));
/* Call when the order is stored, so that `count` includes it, or when it was given up. */
void engine_end_order(struct engine *engine);

/* Whether the daemon has a --model-root, that is, models to switch to. */
bool engine_has_models(const struct engine *engine);

/* Writes the path of a model to *path, malloc'd, for callers that load the model themselves. Waits
 * for the disk. */
bool engine_model_path(struct engine *engine, const char *name, char **path, struct error *err)
    __attribute__((warn_unused_result));

/* Keeps the current checkpoint in memory until engine_let_go_model, so that everything *info points
 * to may be used. `holder` is for messages: "the training job snow". Returns NULL with
 * ERROR_UNAVAILABLE if no checkpoint is loaded or it is about to be unloaded. */
struct engine_model *engine_hold_model(
    struct engine *engine, const char *holder, struct pipeline_info *info, struct error *err);
void engine_let_go_model(struct engine_model *model); /* NULL is fine */
/* Whether engine_hold_model would succeed now. */
bool engine_has_model(struct engine *engine);

#endif
