/* Requests on their way to pictures, all at once: each image by itself, in calls of the models that
 * it shares with whatever other images are there.
 *
 * A request is admitted at any time and never waits for others to share a call with. Each call of
 * studio_work then does one unit of work: a UNet call for the images whose turn it is
 * (engine/policy.h), those that are new getting their texts and noise first, one decode, or what
 * encodes the pictures that a request brings. Between units requests end: done, failed, cancelled
 * or out of time, and what ends one never touches the others; a failed call is made again for each
 * of its images alone. Only a lost device ends all.
 *
 * One thread at a time: the daemon's engine thread (engine/engine.h), or the caller of
 * pipeline_generate.
 */
#ifndef ENGINE_STUDIO_H
#define ENGINE_STUDIO_H

#include "engine/stages.h"

struct studio;

/* `stages` is copied, what it points to borrowed. max_rows: of one UNet call, whatever the device
 * gains from, though one image is always taken; 0: no limit of our own. */
bool studio_create(const struct stages *stages, int max_rows, struct studio **out,
    struct error *err) __attribute__((warn_unused_result));
/* Requests in the order in which they came, none beside another: for comparisons. */
void studio_set_one_at_a_time(struct studio *studio);
/* No request may be left. NULL is fine. */
void studio_destroy(struct studio *studio);

/* What an image would look like if it ended now: 8-bit RGB [height][width][3], borrowed. */
struct studio_preview {
    int image, step, steps; /* of the request; evaluations of this image, done and in all */
    int width, height;
    const uint8_t *pixels;
};

/* Called by studio_work; all but `done` may be NULL. */
struct studio_hooks {
    uint64_t caller; /* who asked for it (engine/turns.h) */
    /* Asked between units: true ends the request with ERROR_CANCELLED. */
    bool (*is_cancelled)(void *user);
    void (*begun)(void *user); /* before the first work for it */
    /* When it begins and after each of its calls: `step` of its images' `steps` evaluations are
     * done. */
    void (*progress)(int step, int steps, void *user);
    /* After each `preview_every`th evaluation of an image but its last. 0: no previews. By a linear
     * map of the latents, at their size; with preview_decodes by a decode, which is a unit of work
     * of its own and counts when turns are taken. What is drawn is the same. */
    void (*preview)(const struct studio_preview *preview, void *user);
    int preview_every;
    bool preview_decodes;
    /* Exactly once, the last thing that is said of it: the result, finished by the callee, or NULL
     * and the error. May admit others. */
    void (*done)(struct generate_result *result, const struct error *err, void *user);
    void *user;
};

/* Borrows the request until its `done`. begun_s: monotonic, from when its timeout_s and its timings
 * count. */
bool studio_admit(struct studio *studio, const struct resolved_request *request,
    const struct studio_hooks *hooks, double begun_s, struct error *err)
    __attribute__((warn_unused_result));

/* Whether no request is there. */
bool studio_is_idle(const struct studio *studio);

/* Shows each request to `visit`: who asked for it, and the work that it has before it, in seconds
 * by the pace of the latest units; 0 before there is one. Returns what a request takes from its
 * beginning to its end, on the average of the latest that were admitted. */
double studio_visit_work(const struct studio *studio,
    void (*visit)(uint64_t caller, double left_s, void *user), void *user);

/* Ends what is to end, then does one unit of work, if there is any. False and why if the device was
 * lost: all requests have ended with that error then. */
bool studio_work(struct studio *studio, struct error *err) __attribute__((warn_unused_result));

struct generate_hooks {
    /* Called before the first step and after every call of the request, on the calling thread:
     * `step` of its images' `steps` evaluations are done. Return false to cancel (ERROR_CANCELLED).
     * May be NULL. */
    bool (*progress)(int step, int steps, void *user);
    void *user;
};

/* One request from beginning to end, in a studio where no other is. On success the caller finishes
 * *result. ERROR_TIMEOUT at the step after timeout_s. */
bool studio_generate(struct studio *studio, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err)
    __attribute__((warn_unused_result));

#endif
