/* How long the pictures of jobs are kept, even if the system's clock is changed. The test moves
 * both clocks instead of sleeping. */
#include "server/generation/results.h"

#include "base/file.h"
#include "engine/training_job/folder.h"
#include "server/generation/orders.h"

#include "tests/check.h"

#include <fcntl.h>
#include <stdlib.h>
#include <time.h>

#define DAY_S INT64_C(86400)
#define MAX_AGE_S 3600

/* set_s: how far the system's clock is changed. passed_s: additional time that has passed. */
static int64_t set_s, passed_s;

int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);

int __wrap_clock_gettime(clockid_t clock, struct timespec *out) {
    const int result = __real_clock_gettime(clock, out);
    out->tv_sec += passed_s + (clock == CLOCK_REALTIME ? set_s : 0);
    return result;
}

/* Makes a job that has succeeded, with one picture in its folder. */
static void draw(struct queue *queue, const char *state, char id[JOB_ID_BYTES]) {
    struct error err = { 0 };
    const struct job_order order = { .type = GENERATE_JOB_TYPE, .request = "{}" };
    struct job job;
    bool known, found;
    CHECK(queue_enqueue(queue, &order, &job, &known, &err), "%s", err.message);
    job_finish(&job);
    CHECK(queue_claim(queue, GENERATE_JOB_TYPE, &job, &found, &err) && found, "%s", err.message);
    CHECK(queue_succeed(queue, job.id, job.attempts, "{\"images\":[{\"bytes\":1}]}", &err), "%s",
        err.message);
    snprintf(id, JOB_ID_BYTES, "%s", job.id);
    job_finish(&job);
    char *folder = job_folder_path(state, id), *images = file_join(folder, "images");
    CHECK(job_folder_make(folder, &err) && job_folder_make(images, &err), "%s", err.message);
    free(images);
    free(folder);
}

static bool has_picture(const char *state, const char *id) {
    char *folder = job_folder_path(state, id), *images = file_join(folder, "images");
    const bool has = file_is_folder(images);
    free(images);
    free(folder);
    return has;
}

static void pictures_age_by_time_that_passes(void) {
    static const int64_t jumps_s[] = { 10 * DAY_S, -10 * DAY_S, 0, 14600 * DAY_S, -9000 * DAY_S,
        0 };
    char state[] = "/tmp/results-test-XXXXXX", first[JOB_ID_BYTES], later[JOB_ID_BYTES];
    struct error err = { 0 };
    struct queue *queue = NULL;
    struct results_ages ages = { 0 };
    CHECK(mkdtemp(state) && queue_open(NULL, &queue, &err), "%s", err.message);
    const struct http_options options = {
        .state_folder = state, .results_max_age_s = MAX_AGE_S, .results_max_bytes = 1000
    };
    draw(queue, state, first);
    results_sweep(queue, &options, &ages);
    const int count = sizeof(jumps_s) / sizeof(jumps_s[0]);
    for (int i = 0; i < count; i++) {
        set_s = jumps_s[i];
        passed_s += 60;
        results_sweep(queue, &options, &ages);
        CHECK(has_picture(state, first), "setting the clock by %lld s removed pictures",
            (long long)set_s);
    }
    /* A picture is drawn, and the clock is changed before the next check. */
    draw(queue, state, later);
    set_s = 10 * DAY_S;
    passed_s += 60;
    results_sweep(queue, &options, &ages);
    CHECK(has_picture(state, later), "a picture is removed after a minute");
    passed_s += MAX_AGE_S - 60 * (count + 1) - 10;
    results_sweep(queue, &options, &ages);
    CHECK(has_picture(state, first), "a picture is removed before it is an hour old");
    passed_s += 20;
    results_sweep(queue, &options, &ages);
    CHECK(!has_picture(state, first), "a picture is not removed after an hour");
    CHECK(has_picture(state, later), "a picture younger than an hour is removed with an older one");
    printf("compared: a picture stays for %d s whatever the clock is set to, and no longer\n",
        MAX_AGE_S);

    /* After a restart the ages of pictures are known only from the system's clock. */
    results_ages_finish(&ages);
    set_s += MAX_AGE_S;
    results_sweep(queue, &options, &ages);
    CHECK(!has_picture(state, later),
        "a picture that is over an hour old at the start is not removed");
    results_ages_finish(&ages);
    queue_destroy(queue);
    file_remove_tree(AT_FDCWD, state);
}

int main(void) {
    pictures_age_by_time_that_passes();
    return check_done();
}
