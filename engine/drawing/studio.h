/* Draws all admitted requests at once. Each image is scheduled by itself and shares calls of the
 * models with whatever other images are there.
 *
 * A request may be admitted at any time and never waits for others just to share a call. Each call
 * of studio_work does one unit of work: a UNet call for the images whose turn it is
 * (engine/drawing/policy.h), in which new images first get their texts and noise; one decode; or
 * the encoding of the pictures that a request brings. Between units requests end: done, failed,
 * cancelled or timed out. The end of one request never touches the others: a failed call is
 * repeated for each of its images alone. Only a lost device ends all requests.
 *
 * One thread at a time: the daemon's engine thread (engine/loop/engine.h), or the caller of
 * pipeline_generate. */
#ifndef ENGINE_DRAWING_STUDIO_H
#define ENGINE_DRAWING_STUDIO_H

#include "engine/drawing/stages.h"

struct studio;

/* `stages` is copied; what it points to is borrowed. max_rows limits the rows of one UNet call,
 * even if the device gains from more; one image always fits. 0: no limit. */
bool studio_create(const struct stages *stages, int max_rows, struct studio **out,
    struct error *err) __attribute__((warn_unused_result));
/* Draws requests strictly one after the other, in arrival order: for comparisons. */
void studio_set_one_at_a_time(struct studio *studio);
/* Call only when no request is left. NULL is fine. */
void studio_destroy(struct studio *studio);

/* What an image would look like if it ended now: 8-bit RGB [height][width][3], borrowed. */
struct studio_preview {
    int image, step, steps; /* image: index in the request; step, steps: this image's evaluations,
                               done and in all */
    int width, height;
    const uint8_t *pixels;
};

/* Called by studio_work; all but `done` may be NULL. */
struct studio_hooks {
    uint64_t caller; /* whoever asked for it (engine/drawing/turns.h) */
    /* Asked between units: true ends the request with ERROR_CANCELLED. */
    bool (*is_cancelled)(void *user);
    void (*begun)(void *user); /* before the first work for the request */
    /* Called when the request begins and after each of its calls: `step` of the `steps` evaluations
     * of all its images are done. */
    void (*progress)(int step, int steps, void *user);
    /* Called after every `preview_every`-th evaluation of an image except its last; 0: no previews.
     * A preview is a linear map of the latents, at their size. With preview_decodes it is decoded
     * by the VAE, which is a unit of work of its own and counts as the caller's work. Previews do
     * not change the result. */
    void (*preview)(const struct studio_preview *preview, void *user);
    int preview_every;
    bool preview_decodes;
    /* Called exactly once, after all other calls: with the result, which the callee finishes, or
     * with NULL and the error. May admit other requests. */
    void (*done)(struct generate_result *result, const struct error *err, void *user);
    void *user;
};

/* Adds a request, borrowed until its `done`. begun_s: monotonic time from which its timeout_s and
 * its timings count. */
bool studio_admit(struct studio *studio, const struct resolved_request *request,
    const struct studio_hooks *hooks, double begun_s, struct error *err)
    __attribute__((warn_unused_result));

/* Whether there is no request. */
bool studio_is_idle(const struct studio *studio);

/* Calls `visit` for each request with its caller and its remaining work, in seconds at the speed of
 * the latest units; 0 before there was a unit. Returns the mean time that a whole request takes,
 * over the latest admitted ones. */
double studio_visit_work(const struct studio *studio,
    void (*visit)(uint64_t caller, double left_s, void *user), void *user);

/* Ends the requests that are over, then does one unit of work, if there is any. Fails only if the
 * device was lost; all requests have then ended with that error. */
bool studio_work(struct studio *studio, struct error *err) __attribute__((warn_unused_result));

struct generate_hooks {
    /* Called on the calling thread before the first step and after every call of the request:
     * `step` of the `steps` evaluations of all its images are done. Return false to cancel
     * (ERROR_CANCELLED). May be NULL. */
    bool (*progress)(int step, int steps, void *user);
    void *user;
};

/* Draws one request from beginning to end, in a studio without any other. On success the caller
 * finishes *result. ERROR_TIMEOUT at the first step after timeout_s. */
bool studio_generate(struct studio *studio, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

#endif
