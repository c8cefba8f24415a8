/* What engine.c, the thread that draws, and switch.c, which changes what it draws with, share. Not
 * for anybody else. */
#ifndef ENGINE_ENGINE_INTERNAL_H
#define ENGINE_ENGINE_INTERNAL_H

#include "engine/queue_share.h"
#include "engine/switch.h"

#include <pthread.h>
#include <stdatomic.h>

/* A checkpoint that is loaded. Engine.lock guards what changes. */
struct engine_model {
    struct engine *engine;
    struct engine_model *next; /* of those that are being left */
    struct pipeline *pipeline; /* the engine thread's alone, but for its figures */
    struct pipeline_info info; /* strings and scheduler_json: kept by the engine */
    int holds;                 /* requests that were resolved for it, and jobs */
    int jobs;
    char holder[160]; /* the last of the jobs */
};

/* Who waits for the end of a switch. */
struct switch_waiter {
    struct switch_waiter *next;
    void (*done)(const struct error *err, void *user);
    void *user;
};

/* What infos of models point to, also when they are gone. */
struct kept_info {
    struct kept_info *next;
    char *name, *path; /* owned */
    json_t *scheduler;
};

struct engine {
    struct pipeline_options pipeline_options; /* strings owned */
    char *model_name, *model_root;            /* owned; of the first; root: NULL if there is none */
    int queue_max;
    pthread_t thread;
    struct adapters *adapters; /* a share; NULL until the first checkpoint is loaded */

    pthread_mutex_t lock; /* everything below */
    pthread_cond_t changed;
    enum engine_state state;
    struct error why_failed;
    bool opened;
    struct engine_model *current; /* NULL: none is loaded */
    struct engine_model *left;    /* that still have holds, or are about to be destroyed */
    struct kept_info *kept;
    struct device_figures figures;
    double figures_at_s; /* 0: there are none */
    bool figures_wanted;
    struct engine_ticket *first, *last;  /* not yet in the studio */
    int accepted, running;               /* requests that are not done; those that have begun */
    struct queue_share share;            /* of those, caller by caller */
    struct engine_background background; /* no `work`: none was set */
    bool background_waits;               /* for a piece of the engine's time */
    double background_waits_s;           /* since when; monotonic */
    bool background_ended;               /* gets none any more */
    bool in_background;                  /* the engine's thread is in `work` or `stop` */
    atomic_bool cancel_all;
    struct model_switch switching; /* the last switch */
    struct engine_orders orders;   /* no `count`: nobody keeps any */
    int orders_begun;              /* and not ended: they may not be counted yet */
    bool counts_orders;            /* somebody is in `count` */
    bool takes_no_orders;          /* a switch waits for those before */
    struct switch_waiter *waiters;
    pthread_t switch_thread;
    bool has_switch_thread;
    char *switch_path; /* owned: where to */
    double switch_begun_s;
};

/* Starts a thread that has the signals which its own work raises, and no other. */
bool engine_start_thread(struct engine *engine, pthread_t *thread, void *(*run)(void *user),
    const char *what, struct error *err) __attribute__((warn_unused_result));

/* A model of the pipeline, which is taken over, also on failure. */
bool engine_model_create(struct engine *engine, struct pipeline *pipeline, const char *name,
    struct engine_model **out, struct error *err) __attribute__((warn_unused_result));
/* By who may use the device. */
void engine_model_destroy(struct engine_model *model);

/* Under the lock: `model` (NULL: none) is drawn with from now on, and the one before is left. */
void engine_set_current(struct engine *engine, struct engine_model *model);
/* Under the lock: the first of those left that nobody holds, but for `drawing`; NULL: none. */
struct engine_model *engine_find_unused(
    const struct engine *engine, const struct engine_model *drawing);
/* Takes those that nobody holds, but for `drawing`, out of the list and destroys them: by the
 * engine's thread. */
void engine_destroy_unused(struct engine *engine, const struct engine_model *drawing);

/* Ends a switch that is under way: the engine is stopping. Waits for its thread. */
void engine_end_switch(struct engine *engine);

/* struct resolved_for's release. */
void engine_release_request(void *model);

#endif
