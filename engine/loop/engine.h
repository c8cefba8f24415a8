/* The engine thread. It loads the checkpoint, draws all accepted requests in the pipeline's studio
 * (engine/drawing/studio.h), and trains between them. The number of waiting requests is bounded.
 * Any thread may submit and cancel; callbacks come from the engine thread. */
#ifndef ENGINE_LOOP_ENGINE_H
#define ENGINE_LOOP_ENGINE_H

#include "engine/loop/pipeline.h"

struct engine;
struct engine_ticket;

/* ENGINE_FAILED: the checkpoint could not be loaded, or the device was lost while drawing. Waiting
 * requests end with that error, and new requests are refused. */
enum engine_state { ENGINE_LOADING, ENGINE_READY, ENGINE_FAILED, ENGINE_STOPPING };
/* "loading", "ready", "failed", "stopping". */
const char *engine_state_name(enum engine_state state);
/* Returns true in ENGINE_READY. In other states fails with ERROR_UNAVAILABLE and the reason why
 * requests are refused. Reads `why_failed` in ENGINE_FAILED only. */
bool engine_state_takes(enum engine_state state, const struct error *why_failed, struct error *err)
    __attribute__((warn_unused_result));

struct engine_options {
    struct pipeline_options pipeline;
    const char *model_name; /* name of the checkpoint; NULL: no name */
    const char *model_root; /* folder of the checkpoints to switch to; NULL: none */
    int queue_max;          /* the most waiting requests; a caller below its share may exceed it
                               (engine/loop/queue_share.h) */
};

/* Starts the engine thread and returns at once. That thread loads the checkpoint; engine_get_state
 * tells when it is ready. */
bool engine_create(const struct engine_options *options, struct engine **out, struct error *err)
    __attribute__((warn_unused_result));
/* Finishes all accepted requests (`drain`) or cancels them, then joins the thread. NULL is fine. */
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

/* Returns false while no checkpoint is loaded. The strings and JSON live as long as the
 * engine, `unet` only while somebody holds the model (engine/loop/switch.h). */
bool engine_get_info(struct engine *engine, struct pipeline_info *out);
/* Whether the device, the dtype and the checkpoint's headers were found valid. This is known early
 * in ENGINE_LOADING. */
bool engine_is_opened(struct engine *engine);
/* Returns the device's figures as the engine thread read them *age_s ago, without asking the
 * device. If they are old, the engine thread will read them again as soon as it can. Returns false
 * until a checkpoint is loaded. */
bool engine_get_figures(struct engine *engine, struct device_figures *out, double *age_s);
/* Returns the number of accepted requests that are not done. */
int engine_queue_depth(struct engine *engine);
void engine_get_queue(struct engine *engine, int *waiting, int *drawing);
/* Returns the seconds until everything that the caller has asked for is done, estimated from the
 * work left and the speed of the latest calls. 0: the caller has no requests, or the speed is not
 * known yet. */
double engine_wait_s(struct engine *engine, uint64_t caller);

/* Returns the registry of adapters; NULL until a checkpoint is loaded. The registry stays the same
 * for the engine's lifetime, even if the checkpoint changes. */
struct adapters *engine_get_adapters(struct engine *engine);

/* Returns the embeddings of the current checkpoint, which the caller releases; NULL until a
 * checkpoint is loaded. */
struct embedding_set *engine_take_embeddings(struct engine *engine);
/* Calls embeddings_rescan for the current checkpoint. ERROR_UNAVAILABLE until one is loaded. */
bool engine_rescan_embeddings(struct engine *engine, struct error *err)
    __attribute__((warn_unused_result));

/* Calls pipeline_count_text for the current checkpoint. Any thread. ERROR_UNAVAILABLE until one is
 * loaded. */
bool engine_count_text(struct engine *engine, const struct generate_request *request, bool negative,
    struct text_count *out, struct error *err) __attribute__((warn_unused_result));

/* Work of the lowest priority: training. The engine thread does it in short pieces: between the
 * calls of requests, and continuously while there are no requests. */
struct engine_background {
    /* Does one piece; no other work uses the device meanwhile. Sets *more if another piece is
     * ready. If *more is false, the engine calls `work` again only after engine_wake_background.
     * Fails only if the device was lost. */
    bool (*work)(bool *more, void *user, struct error *err);
    /* Called once, on the engine thread, after the last call of `work`. May be NULL. */
    void (*stop)(void *user);
    void *user;
    double share; /* 0 to 0.9: share of the engine thread's time while requests are drawn */
};
/* Sets the background and wakes it. May be called at any time, once. What `background` points to is
 * borrowed until engine_destroy. */
void engine_set_background(struct engine *engine, const struct engine_background *background);
/* Removes the background. After this has returned, the engine does not call the background any
 * more. Must not be called from within the background. */
void engine_clear_background(struct engine *engine);
/* Tells the engine that the background may have work again. Any thread. */
void engine_wake_background(struct engine *engine);
/* Returns the seconds since the background asked for its next piece, if requests hold it up; else
 * 0. */
double engine_held_up_s(struct engine *engine);

/* Callbacks of an accepted request, made on the engine thread. `done` is called exactly once: with
 * the result (the callee owns it and calls generate_result_finish), or with NULL and the error. */
struct engine_callbacks {
    void (*done)(struct generate_result *result, const struct error *err, void *user);
    /* Called when the request begins and after each UNet call with its images; counts the request's
     * own evaluations. May be NULL. */
    void (*progress)(int step, int steps, void *user);
    /* The next three members are as in struct studio_hooks. */
    void (*preview)(const struct studio_preview *preview, void *user);
    int preview_every;
    bool preview_decodes;
    /* The request has already waited in another queue. queue_max does not apply to it, and it is
     * not counted as waiting. */
    bool has_queue;
    uint64_t caller; /* the account (engine/drawing/turns.h); only compared for equality */
    void *user;
};

/* Resolves a request for the current checkpoint (pipeline_resolve), as input for engine_submit.
 * Does not wait for a place in the queue. *out may be used until engine_destroy, and keeps the
 * checkpoint in memory until it is finished. ERROR_UNAVAILABLE before a checkpoint is loaded. */
bool engine_resolve(struct engine *engine, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));

/* Queues a resolved request, which is borrowed until its `done`. *ticket (may be NULL) is valid
 * until engine_ticket_release. ERROR_BUSY if the caller's share of the queue is full
 * (engine/loop/queue_share.h). ERROR_UNAVAILABLE while loading or stopping. */
bool engine_submit(struct engine *engine, const struct resolved_request *request,
    const struct engine_callbacks *callbacks, struct engine_ticket **ticket, struct error *err)
    __attribute__((warn_unused_result));
/* Ends the request with ERROR_CANCELLED before its next unit of work, unless it is already done. */
void engine_cancel(struct engine *engine, struct engine_ticket *ticket);
void engine_ticket_release(struct engine_ticket *ticket);

#endif
