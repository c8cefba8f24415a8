/* Draws all admitted requests at once. Each image is scheduled by itself and shares the models'
 * calls with other images.
 *
 * A request may be admitted at any time and never waits for others just to share a call. Each call
 * of studio_work does one unit of work. A unit is one decode, the encoding of a request's pictures,
 * or one UNet call for the images that policy_choose selects (engine/drawing/policy.h). New images
 * get their texts and noise before their first UNet call. Requests end between units of work: they
 * are done, failed, cancelled or timed out. The end of one request never affects the others: a
 * failed call is repeated for each of its images alone. Only a lost device ends all requests.
 *
 * Used by one thread at a time: the daemon's engine thread (engine/loop/engine.h), or the thread
 * that calls pipeline_generate. */
#ifndef ENGINE_DRAWING_STUDIO_H
#define ENGINE_DRAWING_STUDIO_H

#include "engine/drawing/stages.h"

struct studio;

/* Copies `stages` and borrows what its members point to. max_rows limits the rows of one UNet call,
 * even if the device gains from more; one image always fits. 0: no limit. */
bool studio_create(const struct stages *stages, int max_rows, struct studio **out,
    struct error *err) __attribute__((warn_unused_result));
/* Makes the studio draw requests one after the other, in arrival order. For comparisons. */
void studio_set_one_at_a_time(struct studio *studio);
/* Call only when the studio has no requests left. NULL is fine. */
void studio_destroy(struct studio *studio);

/* A preview: how the image would look if it ended now. 8-bit RGB [height][width][3], borrowed. */
struct studio_preview {
    int image, step,
        steps; /* image: index in the request; step of steps: this image's evaluations */
    int width, height;
    const uint8_t *pixels;
};

/* Callbacks of studio_work. All except `done` may be NULL. */
struct studio_hooks {
    uint64_t caller; /* account of the work (engine/drawing/turns.h) */
    /* Called between units of work. Return true to end the request with ERROR_CANCELLED. */
    bool (*is_cancelled)(void *user);
    void (*begun)(void *user); /* called before the first unit of work */
    /* Called when the request begins and after each UNet call with its images. `step` of `steps`
     * evaluations are done, counted over all images of the request. */
    void (*progress)(int step, int steps, void *user);
    /* Called after every `preview_every`-th evaluation of an image, except its last; 0: no
     * previews. A preview is a linear map of the latents, and has their size. With preview_decodes
     * the VAE decodes it: that is a separate unit of work, and counts as the caller's work.
     * Previews do not change the result. */
    void (*preview)(const struct studio_preview *preview, void *user);
    int preview_every;
    bool preview_decodes;
    /* Called exactly once, after all other callbacks: with the result, which the callee finishes,
     * or with NULL and the error. May admit other requests. */
    void (*done)(struct generate_result *result, const struct error *err, void *user);
    void *user;
};

/* Adds a request, borrowed until its `done`. timeout_s and the timings count from begun_s, a
 * monotonic time. */
bool studio_admit(struct studio *studio, const struct resolved_request *request,
    const struct studio_hooks *hooks, double begun_s, struct error *err)
    __attribute__((warn_unused_result));

/* Whether the studio has no requests. */
bool studio_is_idle(const struct studio *studio);

/* Calls `visit` for each request with its caller and its remaining work. Work is in seconds at the
 * speed of the latest units of work; 0 before the first unit. Returns the mean time that a whole
 * request takes, over the latest admitted requests. */
double studio_visit_work(const struct studio *studio,
    void (*visit)(uint64_t caller, double left_s, void *user), void *user);

/* Ends the requests that are done, failed, cancelled or timed out, then does one unit of work if
 * there is any. Fails only if the device was lost; all requests have then ended with that error. */
bool studio_work(struct studio *studio, struct error *err) __attribute__((warn_unused_result));

struct generate_hooks {
    /* Called on the calling thread before the first step and after every UNet call. `step` of
     * `steps` evaluations are done, counted over all images of the request. Return false to cancel
     * (ERROR_CANCELLED). May be NULL. */
    bool (*progress)(int step, int steps, void *user);
    void *user;
};

/* Draws one request from beginning to end; the studio must have no other requests. On success the
 * caller finishes *result. ERROR_TIMEOUT at the first step after timeout_s. */
bool studio_generate(struct studio *studio, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

#endif
