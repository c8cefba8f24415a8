/* Loading a training job's models beside the engine. A picture that is drawn during the load has
 * its usual pixels. A job in the engine's precision borrows the engine's models, does not write to
 * them, and trains the same bytes. A load that is cancelled ends between two weights. A job whose
 * cache is deleted during training loads its encoders again and trains the same bytes. A job that
 * does not fit is refused, with the number of bytes, before it uses the memory.
 *
 * usage: training_load_test CHECKPOINT PICTURES [limited: also with less memory] */
#include "base/file.h"
#include "base/text/json.h"
#include "engine/loop/pipeline.h"
#include "engine/training_job/training_job.h"
#include "kernels/team.h"
#include "tests/check.h"
#include "tests/engine/base_checksum.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

#define SMALL ", \"resolution\": 64"

static const char *checkpoint, *pictures;

static void must(bool ok, const struct error *err) {
    if (ok)
        return;
    printf("FAIL: %s\n", err->message);
    exit(1);
}

/* --- jobs --- */

/* What jobs find left on their device, shared by so many ranks; 0: what there is. */
static size_t left_bytes;
static int device_ranks;

static void say_left(struct available *out) {
    *out = (struct available){ left_bytes, "as a test says" };
}

/* A callback that is called between the pieces of a load. It can make the load wait at the piece
 * stop_at, and cancel it at the piece end_at. */
struct pieces {
    int count, stop_at, end_at; /* 0: never */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool stopped, may_go_on;
};

static bool between(void *user) {
    struct pieces *p = user;
    if (++p->count == p->stop_at) {
        pthread_mutex_lock(&p->lock);
        p->stopped = true;
        pthread_cond_broadcast(&p->changed);
        while (!p->may_go_on)
            pthread_cond_wait(&p->changed, &p->lock);
        pthread_mutex_unlock(&p->lock);
    }
    return p->count != p->end_at;
}

struct rig {
    struct pipeline_info info;
    struct kernels kernels;
    struct device_memory memory;
    struct train_config config;
    struct pieces pieces;
    struct training_job *job;
    char folder[64], cache[80];
};

/* `more`: further fields of the configuration. `borrows`: offers the pipeline's models to the
 * job. */
static void open_job(
    struct rig *rig, const struct pipeline *pipeline, const char *more, bool borrows) {
    char text[512];
    struct error err = { 0 };
    snprintf(text, sizeof(text),
        "{\"name\": \"n\", \"dataset\": \"d\", \"rank\": 4, \"seed\": 3, \"max_train_steps\": 3, "
        "\"max_train_samples\": 4, \"instance_prompt\": \"a picture\", \"skip_broken_images\": "
        "true%s}",
        more);
    *rig = (struct rig){ .folder = "/tmp/latentd-load-XXXXXX" };
    pthread_mutex_init(&rig->pieces.lock, NULL);
    pthread_cond_init(&rig->pieces.changed, NULL);
    json_t *json = json_parse(text, strlen(text), &err);
    must(json && train_config_parse(json, &rig->config, &err), &err);
    json_decref(json);
    must(mkdtemp(rig->folder), &(struct error){ .message = "no temporary folder" });
    snprintf(rig->cache, sizeof(rig->cache), "%s/cache", rig->folder);
    pipeline_get_info(pipeline, &rig->info);
    rig->kernels = *rig->info.kernels;
    rig->memory = *rig->kernels.memory;
    rig->kernels.memory = &rig->memory;
    if (left_bytes)
        rig->memory.available = say_left;
    const struct training_job_options options = {
        .kernels = left_bytes ? &rig->kernels : rig->info.kernels,
        .device_ranks = device_ranks,
        .model_path = checkpoint,
        .config = &rig->config,
        .dataset = pictures,
        .folder = rig->folder,
        .cache = rig->cache,
        .unet = borrows ? rig->info.unet : NULL,
        .dtype = rig->info.dtype,
        .between = between,
        .user = &rig->pieces,
    };
    must(training_job_open(&options, &rig->job, &err), &err);
}

static void close_job(struct rig *rig) {
    char command[100];
    training_job_close(rig->job);
    train_config_finish(&rig->config);
    snprintf(command, sizeof(command), "rm -r %s", rig->folder);
    CHECK(system(command) == 0, "cannot remove %s", rig->folder);
}

/* Trains to the end. Returns the adapter's bytes; malloc'd. */
static char *train(struct rig *rig, size_t *size) {
    struct error err = { 0 };
    char *bytes;
    for (bool done = false; !done;)
        must(training_job_advance(rig->job, &done, &err), &err);
    must(file_read(training_job_result(rig->job), 1 << 24, &bytes, size, &err), &err);
    return bytes;
}

static void *load_beside(void *user) {
    struct rig *rig = user;
    struct error err = { 0 };
    (void)team_leave();
    must(training_job_load(rig->job, &err), &err);
    return NULL;
}

/* --- pictures --- */

/* Returns the picture's pixels; malloc'd. */
static uint8_t *draw(struct pipeline *pipeline, size_t *size) {
    struct error err = { 0 };
    struct generate_request request;
    struct resolved_request resolved;
    struct generate_result result;
    char prompt[] = "a red boat", *prompts[1] = { prompt };
    generate_request_init(&request);
    request.prompts = prompts;
    request.prompt_count = 1;
    request.num_inference_steps = 3;
    request.seed_given = true;
    must(pipeline_resolve(pipeline, &request, &resolved, &err) &&
             pipeline_generate(pipeline, &resolved, NULL, &result, &err),
        &err);
    *size = (size_t)result.width * (size_t)result.height * 3;
    uint8_t *pixels = result.images[0];
    result.images[0] = NULL;
    generate_result_finish(&result);
    resolved_request_finish(&resolved);
    return pixels;
}

/* --- promises --- */

static void a_picture_is_drawn_in_the_middle(struct pipeline *pipeline, const uint8_t *expected) {
    struct rig rig;
    pthread_t thread;
    size_t size, bytes, again_bytes;
    open_job(&rig, pipeline, SMALL ", \"mixed_precision\": \"bf16\"", true);
    rig.pieces.stop_at = 200;
    CHECK(pthread_create(&thread, NULL, load_beside, &rig) == 0, "cannot start a thread");
    pthread_mutex_lock(&rig.pieces.lock);
    while (!rig.pieces.stopped)
        pthread_cond_wait(&rig.pieces.changed, &rig.pieces.lock);
    pthread_mutex_unlock(&rig.pieces.lock);
    uint8_t *pixels = draw(pipeline, &size);
    CHECK(memcmp(pixels, expected, size) == 0,
        "a picture drawn while a job is loaded has other pixels");
    free(pixels);
    pthread_mutex_lock(&rig.pieces.lock);
    rig.pieces.may_go_on = true;
    pthread_cond_broadcast(&rig.pieces.changed);
    pthread_mutex_unlock(&rig.pieces.lock);
    pthread_join(thread, NULL);
    printf("a picture after %d of %d pieces of a load\n", rig.pieces.stop_at, rig.pieces.count);
    CHECK(rig.pieces.count > 2 * rig.pieces.stop_at, "%d pieces", rig.pieces.count);
    char *trained = train(&rig, &bytes);
    close_job(&rig);
    open_job(&rig, pipeline, SMALL ", \"mixed_precision\": \"bf16\"", true);
    char *again = train(&rig, &again_bytes);
    CHECK(bytes == again_bytes && memcmp(trained, again, bytes) == 0,
        "a job that was loaded beside a picture trains other bytes");
    close_job(&rig);
    free(trained);
    free(again);
}

static void the_engines_models_are_borrowed(struct pipeline *pipeline) {
    struct rig rig;
    struct error err = { 0 };
    uint64_t before, after;
    size_t bytes[2], used[2];
    int pieces[2];
    char *trained[2];
    must(adapters_base_checksum(pipeline_get_adapters(pipeline), &before, &err), &err);
    for (int borrows = 0; borrows < 2; borrows++) {
        open_job(&rig, pipeline, SMALL, borrows);
        const struct device_memory *memory = rig.info.kernels->memory;
        const size_t used_before = memory->used(MEMORY_WEIGHTS);
        must(training_job_load(rig.job, &err), &err);
        used[borrows] = memory->used(MEMORY_WEIGHTS) - used_before;
        pieces[borrows] = rig.pieces.count;
        trained[borrows] = train(&rig, &bytes[borrows]);
        close_job(&rig);
    }
    must(adapters_base_checksum(pipeline_get_adapters(pipeline), &after, &err), &err);
    printf("own models: %.1f MiB in %d pieces; borrowed: %.1f MiB in %d\n",
        (double)used[0] / (1 << 20), pieces[0], (double)used[1] / (1 << 20), pieces[1]);
    CHECK(bytes[0] == bytes[1] && memcmp(trained[0], trained[1], bytes[0]) == 0,
        "borrowed models train other bytes");
    /* A sanitizer's allocator does not report the memory in use. */
    CHECK(pieces[1] < pieces[0] &&
              (!used[0] || used[1] + (size_t)rig.info.weight_bytes / 2 < used[0]),
        "the job loaded models of its own instead of borrowing the engine's");
    CHECK(before == after, "training wrote to the engine's weights");
    free(trained[0]);
    free(trained[1]);
}

static void it_can_be_wanted_back(struct pipeline *pipeline) {
    struct rig rig;
    struct error err = { 0 };
    open_job(&rig, pipeline, SMALL, false);
    rig.pieces.end_at = 300;
    CHECK(
        !training_job_load(rig.job, &err) && err.code == ERROR_CANCELLED && rig.pieces.count == 300,
        "%d pieces: %s", rig.pieces.count, err.message);
    printf("in the middle of it: %s\n", err.message);
    close_job(&rig);
}

/* A job's cache is deleted after the job has dropped its encoders. It loads them again and trains
 * the same bytes. */
static void what_the_cache_loses_is_encoded_again(struct pipeline *pipeline) {
    struct rig rig;
    struct error err = { 0 };
    char *trained[2], command[100];
    size_t bytes[2];
    for (int loses = 0; loses < 2; loses++) {
        open_job(&rig, pipeline, SMALL ", \"center_crop\": true", true);
        int64_t step = 0, steps;
        for (bool done = false; loses && step < 1; training_job_steps(rig.job, &step, &steps))
            must(training_job_advance(rig.job, &done, &err), &err);
        const size_t used = rig.info.kernels->memory->used(MEMORY_WEIGHTS);
        snprintf(command, sizeof(command), "rm -r %s", rig.cache);
        CHECK(!loses || system(command) == 0, "cannot delete the cache");
        trained[loses] = train(&rig, &bytes[loses]);
        const size_t now = rig.info.kernels->memory->used(MEMORY_WEIGHTS);
        if (loses)
            printf(
                "a deleted cache: %.1f MiB are loaded again\n", (double)(now - used) / (1 << 20));
        CHECK(!loses || !now || now > used, "the encoders are still in memory");
        close_job(&rig);
    }
    CHECK(bytes[0] == bytes[1] && memcmp(trained[0], trained[1], bytes[0]) == 0,
        "a job that lost its cache trains other bytes");
    free(trained[0]);
    free(trained[1]);
}

/* The process may grow by 24 MiB. A pass of 512x512 px needs many times as much. */
static void what_does_not_fit_is_refused(struct pipeline *pipeline) {
    struct rig rig;
    struct error err = { 0 };
    struct rlimit before, less;
    unsigned long long pages = 0;
    bool done;
    open_job(&rig, pipeline, ", \"resolution\": 512", true);
    must(training_job_load(rig.job, &err), &err);
    FILE *statm = fopen("/proc/self/statm", "r");
    CHECK(statm && fscanf(statm, "%*u %*u %*u %*u %*u %llu", &pages) == 1, "no statm");
    fclose(statm);
    getrlimit(RLIMIT_DATA, &before);
    less = before;
    less.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + (24u << 20);
    setrlimit(RLIMIT_DATA, &less);
    CHECK(!training_job_advance(rig.job, &done, &err) && err.code == ERROR_NO_MEMORY &&
              strstr(err.message, "MiB") && strstr(err.message, "RLIMIT_DATA"),
        "%s", err.message);
    setrlimit(RLIMIT_DATA, &before);
    printf("too large: %s\n", err.message);
    close_job(&rig);
}

static bool loads(struct pipeline *pipeline, size_t bytes, int ranks, struct error *err) {
    struct rig rig;
    left_bytes = bytes;
    device_ranks = ranks;
    open_job(&rig, pipeline, SMALL, false);
    const bool ok = training_job_load(rig.job, err);
    close_job(&rig);
    left_bytes = 0;
    device_ranks = 0;
    return ok;
}

/* Ranks on one device that is large enough for one of them. */
static void ranks_do_not_count_the_same_memory_twice(struct pipeline *pipeline) {
    struct error err = { 0 };
    size_t needed = 0;
    CHECK(!loads(pipeline, 1, 1, &err), "loaded into 1 byte");
    CHECK(sscanf(err.message, "the job takes %zu MiB", &needed) == 1 && needed > 1, "%s",
        err.message);
    CHECK(loads(pipeline, needed << 20, 1, &err), "%s", err.message);
    CHECK(!loads(pipeline, needed << 20, 2, &err) && err.code == ERROR_NO_MEMORY, "2 ranks fit");
    CHECK_CONTAINS(err.message, "MiB shared by 2 ranks; as a test says");
    printf("%s\n", err.message);
    CHECK(loads(pipeline, needed << 21, 2, &err), "%s", err.message);
}

int main(int argc, char **argv) {
    struct error err = { 0 };
    size_t size;
    if (argc < 3)
        return 2;
    checkpoint = argv[1];
    pictures = argv[2];
    const struct pipeline_options options = {
        .model_path = checkpoint, .device = { .kind = DEVICE_CPU }, .dtype = { .dtype = DTYPE_F32 }
    };
    struct pipeline *pipeline;
    must(pipeline_create(&options, &pipeline, &err), &err);
    uint8_t *pixels = draw(pipeline, &size);
    a_picture_is_drawn_in_the_middle(pipeline, pixels);
    the_engines_models_are_borrowed(pipeline);
    it_can_be_wanted_back(pipeline);
    what_the_cache_loses_is_encoded_again(pipeline);
    ranks_do_not_count_the_same_memory_twice(pipeline);
    if (argc == 4)
        what_does_not_fit_is_refused(pipeline);
    free(pixels);
    pipeline_destroy(pipeline);
    return check_done();
}
