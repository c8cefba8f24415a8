/* Another checkpoint in an engine that draws: which there are, which is drawn with, and the change
 * from one to the other.
 *
 * What was accepted before is finished on the checkpoint that it was resolved for. Where both fit
 * into memory the old one serves until the new one is loaded, and goes when its last request has
 * ended; else it goes first, and no request is taken meanwhile. Either way a checkpoint that cannot
 * be loaded leaves the old one in service. Adapters are matched to the new one. */
#ifndef ENGINE_SWITCH_H
#define ENGINE_SWITCH_H

#include "engine/engine.h"

enum switch_state {
    SWITCH_NONE,     /* nobody asked for one yet */
    SWITCH_CHECKING, /* of the files, by who asked */
    SWITCH_DRAINING, /* the old one finishes its requests, and goes */
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

/* Whether there is any model to switch to: the daemon has a --model-root. */
bool engine_has_models(const struct engine *engine);

/* The path of a model, malloc'd, for who loads its own. Waits for the disk. */
bool engine_model_path(struct engine *engine, const char *name, char **path, struct error *err)
    __attribute__((warn_unused_result));

/* Keeps the checkpoint that is drawn with in memory until it is let go, so that all of *info may be
 * used; `holder` says who does, for messages: "the training job snow". NULL and ERROR_UNAVAILABLE
 * if there is none. */
struct engine_model *engine_hold_model(
    struct engine *engine, const char *holder, struct pipeline_info *info, struct error *err);
void engine_let_go_model(struct engine_model *model); /* NULL is fine */

#endif
