/* The engine thread. It loads the checkpoint, draws all accepted requests in the pipeline's studio
 * (engine/drawing/studio.h), and trains between them. The number of waiting requests is bounded.
 * Any thread may submit and cancel; callbacks come from the engine thread. */
#ifndef ENGINE_LOOP_ENGINE_H
#define ENGINE_LOOP_ENGINE_H

#include "engine/loop/pipeline.h"

struct engine;
struct engine_ticket;

/* ENGINE_FAILED: the checkpoint could not be loaded, or the device was lost while drawing. Waiting
 * requests then end with that error, and no new request is accepted. */
enum engine_state { ENGINE_LOADING, ENGINE_READY, ENGINE_FAILED, ENGINE_STOPPING };
/* "loading", "ready", "failed", "stopping". */
const char *engine_state_name(enum engine_state state);
/* Returns true in ENGINE_READY. Otherwise fails with ERROR_UNAVAILABLE and the reason why this
 * state accepts no request. Reads `why_failed` in ENGINE_FAILED only. */
bool engine_state_takes(enum engine_state state, const struct error *why_failed, struct error *err)
    __attribute__((warn_unused_result));

struct engine_options {
    struct pipeline_options pipeline;
    const char *model_name; /* name of the checkpoint; NULL: it has none */
    const char *model_root; /* folder of the checkpoints to switch to; NULL: there are none */
    int queue_max; /* the most waiting requests, not counting those already begun; callers below
                      their share may exceed it (engine/loop/queue_share.h) */
};

/* Starts the engine thread and returns at once. The checkpoint is loaded in that thread;
 * engine_get_state tells how far it is. */
bool engine_create(const struct engine_options *options, struct engine **out, struct error *err)
    __attribute__((warn_unused_result));
/* Finishes (drain) or cancels all accepted requests, then joins the thread. NULL is fine. */
void engine_destroy(struct engine *engine, bool drain);

enum engine_state engine_get_state(struct engine *engine, struct error *why_failed);

struct engine_listener {
    /* The engine's state or its checkpoint has changed. Called on the thread that changed it, with
     * the engine locked: must neither wait nor call the engine. */
    void (*changed)(void *user);
    void *user;
    struct engine_listener *next;
};
/* `listener` stays the caller's and must not move. */
void engine_listen(struct engine *engine, struct engine_listener *listener);
void engine_unlisten(struct engine *engine, struct engine_listener *listener);

/* Returns false while no checkpoint is loaded. The strings and scheduler_json live as long as the
 * engine, `unet` only while somebody holds the model (engine/loop/switch.h). */
bool engine_get_info(struct engine *engine, struct pipeline_info *out);
/* Whether the device, the dtype and the checkpoint's headers were found valid. This happens early
 * in ENGINE_LOADING. */
bool engine_is_opened(struct engine *engine);
/* Like pipeline_get_figures, but never asks the device itself: returns the figures that the engine
 * thread read *age_s ago. If they are old, the engine thread reads them again as soon as it can.
 * Returns false until a checkpoint is loaded. */
bool engine_get_figures(struct engine *engine, struct device_figures *out, double *age_s);
/* Accepted requests that are not done. */
int engine_queue_depth(struct engine *engine);
void engine_get_queue(struct engine *engine, int *waiting, int *drawing);
/* Seconds until everything that the caller has asked for is done, estimated from the work left and
 * the speed of the latest calls. 0: there is nothing, or nothing is known yet. */
double engine_wait_s(struct engine *engine, uint64_t caller);

/* Returns NULL until a checkpoint is loaded. The registry stays the same for the engine's lifetime,
 * whichever checkpoint is in use. */
struct adapters *engine_get_adapters(struct engine *engine);

/* Returns the embeddings of the current checkpoint, held until the caller releases them. NULL until
 * one is loaded. */
struct embedding_set *engine_take_embeddings(struct engine *engine);
/* Does what embeddings_rescan does. ERROR_UNAVAILABLE until a checkpoint is loaded. */
bool engine_rescan_embeddings(struct engine *engine, struct error *err)
    __attribute__((warn_unused_result));

/* Work of the lowest priority: training. The engine thread does it in short pieces, between the
 * calls of requests and without a break while there are none. */
struct engine_background {
    /* Does one piece; no other work uses the device meanwhile. Sets *more if there is another
     * piece; otherwise it is not called again before engine_wake_background. Fails only if the
     * device was lost. */
    bool (*work)(bool *more, void *user, struct error *err);
    /* Called once, on the engine thread, when `work` will not be called again; may be NULL. */
    void (*stop)(void *user);
    void *user;
    double share; /* 0 to 0.9: share of the engine thread's time, also while there are requests */
};
/* Sets the background, once, at any time, and wakes it. What it points to is borrowed until
 * engine_destroy. */
void engine_set_background(struct engine *engine, const struct engine_background *background);
/* The background is not called again once this has returned. Must not be called from within it. */
void engine_clear_background(struct engine *engine);
/* Tells the engine, from any thread, that there may be work again. */
void engine_wake_background(struct engine *engine);
/* How long requests have kept the background from its next piece; 0 where they do not. */
double engine_held_up_s(struct engine *engine);

/* Each accepted request gets exactly one `done`, on the engine thread: with the result (the callee
 * owns it and calls generate_result_finish), or with NULL and the error. */
struct engine_callbacks {
    void (*done)(struct generate_result *result, const struct error *err, void *user);
    /* Counts the request's own evaluations: called when it begins and after each call that
     * contained some of them. May be NULL. */
    void (*progress)(int step, int steps, void *user);
    /* These three are as in struct studio_hooks. */
    void (*preview)(const struct studio_preview *preview, void *user);
    int preview_every;
    bool preview_decodes;
    /* The request has waited in a queue of its own: queue_max does not apply to it, and it does not
     * count towards it. */
    bool has_queue;
    uint64_t caller; /* a number that stands for whoever asked; it has no meaning here
                        (engine/drawing/turns.h) */
    void *user;
};

/* Resolves a request for the current checkpoint (pipeline_resolve), as input for engine_submit.
 * Does not wait for a place in the queue. ERROR_UNAVAILABLE before a checkpoint is loaded. *out may
 * be used until engine_destroy, and keeps the checkpoint in memory until it is finished. */
bool engine_resolve(struct engine *engine, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));

/* Queues a resolved request, borrowed until its `done`. ERROR_BUSY if the caller's part of the
 * queue is full (engine/loop/queue_share.h), ERROR_UNAVAILABLE while loading or stopping. *ticket
 * (may be NULL) is valid until engine_ticket_release. */
bool engine_submit(struct engine *engine, const struct resolved_request *request,
    const struct engine_callbacks *callbacks, struct engine_ticket **ticket, struct error *err)
    __attribute__((warn_unused_result));
/* Ends the request with ERROR_CANCELLED before its next unit of work, unless it is already done. */
void engine_cancel(struct engine *engine, struct engine_ticket *ticket);
void engine_ticket_release(struct engine_ticket *ticket);

#endif
