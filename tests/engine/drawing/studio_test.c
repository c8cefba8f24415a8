/* How requests end in a studio. The stages are fake and fail on demand. A failing request never
 * affects another, every request ends exactly once, and every image returns its memory. All of it
 * also runs in several studios at once, each on its own thread. */
#include "engine/drawing/studio.h"

#include "base/monotonic.h"
#include "tests/check.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#define STUDIOS 3 /* at once */
#define REQUESTS 4
#define STEPS 5

/* Settings of the fake stages, and what they have seen. */
static _Thread_local struct {
    int call_images;  /* the best number for the device */
    int room;         /* how many images may be in progress */
    int memory;       /* most images in a call that memory allows */
    uint64_t culprit; /* seed of the image that fails every call; 0: none */
    enum error_code culprit_code;
    int text_ms;      /* for which the texts of an evaluation are encoded; 0: they stay */
    uint64_t damaged; /* seed of the image with non-finite latents */
    int begun, most_begun, calls, failed_calls, decodes;
    int images_seen[UNET_CALL_MAX_IMAGES + 1]; /* calls with this many images */
    uint64_t order[64];                        /* seeds, in the order of begin */
    int ordered;
    bool mixed;     /* a call had images of two sizes */
    uint64_t large; /* seed of an image that needs the room of two */
} stage;

static const struct scheduler_plan plan = { .count = STEPS };

static bool measure(
    void *user, const struct resolved_request *request, struct stage_work *out, struct error *err) {
    (void)user, (void)err;
    *out = (struct stage_work){ .evaluation = request->latent_width, .decode = 1 };
    return true;
}

static int call_images(void *user, const struct resolved_request *request) {
    (void)user, (void)request;
    return stage.call_images;
}

static int room_of(uint64_t seed) {
    return stage.large && seed == stage.large ? 2 : 1;
}

/* Stores the image's seed in its generator, and its size as the generator's offset. The other
 * stages read both there. */
static enum stage_begun begin(void *user, const struct resolved_request *request, int index,
    struct image *image, struct error *err) {
    (void)user;
    if (stage.begun + room_of(resolved_request_seed(request, index)) > stage.room) {
        error_set(err, ERROR_NO_MEMORY, "no room for more than %d", stage.room);
        return STAGE_NO_ROOM;
    }
    stage.begun += room_of(resolved_request_seed(request, index));
    stage.most_begun = stage.begun > stage.most_begun ? stage.begun : stage.most_begun;
    image->plan = request->plan;
    image->guided = request->guided;
    image->generator.seed = resolved_request_seed(request, index);
    image->generator.offset = (uint64_t)request->latent_width;
    image->evaluations = 0;
    stage.order[stage.ordered++ % 64] = image->generator.seed;
    return STAGE_BEGUN;
}

static bool ready(void *user, struct image *const *images, int count, struct error *err) {
    (void)user, (void)images;
    return count <= stage.memory ||
           error_set(err, ERROR_NO_MEMORY, "no memory for %d images", count);
}

/* Takes twice stage.text_ms before each evaluation but the first: as long for the end of the UNet
 * call before as for new texts. */
static bool renew_texts(void *user, struct image *image, double *seconds, struct error *err) {
    (void)user, (void)err;
    *seconds = image->evaluations > 0 ? stage.text_ms / 1000.0 : 0;
    if (*seconds > 0)
        usleep((unsigned)(*seconds * 2e6));
    return true;
}

static bool step(void *user, struct image *const *images, int count, struct error *err) {
    (void)user;
    for (int i = 0; i < count; i++) {
        stage.mixed = stage.mixed || images[i]->generator.offset != images[0]->generator.offset;
        if (stage.culprit && images[i]->generator.seed == stage.culprit) {
            stage.failed_calls++;
            return error_set(err, stage.culprit_code, "a call of %d failed", count);
        }
    }
    stage.calls++;
    stage.images_seen[count]++;
    for (int i = 0; i < count; i++)
        images[i]->evaluations++;
    return true;
}

static void leave(void *user, struct image *image) {
    (void)user;
    stage.begun -= room_of(image->generator.seed);
}

static bool take(void *user, struct image *image, struct error *err) {
    leave(user, image);
    image->latents[0] = (float)image->generator.seed;
    return !stage.damaged || image->generator.seed != stage.damaged ||
           error_set(err, ERROR_INTERNAL, "the latents are not finite");
}

static bool decode(void *user, const struct resolved_request *request, const float *latents,
    uint8_t *out, bool *tiled, struct error *err) {
    (void)tiled;
    (void)user, (void)request, (void)err;
    out[0] = (uint8_t)latents[0];
    stage.decodes++;
    return true;
}

static const struct stages stages = { .measure = measure,
    .call_images = call_images,
    .begin = begin,
    .ready = ready,
    .renew_texts = renew_texts,
    .step = step,
    .take = take,
    .leave = leave,
    .decode = decode };

/* --- requests --- */

static _Thread_local struct client {
    struct resolved_request request;
    uint64_t caller;
    int begun, done, step;
    enum error_code code;
    int ended_as; /* its position among the ends */
    bool cancel, right;
    int cancel_at;
} clients[REQUESTS];
static _Thread_local int ended;

static bool is_cancelled(void *user) {
    return ((struct client *)user)->cancel;
}

static void on_begun(void *user) {
    ((struct client *)user)->begun++;
}

static void on_progress(int step, int steps, void *user) {
    struct client *c = user;
    (void)steps;
    c->step = step;
    c->cancel = c->cancel_at && step >= c->cancel_at;
}

static void on_done(struct generate_result *result, const struct error *err, void *user) {
    struct client *c = user;
    c->done++;
    c->code = err ? err->code : ERROR_NONE;
    c->ended_as = ended++;
    c->right = result != NULL;
    for (int i = 0; result && i < result->image_count; i++)
        c->right = c->right && result->latents[i] == (float)(c->request.asked.seed + (uint64_t)i) &&
                   result->images[i][0] == (uint8_t)result->latents[i];
    if (result)
        generate_result_finish(result);
}

static struct studio *open_studio(int call_images_, int images_each) {
    struct studio *studio;
    struct error err = { 0 };
    memset(&stage, 0, sizeof(stage));
    stage.call_images = call_images_;
    stage.room = stage.memory = 1000;
    ended = 0;
    for (int i = 0; i < REQUESTS; i++)
        clients[i] = (struct client){ .request = {
                                          .asked = { .seed = 10 * (uint64_t)(i + 1),
                                              .width = 8,
                                              .height = 8 },
                                          .plan = (struct scheduler_plan *)&plan,
                                          .guided = true,
                                          .images = images_each,
                                          .latent_channels = 1,
                                          .latent_height = 1,
                                          .latent_width = 1,
                                      } };
    CHECK(studio_create(&stages, 0, &studio, &err), "%s", err.message);
    return studio;
}

static void admit(struct studio *studio, int index) {
    const struct studio_hooks hooks = { .caller = clients[index].caller,
        .is_cancelled = is_cancelled,
        .begun = on_begun,
        .progress = on_progress,
        .done = on_done,
        .user = &clients[index] };
    struct error err = { 0 };
    CHECK(studio_admit(studio, &clients[index].request, &hooks, monotonic_seconds(), &err), "%s",
        err.message);
}

/* Works until the studio is idle. Then every request must have ended once, and no image may keep
 * memory. */
static void finish(struct studio *studio, const char *what) {
    struct error err = { 0 };
    for (int i = 0; i < 1000 && !studio_is_idle(studio); i++)
        CHECK(studio_work(studio, &err), "%s: %s", what, err.message);
    CHECK(studio_is_idle(studio), "%s: the studio never becomes idle", what);
    CHECK(stage.begun == 0, "%s: %d images did not give their memory back", what, stage.begun);
    for (int i = 0; i < REQUESTS; i++)
        CHECK(clients[i].done == 1, "%s: request %d ended %d times", what, i, clients[i].done);
    studio_destroy(studio);
}

static void check_code(const char *what, int index, enum error_code want) {
    CHECK(clients[index].code == want && clients[index].right == (want == ERROR_NONE),
        "%s: request %d: %s", what, index, error_code_name(clients[index].code));
}

static void calls_are_shared(void) {
    struct studio *studio = open_studio(4, 1);
    clients[3].request.latent_width = 2; /* another size, and twice the work */
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    finish(studio, "shared");
    for (int i = 0; i < REQUESTS; i++)
        check_code("shared", i, ERROR_NONE);
    CHECK(stage.images_seen[3] == STEPS && stage.images_seen[1] == STEPS && !stage.mixed,
        "%d calls of three, %d of one", stage.images_seen[3], stage.images_seen[1]);
    CHECK(stage.decodes == REQUESTS, "%d decodes", stage.decodes);
}

/* A new request joins the next call, although the others are part-way through their steps. */
static void nobody_waits_for_a_call_to_fill(void) {
    struct studio *studio = open_studio(4, 1);
    struct error err = { 0 };
    for (int i = 0; i < REQUESTS; i++) {
        admit(studio, i);
        CHECK(studio_work(studio, &err) && clients[i].step == 1, "request %d is at %d", i,
            clients[i].step);
        CHECK(stage.images_seen[i + 1] == 1, "a call of %d", i + 1);
    }
    finish(studio, "one after the other");
    CHECK(stage.calls == STEPS + REQUESTS - 1, "%d calls", stage.calls);
}

static void less_memory_is_a_narrower_call(void) {
    struct studio *studio = open_studio(4, 1);
    stage.memory = 1;
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    finish(studio, "narrow");
    for (int i = 0; i < REQUESTS; i++)
        check_code("narrow", i, ERROR_NONE);
    CHECK(stage.calls == REQUESTS * STEPS, "%d calls", stage.calls);
    studio = open_studio(4, 1);
    stage.memory = 0;
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    finish(studio, "no memory");
    check_code("no memory", 0, ERROR_NO_MEMORY);
}

/* One image fails a call that it shares with all others, part-way through their steps. Then every
 * image starts again in calls of its own, and only the failing one fails. */
static void a_failed_call_is_the_culprits(void) {
    struct studio *studio = open_studio(4, 1);
    struct error err = { 0 };
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    CHECK(studio_work(studio, &err) && studio_work(studio, &err), "%s", err.message);
    stage.culprit = clients[1].request.asked.seed;
    stage.culprit_code = ERROR_DEVICE;
    finish(studio, "a culprit");
    for (int i = 0; i < REQUESTS; i++)
        check_code("a culprit", i, i == 1 ? ERROR_DEVICE : ERROR_NONE);
    CHECK(stage.failed_calls == 2,
        "%d calls failed, not 2: one with all images and one with the faulty image alone",
        stage.failed_calls);
    for (int i = 0; i < REQUESTS; i++)
        CHECK(clients[i].begun == 1 && (i == 1 || clients[i].step == STEPS), "request %d: %d, %d",
            i, clients[i].begun, clients[i].step);
}

static void damaged_latents_are_their_own(void) {
    struct studio *studio = open_studio(8, 2);
    stage.damaged = clients[2].request.asked.seed + 1; /* its second image */
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    finish(studio, "damaged");
    for (int i = 0; i < REQUESTS; i++)
        check_code("damaged", i, i == 2 ? ERROR_INTERNAL : ERROR_NONE);
}

/* With room for one image, waiting requests get it in order, and none of them fails. A request
 * fails for lack of room only if even an empty studio has too little. */
static void room_comes_when_others_leave(void) {
    struct studio *studio = open_studio(4, 1);
    stage.room = 1;
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    finish(studio, "room for one");
    for (int i = 0; i < REQUESTS; i++) {
        check_code("room for one", i, ERROR_NONE);
        CHECK(stage.order[i] == clients[i].request.asked.seed && clients[i].ended_as == i,
            "request %d began as number %d", (int)stage.order[i] / 10 - 1, i);
    }
    CHECK(stage.most_begun == 1 && stage.calls == REQUESTS * STEPS, "%d calls", stage.calls);
    studio = open_studio(4, 1);
    stage.room = 0;
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    finish(studio, "no room");
    for (int i = 0; i < REQUESTS; i++)
        check_code("no room", i, ERROR_NO_MEMORY);
}

/* A request that waits for room also holds back later requests that would fit. Otherwise the
 * waiting request might wait for ever. */
static void room_is_kept_for_whose_turn_it_is(void) {
    struct studio *studio = open_studio(4, 1);
    struct error err = { 0 };
    stage.room = 2;
    stage.large = clients[1].request.asked.seed;
    admit(studio, 0);
    CHECK(studio_work(studio, &err), "%s", err.message);
    for (int i = 1; i < REQUESTS; i++)
        admit(studio, i);
    CHECK(studio_work(studio, &err) && stage.ordered == 1,
        "%d requests have begun, not 1: the second needs two places, and the third must not take "
        "one of them",
        stage.ordered);
    finish(studio, "a large one");
    for (int i = 0; i < REQUESTS; i++) {
        check_code("a large one", i, ERROR_NONE);
        CHECK(stage.order[i] == clients[i].request.asked.seed, "request %d began as number %d",
            (int)stage.order[i] / 10 - 1, i);
    }
}

/* Three requests of one caller arrive before the only request of another. In the first round, all
 * four are the same amount of work. In the second round, the other caller's request is between two
 * and three times as much work as each of the three. */
static void callers_take_turns(void) {
    static const int widths[] = { 1, 3 }, want[][REQUESTS] = { { 0, 2, 3, 1 }, { 0, 1, 3, 2 } };
    for (int k = 0; k < 2; k++) {
        struct studio *studio = open_studio(1, 1);
        clients[3].caller = 1;
        clients[3].request.latent_width = widths[k];
        for (int i = 0; i < REQUESTS; i++)
            admit(studio, i);
        finish(studio, "two callers");
        for (int i = 0; i < REQUESTS; i++)
            CHECK(clients[i].ended_as == want[k][i],
                "width %d: request %d ended as number %d, not "
                "%d",
                widths[k], i, clients[i].ended_as, want[k][i]);
    }
}

struct seen {
    double left_s[2];
    int requests[2];
};

static void see(uint64_t caller, double left_s, void *user) {
    struct seen *seen = user;
    seen->left_s[caller] += left_s;
    seen->requests[caller]++;
}

/* The remaining time is estimated from the pace so far, and shrinks with each evaluation. */
static void work_can_be_looked_at(void) {
    struct studio *studio = open_studio(1, 1);
    struct error err = { 0 };
    struct seen seen = { 0 };
    clients[3].caller = 1;
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    studio_visit_work(studio, see, &seen);
    CHECK(seen.requests[0] == 3 && seen.requests[1] == 1 && seen.left_s[0] == 0,
        "at the start the studio has %d and %d requests and expects %g s of work", seen.requests[0],
        seen.requests[1], seen.left_s[0]);
    CHECK(studio_work(studio, &err), "%s", err.message);
    seen = (struct seen){ 0 };
    const double one_s = studio_visit_work(studio, see, &seen);
    CHECK(one_s > 0 && fabs(seen.left_s[1] / one_s - 1) < 1e-9,
        "the work left for one request is %g s, not %g", seen.left_s[1], one_s);
    const double of_three = (3.0 * (STEPS + 1) - 1) / (STEPS + 1);
    CHECK(fabs(seen.left_s[0] / one_s - of_three) < 1e-9,
        "the work left for three requests, less one evaluation, is %g times that of one",
        seen.left_s[0] / one_s);
    finish(studio, "looked at");
}

static void who_gives_up_ends_alone(void) {
    struct studio *studio = open_studio(1, 1);
    struct error err = { 0 };
    clients[0].cancel_at = 2;
    clients[1].cancel = true;                  /* while the request waits */
    clients[2].request.asked.timeout_s = 1e-9; /* too */
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    CHECK(studio_work(studio, &err) && clients[1].done && clients[2].done && !clients[0].done,
        "cancelled requests that wait do not end before the next unit of work");
    CHECK(clients[1].begun == 0 && clients[2].begun == 0,
        "a cancelled request that waited was begun");
    finish(studio, "given up");
    check_code("given up", 0, ERROR_CANCELLED);
    check_code("given up", 1, ERROR_CANCELLED);
    check_code("given up", 2, ERROR_TIMEOUT);
    check_code("given up", 3, ERROR_NONE);
    CHECK(clients[0].step == 2, "cancelled at %d", clients[0].step);
}

static void a_lost_device_ends_all(void) {
    struct studio *studio = open_studio(2, 1);
    struct error err = { 0 };
    for (int i = 0; i < REQUESTS; i++)
        admit(studio, i);
    CHECK(studio_work(studio, &err), "%s", err.message);
    stage.culprit = clients[0].request.asked.seed;
    stage.culprit_code = ERROR_DEVICE_LOST;
    CHECK(!studio_work(studio, &err) && err.code == ERROR_DEVICE_LOST, "%s", err.message);
    finish(studio, "lost");
    for (int i = 0; i < REQUESTS; i++)
        check_code("lost", i, ERROR_DEVICE_LOST);
}

/* The images of one request share calls and are answered together. Each call counts once for the
 * request. */
static void images_of_a_request(void) {
    struct studio *studio = open_studio(4, 1);
    struct error err = { 0 };
    struct generate_result result;
    clients[0].request.images = 6;
    CHECK(studio_generate(studio, &clients[0].request, NULL, &result, &err), "%s", err.message);
    CHECK(result.image_count == 6 && result.timings.steps == 2 * STEPS &&
              result.timings.batch_rows_mean == 6,
        "%d calls of %g rows", result.timings.steps, result.timings.batch_rows_mean);
    for (int i = 0; i < 6; i++)
        CHECK(result.latents[i] == 10 + (float)i, "image %d: %g", i, (double)result.latents[i]);
    generate_result_finish(&result);
    studio_destroy(studio);
}

/* Texts that are encoded between two evaluations count as the text encoder's time, and the wait for
 * the UNet call before them as the UNet's: the fake UNet takes none, the fake texts sleep. */
static void texts_between_evaluations_are_the_text_encoders(void) {
    struct studio *studio = open_studio(1, 1);
    struct error err = { 0 };
    struct generate_result result;
    stage.text_ms = 30;
    CHECK(studio_generate(studio, &clients[0].request, NULL, &result, &err), "%s", err.message);
    const double slept_s = 0.03 * (STEPS - 1);
    printf("texts %.3f s, UNet %.3f s; each slept %.3f s\n", result.timings.text_encoder_s,
        result.timings.unet_s, slept_s);
    CHECK(result.timings.text_encoder_s >= slept_s, "%g s", result.timings.text_encoder_s);
    CHECK(result.timings.unet_s >= slept_s && result.timings.unet_s < 2 * slept_s,
        "the UNet took %g s", result.timings.unet_s);
    generate_result_finish(&result);
    studio_destroy(studio);
}

static void *one_studio(void *unused) {
    (void)unused;
    calls_are_shared();
    nobody_waits_for_a_call_to_fill();
    less_memory_is_a_narrower_call();
    a_failed_call_is_the_culprits();
    damaged_latents_are_their_own();
    room_comes_when_others_leave();
    room_is_kept_for_whose_turn_it_is();
    callers_take_turns();
    work_can_be_looked_at();
    who_gives_up_ends_alone();
    a_lost_device_ends_all();
    images_of_a_request();
    texts_between_evaluations_are_the_text_encoders();
    return NULL;
}

int main(void) {
    pthread_t threads[STUDIOS];
    int count = 0;
    one_studio(NULL);
    while (count < STUDIOS && pthread_create(&threads[count], NULL, one_studio, NULL) == 0)
        count++;
    CHECK(count == STUDIOS, "%d threads", count);
    while (count > 0)
        pthread_join(threads[--count], NULL);
    return check_done();
}
