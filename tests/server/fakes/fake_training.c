/* A trainer without a model, for tests of the real queue and daemon. It only counts steps. Its
 * checkpoint is a file with the number of the last step, from which it resumes. The name of the
 * data set sets its pace and its failures: "fake,step_ms=5,fail_at=12,kill_at=15,talk=100".
 *
 * fail_at: the step at which it fails. kill_at: from this step on the process kills itself, if the
 * job has a checkpoint.
 * talk: size in bytes of an event that is added after each step. */
#include "base/file.h"
#include "base/text/json.h"
#include "engine/loop/training.h"
#include "train/config.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The mutex guards the other fields. */
struct training {
    char *folder;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct job_claim *claim;
    bool ending;
};

struct plan {
    int steps, step_ms, checkpoint_every, fail_at, kill_at, talk;
};

static int setting(const char *text, const char *name) {
    const char *found = strstr(text, name);
    return found ? (int)strtol(found + strlen(name), NULL, 10) : 0;
}

static bool read_plan(const char *request, struct plan *out, struct error *err) {
    struct train_config config;
    json_t *json = json_parse(request, strlen(request), err);
    const bool ok = json && train_config_parse(json, &config, err);
    json_decref(json);
    if (!ok)
        return false;
    const char *dataset = config.dataset;
    *out = (struct plan){ .steps = (int)config.max_train_steps,
        .step_ms = setting(dataset, "step_ms="),
        .checkpoint_every = (int)config.checkpointing_steps,
        .fail_at = setting(dataset, "fail_at="),
        .kill_at = setting(dataset, "kill_at="),
        .talk = setting(dataset, "talk=") };
    const bool is_fake = strncmp(dataset, "fake", 4) == 0 ||
                         error_field(err, "dataset", dataset, "one whose name begins with fake");
    train_config_finish(&config);
    return is_fake;
}

static bool check(void *user, const char *request, struct error *err) {
    struct plan plan;
    (void)user;
    return read_plan(request, &plan, err);
}

static void sleep_ms(int ms) {
    const struct timespec time = { ms / 1000, ms % 1000 * 1000000L };
    nanosleep(&time, NULL);
}

static char *checkpoint_path(const struct training *t, const struct job *job) {
    char name[64];
    snprintf(name, sizeof(name), "%s.step", job->id);
    return file_join(t->folder, name);
}

static int last_checkpoint(const struct training *t, const struct job *job) {
    char *path = checkpoint_path(t, job), *text = NULL;
    size_t size;
    int step = 0;
    if (file_read(path, 64, &text, &size, NULL))
        step = (int)strtol(text, NULL, 10);
    free(text);
    free(path);
    return step;
}

static bool save(struct training *t, struct job_claim *claim, int step, struct error *err) {
    char text[16], data[32];
    char *path = checkpoint_path(t, job_claim_job(claim));
    snprintf(text, sizeof(text), "%d", step);
    const struct file_part part = { text, strlen(text) };
    const bool ok = file_write(path, &part, 1, err);
    free(path);
    snprintf(data, sizeof(data), "{\"step\":%d}", step);
    if (ok)
        job_claim_event(claim, "checkpoint", data);
    return ok;
}

static void talk(struct job_claim *claim, int bytes) {
    char *data = malloc((size_t)bytes + 32);
    if (!data)
        return;
    snprintf(data, (size_t)bytes + 32, "{\"text\":\"%0*d\"}", bytes, 0);
    while (!job_claim_event(claim, "log", data))
        sleep_ms(1);
    free(data);
}

/* Returns false once the job has ended. */
static bool one_step(
    struct training *t, struct job_claim *claim, const struct plan *plan, int step) {
    struct error err;
    char metrics[64];
    sleep_ms(plan->step_ms);
    if (plan->kill_at && step >= plan->kill_at && last_checkpoint(t, job_claim_job(claim)) > 0)
        raise(SIGKILL);
    if (step == plan->fail_at) {
        error_set(&err, ERROR_INTERNAL, "the loss of step %d is not a number", step);
        job_claim_fail(claim, &err);
        return false;
    }
    snprintf(metrics, sizeof(metrics), "{\"loss\":%.4f}", 1.0 / step);
    const struct job_report report = { step, plan->steps,
        0.001 * plan->step_ms * (plan->steps - step), metrics };
    job_claim_report(claim, &report);
    if (plan->talk)
        talk(claim, plan->talk);
    const bool due = plan->checkpoint_every && step % plan->checkpoint_every == 0;
    const enum job_wish wish = job_claim_wish(claim);
    const bool keeps = wish != JOB_GO_ON && wish != JOB_CANCEL;
    if ((due || keeps) && !save(t, claim, step, &err)) {
        job_claim_fail(claim, &err);
        return false;
    }
    return true;
}

static void work_on(struct training *t, struct job_claim *claim) {
    const struct job *job = job_claim_job(claim);
    struct plan plan;
    struct error err;
    if (!read_plan(job->request, &plan, &err)) {
        job_claim_fail(claim, &err);
        return;
    }
    for (int step = last_checkpoint(t, job) + 1; step <= plan.steps; step++) {
        if (job_claim_wish(claim) != JOB_GO_ON) {
            job_claim_stopped(claim);
            return;
        }
        if (!one_step(t, claim, &plan, step))
            return;
    }
    job_claim_succeed(claim, strdup("{\"adapter\":\"pretended\",\"file\":\"none\"}"));
}

static void *run(void *user) {
    struct training *t = user;
    pthread_mutex_lock(&t->mutex);
    while (!t->ending || t->claim) {
        struct job_claim *claim = t->claim;
        t->claim = NULL;
        if (!claim) {
            pthread_cond_wait(&t->changed, &t->mutex);
            continue;
        }
        pthread_mutex_unlock(&t->mutex);
        work_on(t, claim);
        pthread_mutex_lock(&t->mutex);
    }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

static void start(void *user, struct job_claim *claim) {
    struct training *t = user;
    pthread_mutex_lock(&t->mutex);
    t->claim = claim;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
}

static void wake(void *user) {
    (void)user; /* the thread checks before each step anyway */
}

bool training_create(
    const struct training_options *options, struct training **out, struct error *err) {
    struct training *t = calloc(1, sizeof(*t));
    t->folder = strdup(options->folder);
    pthread_mutex_init(&t->mutex, NULL);
    pthread_cond_init(&t->changed, NULL);
    *out = t;
    const struct job_runner runner = {
        .type = "train", .check = check, .start = start, .wake = wake, .user = t
    };
    if (pthread_create(&t->thread, NULL, run, t) != 0)
        return error_set(err, ERROR_NO_MEMORY, "cannot start a thread");
    return dispatcher_add(options->dispatcher, &runner, err);
}

void training_destroy(struct training *t) {
    if (!t)
        return;
    pthread_mutex_lock(&t->mutex);
    t->ending = true;
    pthread_cond_signal(&t->changed);
    pthread_mutex_unlock(&t->mutex);
    pthread_join(t->thread, NULL);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->mutex);
    free(t->folder);
    free(t);
}
