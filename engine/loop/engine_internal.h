/* Shared by engine.c, the thread that draws, and switch.c, which changes the checkpoint. No other
 * file includes it. */
#ifndef ENGINE_LOOP_ENGINE_INTERNAL_H
#define ENGINE_LOOP_ENGINE_INTERNAL_H

#include "engine/loop/queue_share.h"
#include "engine/loop/switch.h"

#include <pthread.h>
#include <stdatomic.h>

/* A loaded checkpoint. engine.lock guards the members that change. */
struct engine_model {
    struct engine *engine;
    struct engine_model *next; /* in the list engine.left */
    struct pipeline *pipeline; /* only the engine thread uses it, except for its figures */
    struct pipeline_info info; /* strings and scheduler_json belong to engine.kept */
    int holds;                 /* of requests resolved for this model, and of jobs */
    int jobs;
    char holder[160]; /* name of the latest of these jobs */
};

/* Somebody who waits for the end of a switch. */
struct switch_waiter {
    struct switch_waiter *next;
    void (*done)(const struct error *err, void *user);
    void *user;
};

/* What the infos of models point to. Kept after the models are gone. */
struct kept_info {
    struct kept_info *next;
    char *name, *path; /* owned */
    json_t *scheduler;
};

struct engine {
    struct pipeline_options pipeline_options; /* strings owned */
    char *model_name, *model_root; /* owned; of the first checkpoint; root: NULL if there is none */
    int queue_max;
    pthread_t thread;
    struct adapters *adapters; /* one share of it; NULL until the first checkpoint is loaded */

    pthread_mutex_t lock; /* guards everything below */
    pthread_cond_t changed;
    struct engine_listener *listeners;
    enum engine_state state;
    struct error why_failed;
    bool opened;
    struct engine_model *current; /* NULL: no checkpoint is loaded */
    struct engine_model *left;    /* no longer current; still held, or about to be destroyed */
    struct kept_info *kept;
    struct device_figures figures;
    double figures_at_s; /* 0: there are no figures */
    bool figures_wanted;
    struct engine_ticket *first, *last; /* requests that are not yet in the studio */
    int accepted, running;    /* requests that are not done; those of them that have begun */
    struct queue_share share; /* the accepted requests of each caller */
    struct engine_background background; /* no `work`: none is set */
    bool background_waits;               /* it waits for a piece of the engine thread's time */
    double background_waits_s;           /* monotonic; since when it has waited */
    bool background_ended;               /* it gets no more time */
    bool in_background;                  /* the engine thread is in `work` or `stop` */
    atomic_bool cancel_all;
    struct model_switch switching; /* the latest switch */
    struct engine_orders orders;   /* no `count`: nobody keeps orders */
    int orders_begun;              /* begun and not ended: `count` may not include them yet */
    bool counts_orders;            /* a thread is in `count` */
    bool orders_changed;           /* since they were last counted */
    bool takes_no_orders;          /* a switch waits for the orders accepted before it */
    struct switch_waiter *waiters;
    pthread_t switch_thread;
    bool has_switch_thread;
    char *switch_path; /* owned: the checkpoint to switch to */
    double switch_begun_s;
};

/* Starts a thread of that name (base/thread.h) that blocks all signals except those its own work
 * raises (SIGBUS, SIGSEGV, SIGFPE, SIGILL). */
bool engine_start_thread(struct engine *engine, pthread_t *thread, const char *name,
    void *(*run)(void *user), struct error *err) __attribute__((warn_unused_result));

/* Makes a model of the pipeline and takes the pipeline over, also on failure. */
bool engine_model_create(struct engine *engine, struct pipeline *pipeline, const char *name,
    struct engine_model **out, struct error *err) __attribute__((warn_unused_result));
/* The calling thread must be allowed to use the device. */
void engine_model_destroy(struct engine_model *model);

/* Call with the lock held. Wakes the engine's threads and tells the listeners. */
void engine_tell(struct engine *engine);
/* Call with the lock held. Makes `model` (NULL: none) the current one, puts the one before into
 * engine.left, and does what engine_tell does. */
void engine_set_current(struct engine *engine, struct engine_model *model);
/* Call with the lock held. Returns the first model in engine.left that nobody holds, skipping
 * `drawing`; NULL if there is none. */
struct engine_model *engine_find_unused(
    const struct engine *engine, const struct engine_model *drawing);
/* Removes the models that nobody holds, except `drawing`, from engine.left and destroys them.
 * Engine thread only. */
void engine_destroy_unused(struct engine *engine, const struct engine_model *drawing);

/* Ends a switch under way because the engine is stopping. Waits for the switch's thread. */
void engine_end_switch(struct engine *engine);

/* The `release` of struct resolved_for. */
void engine_release_request(void *model);

#endif
