/* Shared by engine.c, which has the engine thread, and switch.c, which changes the checkpoint. No
 * other file includes it. */
#ifndef ENGINE_LOOP_ENGINE_INTERNAL_H
#define ENGINE_LOOP_ENGINE_INTERNAL_H

#include "engine/loop/engine.h"
#include "engine/loop/queue_share.h"
#include "engine/loop/switch_state.h"

#include <pthread.h>
#include <stdatomic.h>

/* A loaded checkpoint. engine.lock guards the members that change. */
struct engine_model {
    struct engine *engine;
    struct engine_model *next; /* list: engine.left */
    struct pipeline *pipeline; /* engine thread only, except for its figures */
    struct pipeline_info info; /* strings and JSON belong to engine.kept */
    int holds;                 /* by requests resolved for this model, and by jobs */
    int jobs;
    char holder[160]; /* name of the last job that held the model */
};

/* A callback for the end of a switch. */
struct switch_waiter {
    struct switch_waiter *next;
    void (*done)(const struct error *err, void *user);
    void *user;
};

/* The data that a model's pipeline_info points to. Kept after the model is destroyed. */
struct kept_info {
    struct kept_info *next;
    char *name, *path; /* owned */
    json_t *scheduler, *defaults;
};

struct engine {
    struct pipeline_options pipeline_options; /* its strings are owned */
    char *model_name, *model_root; /* owned; name of the first checkpoint, or NULL; root, or NULL */
    int queue_max;
    pthread_t thread;
    struct adapters *adapters; /* shared; NULL until the first checkpoint is loaded */

    pthread_mutex_t lock; /* guards all members below */
    pthread_cond_t changed;
    struct engine_listener *listeners;
    enum engine_state state;
    struct error why_failed;
    bool opened;
    struct engine_model *current; /* NULL: no checkpoint is loaded */
    struct engine_model *left;    /* models that are not current but still held or in use */
    struct kept_info *kept;
    struct device_figures figures;
    double figures_at_s; /* monotonic; 0: no figures yet */
    bool figures_wanted;
    bool adapters_left;                  /* adapters_collect has something to do */
    struct engine_ticket *first, *last;  /* the queue: requests not yet in the studio */
    int accepted, running;               /* requests that are not done; those that have begun */
    struct queue_share share;            /* each caller's accepted requests */
    struct engine_background background; /* `work` NULL: no background is set */
    bool background_waits;               /* the background waits for its next piece */
    double background_waits_s;           /* monotonic; when it began to wait */
    bool background_ended;               /* the background is not called any more */
    bool in_background;                  /* the engine thread is in `work` or `stop` */
    atomic_bool cancel_all;
    struct model_switch switching; /* state of the last switch */
    struct engine_orders orders;   /* `count` NULL: there are no orders */
    int orders_begun;              /* begun, not ended: maybe not in `count` yet */
    bool counts_orders;            /* a thread is in `count` */
    bool orders_changed;           /* since they were last counted */
    bool takes_no_orders;          /* a switch waits for all orders accepted so far */
    struct switch_waiter *waiters;
    pthread_t switch_thread;
    bool has_switch_thread;
    char *switch_path; /* owned: path of the checkpoint to switch to */
    double switch_begun_s;
};

/* Starts a thread called `name` (base/thread.h). It blocks all signals except those that its own
 * work raises (SIGBUS, SIGSEGV, SIGFPE, SIGILL). */
bool engine_start_thread(struct engine *engine, pthread_t *thread, const char *name,
    void *(*run)(void *user), struct error *err) __attribute__((warn_unused_result));

/* Makes a model from the pipeline. Takes over the pipeline, even on failure. */
bool engine_model_create(struct engine *engine, struct pipeline *pipeline, const char *name,
    struct engine_model **out, struct error *err) __attribute__((warn_unused_result));
/* Call it on a thread that may use the device. */
void engine_model_destroy(struct engine_model *model);

/* Call with the lock held. Wakes the engine's threads and tells the listeners. */
void engine_tell(struct engine *engine);
/* Call with the lock held. Makes `model` (NULL: none) the current one, puts the one before into
 * engine.left, and does what engine_tell does. */
void engine_set_current(struct engine *engine, struct engine_model *model);
/* Call with the lock held. Returns the first model in engine.left without holds, skipping
 * `drawing`; NULL if there is none. */
struct engine_model *engine_find_unused(
    const struct engine *engine, const struct engine_model *drawing);
/* Removes the models without holds, except `drawing`, from engine.left and destroys them. Engine
 * thread only. */
void engine_destroy_unused(struct engine *engine, const struct engine_model *drawing);

/* Waits for the thread of the last switch, if there is one. While the engine stops, that thread
 * gives up its switch. */
void engine_end_switch(struct engine *engine);

/* The `release` callback in struct resolved_for. */
void engine_release_request(void *model);

#endif
