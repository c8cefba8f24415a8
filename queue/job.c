#include "queue/job.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[JOB_STATE_COUNT] = {
    [JOB_QUEUED] = "queued",
    [JOB_RUNNING] = "running",
    [JOB_PAUSED] = "paused",
    [JOB_SUCCEEDED] = "succeeded",
    [JOB_FAILED] = "failed",
    [JOB_CANCELLED] = "cancelled",
};

const char *job_state_name(enum job_state state) {
    return names[state];
}

bool job_state_from_name(const char *name, enum job_state *out) {
    for (int i = 0; i < JOB_STATE_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (enum job_state)i;
            return true;
        }
    return false;
}

bool job_state_is_end(enum job_state state) {
    return state == JOB_SUCCEEDED || state == JOB_FAILED || state == JOB_CANCELLED;
}

static bool copy_text(const char *text, char **out) {
    *out = text ? strdup(text) : NULL;
    return *out || !text;
}

bool job_copy(const struct job *job, struct job *out, struct error *err) {
    *out = *job;
    const bool copied[] = {
        copy_text(job->type, &out->type),
        copy_text(job->request, &out->request),
        copy_text(job->key, &out->key),
        copy_text(job->body, &out->body),
        copy_text(job->metrics, &out->metrics),
        copy_text(job->result, &out->result),
        copy_text(job->error, &out->error),
    };
    for (size_t i = 0; i < sizeof(copied) / sizeof(copied[0]); i++)
        if (!copied[i]) {
            job_finish(out);
            return error_set(err, ERROR_NO_MEMORY, "no memory for a job");
        }
    return true;
}

void job_finish(struct job *job) {
    free(job->type);
    free(job->request);
    free(job->key);
    free(job->body);
    free(job->metrics);
    free(job->result);
    free(job->error);
    memset(job, 0, sizeof(*job));
}
