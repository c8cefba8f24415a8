/* An engine without a model, for testing what stands above it: the queue, the states and the
 * promises of engine/engine.h are kept, only the pictures are stripes of the seed.
 *
 * The model path sets its pace: "fake,load_ms=300,step_ms=20,queue=2,fail_load". A prompt of
 * "fail:device", "fail:memory" or "fail:internal" fails so; "warn:TEXT" draws with that warning. */
#include "engine/engine.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_SIZE 64

struct engine_ticket {
    struct engine_ticket *next;
    struct generate_request request;
    struct engine_callbacks callbacks;
    struct timespec submitted;
    bool cancelled;
    int references; /* the engine's and the caller's */
};

struct engine {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct engine_ticket *first;
    int waiting, drawing, queue_max;
    int load_ms, step_ms;
    bool fail_load, drain;
    enum engine_state state;
    char *model_path;
    json_t *scheduler;
};

static int setting(const char *path, const char *name) {
    const char *found = strstr(path, name);
    return found ? atoi(found + strlen(name)) : -1;
}

static double seconds_since(const struct timespec *then) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - then->tv_sec) + (double)(now.tv_nsec - then->tv_nsec) / 1e9;
}

static void sleep_ms(int ms) {
    const struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&time, NULL);
}

static void unref(struct engine_ticket *ticket) {
    bool last = __atomic_sub_fetch(&ticket->references, 1, __ATOMIC_ACQ_REL) == 0;
    if (!last)
        return;
    generate_request_finish(&ticket->request);
    free(ticket);
}

static bool failure(const char *prompt, struct error *err) {
    if (strcmp(prompt, "fail:device") == 0)
        return !error_set(err, ERROR_DEVICE, "the device does not answer");
    if (strcmp(prompt, "fail:memory") == 0)
        return !error_set(err, ERROR_NO_MEMORY, "not enough memory for 9 GB");
    if (strcmp(prompt, "fail:internal") == 0)
        return !error_set(err, ERROR_INTERNAL, "the picture holds a NaN");
    return false;
}

static void draw(const struct generate_request *r, struct generate_result *out) {
    memset(out, 0, sizeof(*out));
    out->width = r->width ? r->width : DEFAULT_SIZE;
    out->height = r->height ? r->height : DEFAULT_SIZE;
    out->image_count = r->prompt_count * r->num_images;
    out->latent_channels = 4;
    out->latent_width = out->width / 8;
    out->latent_height = out->height / 8;
    out->seeds = calloc((size_t)out->image_count, sizeof(*out->seeds));
    size_t latent = (size_t)4 * (size_t)out->latent_width * (size_t)out->latent_height;
    out->latents = calloc((size_t)out->image_count * latent, sizeof(float));
    if (!r->latent_output)
        out->images = calloc((size_t)out->image_count, sizeof(*out->images));
    size_t bytes = (size_t)out->width * (size_t)out->height * 3;
    for (int i = 0; i < out->image_count; i++) {
        out->seeds[i] = (r->seed_given ? r->seed : 12345) + (uint64_t)i;
        for (size_t k = 0; k < latent; k++)
            out->latents[(size_t)i * latent + k] = (float)(out->seeds[i] + k);
        if (r->latent_output)
            continue;
        out->images[i] = malloc(bytes);
        for (size_t k = 0; k < bytes; k++)
            out->images[i][k] = (uint8_t)(out->seeds[i] * 31 + k / 64);
    }
    if (strncmp(r->prompts[0], "warn:", 5) == 0) {
        out->warnings = calloc(1, sizeof(char *));
        out->warnings[0] = strdup(r->prompts[0] + 5);
        out->warning_count = 1;
    }
    out->timings.steps = r->num_inference_steps;
}

static bool is_cancelled(struct engine *engine, struct engine_ticket *ticket) {
    pthread_mutex_lock(&engine->mutex);
    bool cancelled = ticket->cancelled;
    pthread_mutex_unlock(&engine->mutex);
    return cancelled;
}

static void serve(struct engine *engine, struct engine_ticket *ticket) {
    struct generate_result result = { 0 };
    struct error err = { 0 };
    const struct generate_request *r = &ticket->request;
    double queue_s = seconds_since(&ticket->submitted);
    bool ok = true;
    for (int step = 0; ok && step < r->num_inference_steps; step++) {
        if (engine->step_ms > 0)
            sleep_ms(engine->step_ms);
        if (is_cancelled(engine, ticket))
            ok = error_set(&err, ERROR_CANCELLED, "cancelled");
        else if (r->timeout_s > 0 && seconds_since(&ticket->submitted) > r->timeout_s)
            ok = error_set(&err, ERROR_TIMEOUT, "not done after %g s", r->timeout_s);
    }
    ok = ok && !failure(r->prompts[0], &err);
    if (ok) {
        draw(r, &result);
        result.timings.queue_s = queue_s;
        result.timings.total_s = seconds_since(&ticket->submitted);
    }
    ticket->callbacks.done(ok ? &result : NULL, ok ? NULL : &err, ticket->callbacks.user);
}

static void *run(void *argument) {
    struct engine *engine = argument;
    if (engine->load_ms > 0)
        sleep_ms(engine->load_ms);
    pthread_mutex_lock(&engine->mutex);
    if (engine->state == ENGINE_LOADING)
        engine->state = engine->fail_load ? ENGINE_FAILED : ENGINE_READY;
    for (;;) {
        while (!engine->first && engine->state != ENGINE_STOPPING)
            pthread_cond_wait(&engine->changed, &engine->mutex);
        struct engine_ticket *ticket = engine->first;
        if (!ticket)
            break;
        engine->first = ticket->next;
        engine->waiting--;
        engine->drawing++;
        pthread_mutex_unlock(&engine->mutex);
        serve(engine, ticket);
        unref(ticket);
        pthread_mutex_lock(&engine->mutex);
        engine->drawing--;
    }
    pthread_mutex_unlock(&engine->mutex);
    return NULL;
}

bool engine_create(const struct engine_options *options, struct engine **out, struct error *err) {
    static const char json[] =
        "{\"_class_name\": \"PNDMScheduler\", \"beta_start\": 0.00085, \"beta_end\": 0.012,"
        " \"beta_schedule\": \"scaled_linear\", \"num_train_timesteps\": 1000,"
        " \"set_alpha_to_one\": false, \"skip_prk_steps\": true, \"steps_offset\": 1,"
        " \"clip_sample\": false, \"trained_betas\": null}";
    const char *path = options->pipeline.model_path;
    if (strncmp(path, "fake", 4) != 0)
        return error_set(err, ERROR_NOT_FOUND, "%s: not a model of the fake engine", path);
    struct engine *engine = calloc(1, sizeof(*engine));
    engine->model_path = strdup(path);
    engine->load_ms = setting(path, "load_ms=");
    engine->step_ms = setting(path, "step_ms=");
    int queue = setting(path, "queue=");
    engine->queue_max = queue >= 0 ? queue : options->queue_max;
    engine->fail_load = strstr(path, "fail_load") != NULL;
    engine->scheduler = json_loads(json, 0, NULL);
    pthread_mutex_init(&engine->mutex, NULL);
    pthread_cond_init(&engine->changed, NULL);
    pthread_create(&engine->thread, NULL, run, engine);
    *out = engine;
    return true;
}

void engine_destroy(struct engine *engine, bool drain) {
    if (!engine)
        return;
    pthread_mutex_lock(&engine->mutex);
    engine->state = ENGINE_STOPPING;
    for (struct engine_ticket *t = engine->first; t && !drain; t = t->next)
        t->cancelled = true;
    pthread_cond_signal(&engine->changed);
    pthread_mutex_unlock(&engine->mutex);
    pthread_join(engine->thread, NULL);
    json_decref(engine->scheduler);
    free(engine->model_path);
    free(engine);
}

enum engine_state engine_get_state(struct engine *engine, struct error *why_failed) {
    pthread_mutex_lock(&engine->mutex);
    enum engine_state state = engine->state;
    pthread_mutex_unlock(&engine->mutex);
    if (state == ENGINE_FAILED)
        error_set(why_failed, ERROR_NOT_FOUND, "fake: told to fail");
    return state;
}

bool engine_get_info(struct engine *engine, struct pipeline_info *out) {
    *out = (struct pipeline_info){
        .model_path = engine->model_path,
        .device = "cpu",
        .dtype = DTYPE_F32,
        .activation_dtype = DTYPE_F32,
        .default_width = DEFAULT_SIZE,
        .default_height = DEFAULT_SIZE,
        .max_tokens = 77,
        .default_scheduler = "pndm",
        .prediction_type = "epsilon",
        .scheduler_json = engine->scheduler,
        .load_s = 0.001 * engine->load_ms,
        .weight_bytes = 123456789,
    };
    return engine_get_state(engine, NULL) == ENGINE_READY;
}

int engine_queue_depth(struct engine *engine) {
    pthread_mutex_lock(&engine->mutex);
    int depth = engine->waiting + engine->drawing;
    pthread_mutex_unlock(&engine->mutex);
    return depth;
}

bool engine_submit(struct engine *engine, struct generate_request *request,
    const struct engine_callbacks *callbacks, struct engine_ticket **out, struct error *err) {
    struct engine_ticket *ticket = calloc(1, sizeof(*ticket));
    pthread_mutex_lock(&engine->mutex);
    bool ok = true;
    if (engine->state != ENGINE_READY)
        ok = error_set(err, ERROR_UNAVAILABLE, "the engine is not ready");
    else if (engine->waiting >= engine->queue_max)
        ok = error_set(err, ERROR_BUSY, "%d requests are waiting already", engine->waiting);
    if (ok) {
        ticket->request = *request;
        memset(request, 0, sizeof(*request));
        ticket->callbacks = *callbacks;
        ticket->references = out ? 2 : 1;
        clock_gettime(CLOCK_MONOTONIC, &ticket->submitted);
        struct engine_ticket **end = &engine->first;
        while (*end)
            end = &(*end)->next;
        *end = ticket;
        engine->waiting++;
        if (out)
            *out = ticket;
        pthread_cond_signal(&engine->changed);
    } else {
        free(ticket);
    }
    pthread_mutex_unlock(&engine->mutex);
    return ok;
}

void engine_cancel(struct engine *engine, struct engine_ticket *ticket) {
    pthread_mutex_lock(&engine->mutex);
    ticket->cancelled = true;
    pthread_mutex_unlock(&engine->mutex);
}

void engine_ticket_release(struct engine_ticket *ticket) {
    if (ticket)
        unref(ticket);
}
