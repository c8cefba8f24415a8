#include "engine/drawing/studio.h"

#include "base/log.h"
#include "base/metrics.h"
#include "base/monotonic.h"
#include "engine/drawing/policy.h"
#include "engine/drawing/turns.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Weight of the newest unit of work in the running averages of time and flops per unit. */
#define RATE_SHARE 0.1

enum picture_state { PICTURE_NEW, PICTURE_STEPPING, PICTURE_SAMPLED, PICTURE_DONE };

/* One image of a request. */
struct frame {
    struct image image;
    enum picture_state state;
    bool alone;         /* because a call shared with others failed */
    bool preview_waits; /* a preview is waiting to be decoded */
};

/* One request. */
struct drawing {
    struct drawing *next;
    const struct resolved_request *request;
    struct studio_hooks hooks;
    double begun_s, deadline_s; /* deadline_s 0: no deadline */
    struct stage_work work;
    bool begun;
    struct generate_result result;
    struct frame *pictures; /* owned, [request->images]; NULL until begun */
    bool encoded;           /* no picture of the request is left to encode */
    float *moments;         /* owned: the encoded pictures of the request */
    float *previews;        /* owned: [request->images] latents for previews; NULL: no previews */
    int evaluations, pictures_done, previews_decoded;
    double served;      /* flops done for it */
    double turn, rank;  /* see engine/drawing/policy.h */
    int64_t rows;       /* sum over the UNet calls that had its images */
    uint64_t last_call; /* number of the last such call */
    struct error error; /* why it ends; ERROR_NONE: it continues */
};

/* One image of one drawing. */
struct place {
    struct drawing *drawing;
    int index;
};

struct studio {
    struct stages stages;
    int call_rows;
    struct drawing *first, *last;
    int images;                     /* number of images of all drawings */
    struct turns turns;             /* the callers' accounts */
    struct policy_image *list;      /* owned, [capacity]: the images to choose from */
    struct place *places;           /* owned, [capacity]: where each is */
    struct turns_request *requests; /* owned, [capacity]: one per drawing */
    int capacity;
    double seconds, flops;                     /* running averages per unit of work */
    int paced_size;                            /* latent size of the images measured for `pace` */
    double pace[UNET_CALL_MAX_ROWS + 1];       /* seconds per flop, by rows of a call; 0: unknown */
    uint64_t paced_at[UNET_CALL_MAX_ROWS + 1]; /* `calls` at the last measurement */
    double request_flops;                      /* running average of a request's work */
    uint64_t calls;
    bool one_at_a_time;
    bool wants_colours, has_colours;
    struct latent_colours colours;
};

bool studio_create(
    const struct stages *stages, int max_rows, struct studio **out, struct error *err) {
    struct studio *studio = calloc(1, sizeof(*studio));
    *out = studio;
    if (!studio)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a studio");
    studio->stages = *stages;
    studio->call_rows = max_rows ? max_rows : UNET_CALL_MAX_ROWS;
    return true;
}

void studio_set_one_at_a_time(struct studio *studio) {
    studio->one_at_a_time = true;
}

void studio_destroy(struct studio *studio) {
    if (!studio)
        return;
    free(studio->list);
    free(studio->places);
    free(studio->requests);
    turns_finish(&studio->turns);
    free(studio);
}

bool studio_is_idle(const struct studio *studio) {
    return !studio->first;
}

static int total_evaluations(const struct drawing *d) {
    return d->request->images * d->request->plan->count;
}

/* --- adding and removing requests --- */

static bool make_room(struct studio *studio, int images, struct error *err) {
    if (images <= studio->capacity)
        return true;
    const int capacity = images * 2;
    struct policy_image *list = realloc(studio->list, sizeof(*studio->list) * (size_t)capacity);
    if (list)
        studio->list = list;
    struct place *places = realloc(studio->places, sizeof(*studio->places) * (size_t)capacity);
    if (places)
        studio->places = places;
    struct turns_request *requests = realloc(
        studio->requests, sizeof(*studio->requests) * (size_t)capacity);
    if (requests)
        studio->requests = requests;
    if (!list || !places || !requests)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a request");
    studio->capacity = capacity;
    return true;
}

static int pictures_to_encode(const struct resolved_request *r) {
    return r->source ? source_encode_count(r->source) : 0;
}

static double seconds_per_flop(const struct studio *studio) {
    return studio->flops > 0 ? studio->seconds / studio->flops : 0;
}

/* Returns the flops of a whole drawing, without previews. */
static double work_of(const struct drawing *d) {
    const double decodes = d->request->asked.latent_output ? 0 : d->request->images;
    return (pictures_to_encode(d->request) > 0 ? d->work.encode : 0) +
           total_evaluations(d) * d->work.evaluation + decodes * d->work.decode;
}

bool studio_admit(struct studio *studio, const struct resolved_request *request,
    const struct studio_hooks *hooks, double begun_s, struct error *err) {
    struct stage_work work;
    if (!make_room(studio, studio->images + request->images, err) ||
        !studio->stages.measure(studio->stages.user, request, &work, err))
        return false;
    struct drawing *d = calloc(1, sizeof(*d));
    if (!d || !turns_enter(&studio->turns, hooks->caller, err)) {
        free(d);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a request");
    }
    d->request = request;
    d->hooks = *hooks;
    d->begun_s = begun_s;
    d->deadline_s = request->asked.timeout_s > 0 ? begun_s + request->asked.timeout_s : 0;
    d->work = work;
    d->encoded = pictures_to_encode(request) == 0;
    studio->request_flops += (studio->request_flops > 0 ? RATE_SHARE : 1) *
                             (work_of(d) - studio->request_flops);
    if (hooks->preview_every > 0 && !hooks->preview_decodes && studio->stages.colours)
        studio->wants_colours = true;
    *(studio->last ? &studio->last->next : &studio->first) = d;
    studio->last = d;
    studio->images += request->images;
    return true;
}

static void unlink_drawing(struct studio *studio, struct drawing *d) {
    struct drawing **link = &studio->first, *before = NULL;
    for (; *link != d; link = &before->next)
        before = *link;
    *link = d->next;
    if (studio->last == d)
        studio->last = before;
    studio->images -= d->request->images;
}

/* Weights work by priority: each level above 0 halves it, each level below 0 doubles it. */
static double weighted(const struct drawing *d, double work) {
    return ldexp(work, -d->request->asked.priority);
}

/* Ends a drawing with its result, or with d->error. */
static void end_drawing(struct studio *studio, struct drawing *d) {
    const bool ok = d->error.code == ERROR_NONE;
    if (d->error.code == ERROR_CANCELLED || d->error.code == ERROR_TIMEOUT)
        metric_add(d->begun ? METRIC_cancelled_total_drawing : METRIC_cancelled_total_waiting, 1);
    for (int i = 0; d->pictures && i < d->request->images; i++)
        if (d->pictures[i].state == PICTURE_STEPPING)
            studio->stages.leave(studio->stages.user, &d->pictures[i].image);
    unlink_drawing(studio, d);
    turns_leave(&studio->turns, d->hooks.caller, weighted(d, d->served));
    d->result.timings.total_s = monotonic_seconds() - d->begun_s;
    if (d->result.timings.steps)
        d->result.timings.batch_rows_mean = (double)d->rows / d->result.timings.steps;
    if (!ok)
        generate_result_finish(&d->result);
    d->hooks.done(ok ? &d->result : NULL, ok ? NULL : &d->error, d->hooks.user);
    free(d->pictures);
    free(d->previews);
    free(d->moments);
    free(d);
}

/* Ends all drawings that are done or have failed. */
static void end_ended(struct studio *studio) {
    for (struct drawing *d = studio->first, *next; d; d = next) {
        next = d->next;
        if (d->error.code != ERROR_NONE || d->pictures_done == d->request->images)
            end_drawing(studio, d);
    }
}

/* Ends every drawing with `why`. Always returns false, so that the caller can return it. */
static bool lose_all(struct studio *studio, const struct error *why, struct error *err) {
    for (struct drawing *d = studio->first; d; d = d->next)
        d->error = *why;
    end_ended(studio);
    *err = *why;
    return false;
}

/* Ends the drawing with `why`, or all drawings if the device is lost. Returns the value that
 * studio_work must return. */
static bool fail(
    struct studio *studio, struct drawing *d, const struct error *why, struct error *err) {
    if (why->code == ERROR_DEVICE_LOST)
        return lose_all(studio, why, err);
    d->error = *why;
    end_ended(studio);
    return true;
}

static void check_time(struct drawing *d, double now) {
    const int done = d->evaluations, all = total_evaluations(d);
    if (d->hooks.is_cancelled && d->hooks.is_cancelled(d->hooks.user)) {
        if (d->begun)
            error_set(&d->error, ERROR_CANCELLED, "the request was cancelled after %d of %d steps",
                done, all);
        else
            error_set(&d->error, ERROR_CANCELLED, "the request was cancelled while it waited");
    } else if (d->deadline_s > 0 && now >= d->deadline_s) {
        if (d->begun)
            error_set(&d->error, ERROR_TIMEOUT, "timeout_s: the time was over after %d of %d steps",
                done, all);
        else
            error_set(&d->error, ERROR_TIMEOUT, "timeout_s: the request waited %.1f s for its turn",
                now - d->begun_s);
    }
}

/* --- previews --- */

/* Whether a preview is due after the image's next evaluation. */
static bool is_preview_due(
    const struct studio *studio, const struct drawing *d, const struct frame *p) {
    const int every = d->hooks.preview_every, next = p->image.evaluations + 1;
    return every > 0 && d->hooks.preview && next % every == 0 && next < d->request->plan->count &&
           (d->hooks.preview_decodes || studio->has_colours);
}

static int previews_to_decode(const struct drawing *d) {
    if (!d->hooks.preview_every || !d->hooks.preview_decodes)
        return 0;
    const int each = (d->request->plan->count - 1) / d->hooks.preview_every;
    return d->request->images * each - d->previews_decoded;
}

static void show(struct drawing *d, int index, int width, int height, const uint8_t *pixels) {
    const struct studio_preview preview = {
        .image = index,
        .step = d->pictures[index].image.evaluations,
        .steps = d->request->plan->count,
        .width = width,
        .height = height,
        .pixels = pixels,
    };
    d->hooks.preview(&preview, d->hooks.user);
}

/* Makes the preview from the latents that the last step wrote to p->image.preview. If memory is
 * short, the preview is left out. */
static void preview_picture(struct studio *studio, struct drawing *d, int index) {
    struct frame *p = &d->pictures[index];
    const struct resolved_request *r = d->request;
    const int64_t pixels = (int64_t)r->latent_height * r->latent_width;
    const float *latents = p->image.preview;
    p->image.preview = NULL;
    if (d->hooks.preview_decodes) {
        p->preview_waits = true;
        return;
    }
    uint8_t *colours = malloc((size_t)pixels * 3);
    if (!colours)
        return;
    latent_colours_apply(&studio->colours, latents, pixels, colours);
    show(d, index, r->latent_width, r->latent_height, colours);
    free(colours);
}

/* --- choosing the next call --- */

/* Returns the flops left for a drawing. Before the request's pictures are encoded, only their
 * encoding counts. Encoding takes little time, and after it the drawing's images can join the calls
 * of others. */
static double work_left(const struct drawing *d) {
    const struct resolved_request *r = d->request;
    const double decodes = (r->asked.latent_output ? 0 : r->images - d->pictures_done) +
                           previews_to_decode(d);
    if (!d->encoded)
        return d->work.encode;
    return (total_evaluations(d) - d->evaluations) * d->work.evaluation + decodes * d->work.decode;
}

double studio_visit_work(const struct studio *studio,
    void (*visit)(uint64_t caller, double left_s, void *user), void *user) {
    const double s_per_flop = seconds_per_flop(studio);
    for (const struct drawing *d = studio->first; d; d = d->next)
        visit(d->hooks.caller, (d->encoded ? work_left(d) : work_of(d)) * s_per_flop, user);
    return studio->request_flops * s_per_flop;
}

static enum policy_state policy_state(enum picture_state state, bool preview_waits) {
    return preview_waits               ? POLICY_CODING
           : state == PICTURE_NEW      ? POLICY_NEW
           : state == PICTURE_STEPPING ? POLICY_STEPPING
                                       : POLICY_CODING;
}

/* Computes the turn and the rank of all drawings. */
static void take_turns(struct studio *studio, double now) {
    const double s_per_flop = seconds_per_flop(studio);
    int count = 0;
    for (struct drawing *d = studio->first; d; d = d->next, count++)
        studio->requests[count] = (struct turns_request){ .caller = d->hooks.caller,
            .rank = policy_rank(
                work_left(d) * s_per_flop, now - d->begun_s, d->request->asked.priority),
            .left = weighted(d, work_left(d)),
            .served = weighted(d, d->served),
            .index = count,
            .of = d };
    turns_take(&studio->turns, studio->requests, count);
    for (int i = 0; i < count; i++) {
        struct drawing *d = studio->requests[i].of;
        d->turn = studio->requests[i].turn;
        d->rank = studio->requests[i].rank;
    }
}

static int size_of(const struct resolved_request *r) {
    return r->latent_height << 16 | r->latent_width;
}

/* Lists the images that are not done, in the order in which their requests were admitted. */
static int list_images(struct studio *studio, double now) {
    int count = 0;
    take_turns(studio, now);
    for (struct drawing *d = studio->first; d; d = d->next) {
        if (studio->one_at_a_time && count > 0)
            break;
        const struct resolved_request *r = d->request;
        const struct policy_image like = {
            .caller = d->hooks.caller,
            .turn = d->turn,
            .rank = d->rank,
            .size = size_of(r),
            .call_images = studio->stages.call_images(studio->stages.user, r),
        };
        for (int i = 0; i < (d->encoded ? r->images : 1); i++) {
            const enum picture_state state = d->pictures ? d->pictures[i].state : PICTURE_NEW;
            if (state == PICTURE_DONE)
                continue;
            studio->places[count] = (struct place){ d, i };
            studio->list[count] = like;
            studio->list[count].rows = resolved_request_rows(r, i);
            const bool preview_waits = d->pictures && d->pictures[i].preview_waits;
            studio->list[count].state = d->encoded ? policy_state(state, preview_waits)
                                                   : POLICY_CODING;
            studio->list[count++].alone = d->pictures && d->pictures[i].alone;
        }
    }
    return count;
}

static struct frame *picture_at(const struct place *place) {
    return &place->drawing->pictures[place->index];
}

/* Records that a unit of work of `flops` took `seconds`. */
static void count_work(struct studio *studio, double flops, double seconds) {
    studio->seconds += RATE_SHARE * (seconds - studio->seconds);
    studio->flops += RATE_SHARE * (flops - studio->flops);
    turns_move_clock(&studio->turns, flops);
}

/* The pace of a width is forgotten after this many calls of other widths, because by then other
 * programs may have started or stopped using the device. */
#define PACE_CALLS 500
/* A shorter time is not recorded, because the device cannot have done the call's work in it. */
#define PACE_LEAST_S 1e-4
/* Expected time per row at a width without a known pace, as a fraction of the time per row at the
 * next smaller width with one. The fraction is low enough that the unknown width is tried. */
#define UNKNOWN_SHARE 0.85

/* Records how long a call with `rows` rows took. Paces are of one image size; a call of another
 * size starts over. */
static void count_pace(struct studio *studio, int size, int rows, double flops, double seconds) {
    if (size != studio->paced_size)
        memset(studio->pace, 0, sizeof(studio->pace));
    studio->paced_size = size;
    if (seconds < PACE_LEAST_S)
        return;
    const int at = rows < UNET_CALL_MAX_ROWS ? rows : UNET_CALL_MAX_ROWS;
    double *pace = &studio->pace[at];
    studio->paced_at[at] = studio->calls;
    *pace += (*pace > 0 ? RATE_SHARE : 1) * (seconds / flops - *pace);
}

/* Returns the pace of calls with that many rows; 0: unknown. */
static double known_pace(const struct studio *studio, int rows) {
    return studio->calls - studio->paced_at[rows] <= PACE_CALLS ? studio->pace[rows] : 0;
}

/* Fills in `cost` of struct policy_limits. An unknown pace is taken as a little less than that of
 * the next smaller known width. So calls grow step by step on a device that gains from wider calls,
 * and other devices try each width from time to time. Returns false if no pace is known. */
static bool fill_cost(const struct studio *studio, double cost[UNET_CALL_MAX_ROWS + 1]) {
    double pace = 0;
    for (int rows = UNET_CALL_MAX_ROWS; rows > 0; rows--)
        pace = known_pace(studio, rows) > 0 ? known_pace(studio, rows) : pace;
    if (pace <= 0)
        return false;
    cost[0] = 0;
    bool is_known = false;
    for (int rows = 1; rows <= UNET_CALL_MAX_ROWS; rows++) {
        const double known = known_pace(studio, rows);
        is_known = is_known || known > 0;
        pace = known > 0 ? known : pace;
        cost[rows] = fmax(
            cost[rows - 1], rows * pace * (known > 0 || !is_known ? 1 : UNKNOWN_SHARE));
    }
    return true;
}

/* Chooses the next call. call->count is 0 if there is nothing to do. */
static void choose(const struct studio *studio, int listed, bool no_new, struct policy_call *call) {
    double cost[UNET_CALL_MAX_ROWS + 1];
    const struct policy_limits limits = { studio->call_rows, no_new,
        fill_cost(studio, cost) ? cost : NULL };
    policy_choose(studio->list, listed, &limits, call);
}

/* --- beginning drawings --- */

static size_t latent_elements(const struct resolved_request *r) {
    return (size_t)r->latent_channels * (size_t)r->latent_height * (size_t)r->latent_width;
}

static bool allocate(struct drawing *d, bool checks) {
    const struct resolved_request *r = d->request;
    struct generate_result *out = &d->result;
    size_t images = (size_t)r->images;
    out->width = r->asked.width;
    out->height = r->asked.height;
    out->latent_channels = r->latent_channels;
    out->latent_height = r->latent_height;
    out->latent_width = r->latent_width;
    out->image_count = r->images;
    out->seeds = calloc(images, sizeof(*out->seeds));
    out->latents = calloc(images * latent_elements(r), sizeof(*out->latents));
    d->pictures = calloc(images, sizeof(*d->pictures));
    bool ok = out->seeds && out->latents && d->pictures;
    if (ok && !r->asked.latent_output) {
        out->images = calloc(images, sizeof(*out->images));
        ok = out->images;
        for (size_t i = 0; i < images && ok; i++)
            ok = (out->images[i] = malloc((size_t)out->width * (size_t)out->height * 3));
        if (ok && checks)
            ok = (out->nsfw = calloc(images, sizeof(*out->nsfw)));
    }
    if (ok && d->hooks.preview && d->hooks.preview_every > 0) {
        d->previews = calloc(images * latent_elements(r), sizeof(*d->previews));
        ok = d->previews;
    }
    for (int i = 0; ok && i < r->images; i++) {
        out->seeds[i] = resolved_request_seed(r, i);
        d->pictures[i].image.latents = out->latents + (size_t)i * latent_elements(r);
    }
    return ok;
}

/* Allocates a drawing's result and pictures, and tells its caller that it begins. Does nothing if
 * it has begun. */
static bool begin_drawing(const struct studio *studio, struct drawing *d, struct error *err) {
    if (d->begun)
        return true;
    if (!allocate(d, studio->stages.check))
        return error_set(err, ERROR_NO_MEMORY, "no memory for %d pictures of %dx%d",
            d->request->images, d->result.width, d->result.height);
    d->begun = true;
    d->result.timings.queue_s = monotonic_seconds() - d->begun_s;
    if (d->hooks.begun)
        d->hooks.begun(d->hooks.user);
    if (d->hooks.progress)
        d->hooks.progress(0, total_evaluations(d), d->hooks.user);
    return true;
}

static enum stage_begun begin_picture(
    struct studio *studio, const struct place *place, struct error *err) {
    struct drawing *d = place->drawing;
    if (!begin_drawing(studio, d, err))
        return STAGE_FAILED;
    const double before = monotonic_seconds();
    struct frame *p = picture_at(place);
    p->image.moments = d->moments;
    enum stage_begun begun = studio->stages.begin(
        studio->stages.user, d->request, place->index, &p->image, err);
    if (begun == STAGE_BEGUN)
        p->state = PICTURE_STEPPING;
    const double seconds = monotonic_seconds() - before;
    d->result.timings.text_encoder_s += seconds;
    metric_observe(METRIC_text_encoder_seconds, seconds);
    return begun;
}

/* Begins the new images of a call in order. If an image does not fit into memory, it and all new
 * images after it are removed from the call, so that later images cannot overtake it. Returns false
 * if a drawing has failed, with the drawing in *failed and the error in *err. */
static bool begin_new(
    struct studio *studio, struct policy_call *call, struct drawing **failed, struct error *err) {
    int count = 0;
    bool held = false;
    for (int i = 0; i < call->count; i++) {
        const struct place *place = &studio->places[call->images[i]];
        const bool is_new = studio->list[call->images[i]].state == POLICY_NEW;
        enum stage_begun begun = STAGE_BEGUN;
        if (is_new)
            begun = held ? STAGE_NO_ROOM : begin_picture(studio, place, err);
        *failed = place->drawing;
        if (begun == STAGE_FAILED)
            return false;
        held = held || begun == STAGE_NO_ROOM;
        if (begun == STAGE_BEGUN)
            call->images[count++] = call->images[i];
    }
    call->count = count;
    return true;
}

/* --- units of work --- */

/* Records a UNet call in a drawing, once even if several of its images were in the call. */
static void count_call(struct studio *studio, struct drawing *d, int rows, double seconds) {
    if (d->last_call == studio->calls)
        return;
    d->last_call = studio->calls;
    d->rows += rows;
    d->result.timings.steps++;
    d->result.timings.unet_s += seconds;
    if (d->hooks.progress && d->error.code == ERROR_NONE)
        d->hooks.progress(d->evaluations, total_evaluations(d), d->hooks.user);
}

/* Restarts all images of a failed call, each in calls of its own, because any of them may have
 * caused the failure. */
static void restart_alone(struct studio *studio, const struct place *places, int count) {
    for (int i = 0; i < count; i++) {
        struct frame *p = picture_at(&places[i]);
        places[i].drawing->evaluations -= p->image.evaluations;
        studio->stages.leave(studio->stages.user, &p->image);
        p->image.evaluations = 0;
        p->image.preview = NULL;
        p->state = PICTURE_NEW;
        p->alone = true;
    }
}

static bool take_picture(struct studio *studio, const struct place *place, struct error *err) {
    struct drawing *d = place->drawing;
    struct frame *p = picture_at(place);
    const bool ok = studio->stages.take(studio->stages.user, &p->image, err);
    p->state = d->request->asked.latent_output ? PICTURE_DONE : PICTURE_SAMPLED;
    d->pictures_done += p->state == PICTURE_DONE;
    return ok;
}

/* Records how many different adapters the images of a call use. */
static void count_adapters(const struct place *places, int count) {
    uint64_t seen[64];
    int distinct = 0;
    for (int i = 0; i < count; i++) {
        const struct adapter_use *uses;
        const int used = adapter_set_uses(places[i].drawing->request->adapters, &uses);
        for (int k = 0; k < used && distinct < 64; k++) {
            int at = 0;
            while (at < distinct && seen[at] != uses[k].version)
                at++;
            if (at == distinct && uses[k].version)
                seen[distinct++] = uses[k].version;
        }
    }
    metric_observe(METRIC_batch_distinct_loras, distinct);
}

/* After a UNet call: takes the finished images, records the work, and ends drawings. */
static bool after_call(struct studio *studio, const struct place *places, int count, double before,
    struct error *err) {
    double flops = 0;
    int rows = 0;
    bool lost = false;
    struct error why = { 0 };
    for (int i = 0; i < count && !lost; i++) {
        struct drawing *d = places[i].drawing;
        d->evaluations++;
        d->served += d->work.evaluation;
        flops += d->work.evaluation;
        rows += resolved_request_rows(d->request, places[i].index);
        if (picture_at(&places[i])->image.preview)
            preview_picture(studio, d, places[i].index);
        if (image_is_done(&picture_at(&places[i])->image) &&
            !take_picture(studio, &places[i], &why)) {
            d->error = why;
            lost = why.code == ERROR_DEVICE_LOST;
        }
    }
    if (lost)
        return lose_all(studio, &why, err);
    const double seconds = monotonic_seconds() - before;
    count_work(studio, flops, seconds);
    count_pace(studio, size_of(places[0].drawing->request), rows, flops, seconds);
    metric_add(METRIC_unet_calls_total, 1);
    metric_add(METRIC_unet_rows_total, (uint64_t)rows);
    metric_add(METRIC_steps_total, (uint64_t)count);
    metric_observe(metric_step_seconds(rows), seconds);
    count_adapters(places, count);
    studio->calls++;
    for (int i = 0; i < count; i++)
        count_call(studio, places[i].drawing, rows, seconds);
    end_ended(studio);
    return true;
}

/* Gives the images of a call their texts. The time for it, also in *seconds, is not the UNet's. */
static bool renew_texts(struct studio *studio, const struct place *places,
    struct image *const *images, int count, double *seconds, struct error *err) {
    *seconds = 0;
    for (int i = 0; i < count && studio->stages.renew_texts; i++) {
        double took;
        if (!studio->stages.renew_texts(studio->stages.user, images[i], &took, err))
            return false;
        if (took == 0)
            continue;
        *seconds += took;
        places[i].drawing->result.timings.text_encoder_s += took;
        metric_observe(METRIC_text_encoder_seconds, took);
    }
    return true;
}

/* Makes one UNet call for images that have begun, in order of rank. If memory is short, only the
 * first of them take part. */
static bool step(struct studio *studio, const struct place *places, int count, struct error *err) {
    struct image *images[UNET_CALL_MAX_IMAGES];
    struct error why = { 0 };
    for (int i = 0; i < count; i++)
        images[i] = &picture_at(&places[i])->image;
    const double before = monotonic_seconds();
    for (int i = 0; i < count; i++)
        if (is_preview_due(studio, places[i].drawing, picture_at(&places[i])))
            images[i]->preview = places[i].drawing->previews +
                                 (size_t)places[i].index *
                                     latent_elements(places[i].drawing->request);
    while (!studio->stages.ready(studio->stages.user, images, count, &why)) {
        if (why.code != ERROR_NO_MEMORY || count == 1)
            return fail(studio, places[0].drawing, &why, err);
        count /= 2;
    }
    double texts_s;
    if (renew_texts(studio, places, images, count, &texts_s, &why) &&
        studio->stages.step(studio->stages.user, images, count, &why))
        return after_call(studio, places, count, before + texts_s, err);
    if (why.code == ERROR_DEVICE_LOST || count == 1)
        return fail(studio, places[0].drawing, &why, err);
    restart_alone(studio, places, count);
    return true;
}

/* Records a unit of work of the VAE for a drawing. */
static void count_vae(struct studio *studio, struct drawing *d, double flops, double before) {
    const double seconds = monotonic_seconds() - before;
    d->result.timings.vae_s += seconds;
    metric_observe(METRIC_vae_seconds, seconds);
    count_work(studio, flops, seconds);
    d->served += flops;
}

/* Decodes an image and runs the safety checker on it. */
static bool decode_checked(struct studio *studio, const struct resolved_request *r,
    const float *latents, uint8_t *pixels, bool *tiled, bool *flagged, struct error *err) {
    const struct stages *stages = &studio->stages;
    *tiled = *flagged = false;
    return stages->decode(stages->user, r, latents, pixels, tiled, err) &&
           (!stages->check || stages->check(stages->user, r, pixels, flagged, err));
}

static bool decode(struct studio *studio, const struct place *place, struct error *err) {
    struct drawing *d = place->drawing;
    struct frame *p = picture_at(place);
    struct error why = { 0 };
    const double before = monotonic_seconds();
    bool tiled, flagged;
    if (!decode_checked(studio, d->request, p->image.latents, d->result.images[place->index],
            &tiled, &flagged, &why))
        return fail(studio, d, &why, err);
    d->result.vae_tiled |= tiled;
    if (d->result.nsfw)
        d->result.nsfw[place->index] = flagged;
    count_vae(studio, d, d->work.decode, before);
    p->state = PICTURE_DONE;
    d->pictures_done++;
    end_ended(studio);
    return true;
}

/* A preview that cannot be decoded is left out. Returns false only if the device is lost, after
 * ending all drawings. */
static bool decode_preview(struct studio *studio, const struct place *place, struct error *err) {
    struct drawing *d = place->drawing;
    const struct resolved_request *r = d->request;
    struct error why = { 0 };
    const double before = monotonic_seconds();
    uint8_t *pixels = malloc((size_t)r->asked.width * (size_t)r->asked.height * 3);
    bool tiled, flagged;
    d->pictures[place->index].preview_waits = false;
    d->previews_decoded++;
    const bool ok = pixels && decode_checked(studio, r,
                                  d->previews + (size_t)place->index * latent_elements(r), pixels,
                                  &tiled, &flagged, &why);
    if (ok)
        show(d, place->index, r->asked.width, r->asked.height, pixels);
    free(pixels);
    if (why.code == ERROR_DEVICE_LOST)
        return lose_all(studio, &why, err);
    const double seconds = monotonic_seconds() - before;
    d->result.timings.vae_s += seconds;
    if (ok)
        count_work(studio, d->work.decode, seconds);
    d->served += d->work.decode;
    return true;
}

static bool encode(struct studio *studio, struct drawing *d, struct error *err) {
    const size_t count = source_moments(d->request->source, d->request->latent_channels) *
                         (size_t)pictures_to_encode(d->request);
    struct error why = { 0 };
    const double before = monotonic_seconds();
    if (!begin_drawing(studio, d, &why))
        return fail(studio, d, &why, err);
    d->moments = malloc(count * sizeof(*d->moments));
    if (!d->moments)
        error_set(&why, ERROR_NO_MEMORY, "no memory for an encoded picture");
    if (!d->moments || !studio->stages.encode(studio->stages.user, d->request, d->moments, &why))
        return fail(studio, d, &why, err);
    count_vae(studio, d, d->work.encode, before);
    d->encoded = true;
    return true;
}

/* Does the next work of the VAE for a drawing: encodes its pictures, or decodes a preview or a
 * finished image. */
static bool code(struct studio *studio, const struct place *place, struct error *err) {
    if (!place->drawing->encoded)
        return encode(studio, place->drawing, err);
    return picture_at(place)->preview_waits ? decode_preview(studio, place, err)
                                            : decode(studio, place, err);
}

/* Fits the latents' colours once, when previews by a map are first wanted. If that fails, these
 * previews are left out. */
static bool find_colours(struct studio *studio, struct error *err) {
    struct error why = { 0 };
    studio->wants_colours = false;
    studio->has_colours = studio->stages.colours(studio->stages.user, &studio->colours, &why);
    if (!studio->has_colours)
        log_warning("there are no quick previews: %s", why.message);
    return why.code != ERROR_DEVICE_LOST || lose_all(studio, &why, err);
}

static bool sample(struct studio *studio, struct policy_call *call, int listed, struct error *err) {
    struct place places[UNET_CALL_MAX_IMAGES];
    struct error why = { 0 };
    struct drawing *failed = NULL;
    const struct place head = studio->places[call->images[0]];
    if (!begin_new(studio, call, &failed, &why))
        return fail(studio, failed, &why, err);
    if (call->count == 0) { /* no room: continue only begun images, which free memory */
        choose(studio, listed, true, call);
        if (call->count == 0)
            return fail(studio, head.drawing, &why, err);
        if (call->codes)
            return code(studio, &studio->places[call->images[0]], err);
    }
    for (int i = 0; i < call->count; i++)
        places[i] = studio->places[call->images[i]];
    return step(studio, places, call->count, err);
}

bool studio_work(struct studio *studio, struct error *err) {
    const double now = monotonic_seconds();
    for (struct drawing *d = studio->first; d; d = d->next)
        check_time(d, now);
    end_ended(studio);
    if (studio->wants_colours && !studio->has_colours)
        return find_colours(studio, err);
    const int listed = list_images(studio, now);
    struct policy_call call;
    choose(studio, listed, false, &call);
    if (call.count == 0)
        return true;
    if (call.codes)
        return code(studio, &studio->places[call.images[0]], err);
    return sample(studio, &call, listed, err);
}

/* --- studio_generate --- */

struct single {
    const struct generate_hooks *hooks; /* may be NULL */
    struct generate_result *result;
    struct error error;
    bool cancelled, done;
};

static bool single_is_cancelled(void *user) {
    return ((struct single *)user)->cancelled;
}

static void single_progress(int step, int steps, void *user) {
    struct single *single = user;
    if (single->hooks && single->hooks->progress)
        single->cancelled = !single->hooks->progress(step, steps, single->hooks->user);
}

static void single_done(struct generate_result *result, const struct error *err, void *user) {
    struct single *single = user;
    if (result)
        *single->result = *result;
    else
        single->error = *err;
    single->done = true;
}

bool studio_generate(struct studio *studio, const struct resolved_request *request,
    const struct generate_hooks *hooks, struct generate_result *result, struct error *err) {
    struct single single = { .hooks = hooks, .result = result };
    const struct studio_hooks own = {
        .is_cancelled = single_is_cancelled,
        .progress = single_progress,
        .done = single_done,
        .user = &single,
    };
    memset(result, 0, sizeof(*result));
    if (!studio_admit(studio, request, &own, monotonic_seconds(), err))
        return false;
    while (!single.done)
        if (!studio_work(studio, err))
            return false;
    if (single.error.code != ERROR_NONE && err)
        *err = single.error;
    return single.error.code == ERROR_NONE;
}
