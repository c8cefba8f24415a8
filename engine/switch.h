/* Another checkpoint in an engine that draws: which there are, which is drawn with, and the change
 * from one to the other.
 *
 * What was accepted before is finished on the checkpoint that it was resolved for. Where both fit
 * into memory the old one serves until the new one is loaded, and goes when its last request has
 * ended; else it goes first, and no request is taken meanwhile. Either way a checkpoint that cannot
 * be loaded leaves the old one in service. Adapters are matched to the new one.
 *
 * Orders are requests that are written down and resolved when their turn comes (jobs that draw).
 * The old one is left when the last of them has ended; requests are taken meanwhile, new orders are
 * not, so that there is an end to it. */
#ifndef ENGINE_SWITCH_H
#define ENGINE_SWITCH_H

#include "engine/engine.h"

enum switch_state {
    SWITCH_NONE,     /* nobody asked for one yet */
    SWITCH_CHECKING, /* of the files, by who asked */
    SWITCH_DRAINING, /* the old one finishes orders, or its requests as well, and goes */
    SWITCH_LOADING,
    SWITCH_DONE,
    SWITCH_FAILED, /* `error` says why */
};
const char *switch_state_name(enum switch_state state); /* "none", "checking", ... */

/* The last one that was asked for. */
struct model_switch {
    enum switch_state state;
    char name[MODEL_NAME_MAX_BYTES + 1];
    bool unloads_first; /* the old one goes before the new one comes */
    int waits_for;      /* orders that are not finished */
    uint64_t needed_bytes, available_bytes;
    double progress; /* 0 to 1, of loading */
    double took_s;   /* once it is over */
    struct error error;
};

/* Any thread, without waiting. */
void engine_get_switch(struct engine *engine, struct model_switch *out);

struct engine_model_entry {
    char *name, *path; /* owned; path: below --model-root, or where it was started with */
    bool is_folder, leads_out, current;
    uint64_t bytes;
};
struct engine_models {
    struct engine_model_entry *items; /* owned; the one it was started with first, if it is not
                                         below the root, then by name */
    size_t count;
    char current[MODEL_NAME_MAX_BYTES + 1]; /* "": none is loaded */
    bool has_root;
    struct model_switch last;
};
/* Reads the folder: by a thread that may wait. Finished by the caller. */
bool engine_models(struct engine *engine, struct engine_models *out, struct error *err)
    __attribute__((warn_unused_result));
void engine_models_finish(struct engine_models *models);

/* Begins a switch to `name`, one of engine_models. It returns once the checkpoint's files were
 * looked at, which reads their headers, and goes on behind; *out (may be NULL) says what is going
 * to happen: SWITCH_DONE if that one is there already. ERROR_NOT_FOUND, ERROR_CONFLICT while
 * another switch is under way or, where the old one must go first, a training job needs it,
 * ERROR_NO_MEMORY if it does not fit at all, or what is wrong with its files.
 *
 * `done` (may be NULL) is called exactly once if this returned true with another state than
 * SWITCH_DONE, from a thread of the engine's, with NULL or why it failed. Also asked for by several
 * at a time, for one name. */
bool engine_switch(struct engine *engine, const char *name,
    void (*done)(const struct error *err, void *user), void *user, struct model_switch *out,
    struct error *err) __attribute__((warn_unused_result));

/* Who keeps orders. */
struct engine_orders {
    /* How many are neither finished nor set aside, the old one's. Waits for the disk. False and why
     * where nobody will work on them: a switch that waits for them ends with that. */
    bool (*count)(void *user, int *count, struct error *err);
    void *user;
};
/* Once; what it points to is borrowed until engine_clear_orders returns. */
void engine_set_orders(struct engine *engine, const struct engine_orders *orders);
/* They are not asked again: the daemon stops. */
void engine_clear_orders(struct engine *engine);

/* Before an order is resolved that is to be written down: the checkpoint that is drawn with now
 * stays until it is finished. ERROR_UNAVAILABLE while a switch waits for those before it. */
bool engine_begin_order(struct engine *engine, struct error *err)
    __attribute__((warn_unused_result));
/* It is written down, and counted; or it never will be. */
void engine_end_order(struct engine *engine);

/* Whether there is any model to switch to: the daemon has a --model-root. */
bool engine_has_models(const struct engine *engine);

/* The path of a model, malloc'd, for who loads its own. Waits for the disk. */
bool engine_model_path(struct engine *engine, const char *name, char **path, struct error *err)
    __attribute__((warn_unused_result));

/* Keeps the checkpoint that is drawn with in memory until it is let go, so that all of *info may be
 * used; `holder` says who does, for messages: "the training job snow". NULL and ERROR_UNAVAILABLE
 * if there is none, or it is about to go. */
struct engine_model *engine_hold_model(
    struct engine *engine, const char *holder, struct pipeline_info *info, struct error *err);
void engine_let_go_model(struct engine_model *model); /* NULL is fine */
/* Whether it would be held now. */
bool engine_has_model(struct engine *engine);

#endif
