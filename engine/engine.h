/* The engine thread: loads the checkpoint, then draws all requests that are accepted in the
 * pipeline's studio (engine/studio.h), a bounded number of them waiting, and trains in between. Any
 * thread may submit and cancel; callbacks come from the engine thread. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "engine/pipeline.h"

struct engine;
struct engine_ticket;

/* ENGINE_FAILED: the checkpoint could not be loaded, or the device was lost while drawing; requests
 * that wait then end with its error, and no further one is taken. */
enum engine_state { ENGINE_LOADING, ENGINE_READY, ENGINE_FAILED, ENGINE_STOPPING };
/* "loading", "ready", "failed", "stopping". */
const char *engine_state_name(enum engine_state state);
/* True in ENGINE_READY. Else ERROR_UNAVAILABLE with why no request is taken in this state;
 * `why_failed` is read in ENGINE_FAILED only. */
bool engine_state_takes(enum engine_state state, const struct error *why_failed, struct error *err)
    __attribute__((warn_unused_result));

struct engine_options {
    struct pipeline_options pipeline;
    const char *model_name; /* what its checkpoint is called; NULL: it has no name */
    const char *model_root; /* of those that can be switched to; NULL: none can */
    int queue_max; /* requests waiting, not counting those for which something was done; more only
                      of callers whose share others have filled (engine/queue_share.h) */
};

/* Starts the thread and returns at once; loading goes on behind (engine_get_state). */
bool engine_create(const struct engine_options *options, struct engine **out, struct error *err)
    __attribute__((warn_unused_result));
/* Finishes what is accepted (drain) or cancels it, then joins the thread. NULL is fine. */
void engine_destroy(struct engine *engine, bool drain);

enum engine_state engine_get_state(struct engine *engine, struct error *why_failed);
/* Only in ENGINE_READY; the strings and scheduler_json live as long as the engine, `unet` only
 * while somebody holds the model (engine/switch.h). */
bool engine_get_info(struct engine *engine, struct pipeline_info *out);
/* Whether the device, the dtype and the checkpoint's headers were found right, which comes early in
 * ENGINE_LOADING. */
bool engine_is_opened(struct engine *engine);
/* As pipeline_get_figures, but never asks the device itself: what the engine's thread was told
 * *age_s ago; if that is long, it asks again as soon as it can. False until the checkpoint is
 * loaded. */
bool engine_get_figures(struct engine *engine, struct device_figures *out, double *age_s);
/* Requests accepted and not done. */
int engine_queue_depth(struct engine *engine);
void engine_get_queue(struct engine *engine, int *waiting, int *drawing);
/* Seconds until all that the caller has asked for is done, by the work that it is and the pace of
 * the latest calls; 0: nothing is there, or nothing is known yet. */
double engine_wait_s(struct engine *engine, uint64_t caller);

/* NULL until the checkpoint is loaded; the same as long as the engine, whatever it draws with. */
struct adapters *engine_get_adapters(struct engine *engine);

/* Of the checkpoint that is drawn with, held until they are released; NULL until one is loaded. */
struct embedding_set *engine_take_embeddings(struct engine *engine);
/* As embeddings_rescan; ERROR_UNAVAILABLE until a checkpoint is loaded. */
bool engine_rescan_embeddings(struct engine *engine, struct error *err)
    __attribute__((warn_unused_result));

/* Work of the lowest priority: training. It is done on the engine's thread, in short pieces between
 * the calls of requests, and goes on while no request is there. */
struct engine_background {
    /* One piece, with the device for itself. *more: there is another; if not, it is not called
     * again before engine_wake_background. False and why only if the device was lost. */
    bool (*work)(bool *more, void *user, struct error *err);
    /* On the engine's thread, once, when it will not be called again; may be NULL. */
    void (*stop)(void *user);
    void *user;
    double share; /* 0 to 0.9: of the engine's time, also while requests are there */
};
/* Once, at any time; what it points to is borrowed until engine_destroy. It is woken by this. */
void engine_set_background(struct engine *engine, const struct engine_background *background);
/* It is not called again when this returns; not from within it. */
void engine_clear_background(struct engine *engine);
/* From any thread: there is work again, or may be. */
void engine_wake_background(struct engine *engine);
/* How long requests have kept the background from its next piece; 0 where they do not. */
double engine_held_up_s(struct engine *engine);

/* Exactly one `done` per accepted request, from the engine thread: result (owned by the callee, who
 * calls generate_result_finish) or NULL and the error. */
struct engine_callbacks {
    void (*done)(struct generate_result *result, const struct error *err, void *user);
    /* Its own evaluations: when it begins and after each call with some; may be NULL. */
    void (*progress)(int step, int steps, void *user);
    /* As struct studio_hooks has them. */
    void (*preview)(const struct studio_preview *preview, void *user);
    int preview_every;
    bool preview_decodes;
    /* It has waited in a queue of its own: the engine's length is not for it, nor does it count. */
    bool has_queue;
    uint64_t caller; /* who asked for it: a number that means nothing here (engine/turns.h) */
    void *user;
};

/* As pipeline_resolve, for engine_submit, by the checkpoint that is drawn with now: without
 * waiting, also while the queue is full. ERROR_UNAVAILABLE before one is loaded. *out may be used
 * until engine_destroy, and keeps the checkpoint in memory until it is finished. */
bool engine_resolve(struct engine *engine, const struct generate_request *request,
    struct resolved_request *out, struct error *err) __attribute__((warn_unused_result));

/* Borrows the request until its `done`. ERROR_BUSY when the caller's part of the queue is full
 * (engine/queue_share.h), ERROR_UNAVAILABLE while loading or stopping. *ticket (if wanted) is valid
 * until engine_ticket_release. */
bool engine_submit(struct engine *engine, const struct resolved_request *request,
    const struct engine_callbacks *callbacks, struct engine_ticket **ticket, struct error *err)
    __attribute__((warn_unused_result));
/* The request ends with ERROR_CANCELLED before the next unit of work, unless it is already done. */
void engine_cancel(struct engine *engine, struct engine_ticket *ticket);
void engine_ticket_release(struct engine_ticket *ticket);

#endif
