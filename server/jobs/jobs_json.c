#include "server/jobs/jobs_json.h"

#include "base/monotonic.h"
#include "base/text/json.h"

#include <string.h>

static json_t *time_json(int64_t ms) {
    return ms ? json_real((double)ms * 1e-3) : json_null();
}

/* A text that was JSON when it was stored. */
static json_t *text_json(const char *text) {
    json_t *json = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    return json ? json : json_null();
}

static double seconds_at_work(const struct job *job) {
    int64_t ms = job->running_ms;
    if (job->state == JOB_RUNNING)
        ms += monotonic_ms() - job->since_ms;
    return (double)ms * 1e-3;
}

static json_t *wish_json(const struct job *job) {
    return job->wish == JOB_CANCEL  ? json_string("cancel")
           : job->wish == JOB_PAUSE ? json_string("pause")
                                    : json_null();
}

#define HELD_UP_S 1.0 /* shorter waits are those between any two pieces of work */

json_t *job_summary_json(const struct job *job, const struct job_standing *standing) {
    char url[64], events_url[80];
    snprintf(url, sizeof(url), "/jobs/%s", job->id);
    snprintf(events_url, sizeof(events_url), "%s/events", url);
    const bool has_eta = job->state == JOB_RUNNING && job->eta_s >= 0;
    const bool is_held_up = standing->held_up_s >= HELD_UP_S;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:o, s:o, s:i, s:I, s:I, s:o, s:f, s:o, s:o, s:i, s:o, s:o, s:o,"
        " s:o, s:o, s:s, s:s}",
        "id", job->id, "type", job->type, "owner", job->owner, "state", job_state_name(job->state),
        "asked_to", wish_json(job), "position",
        standing->position ? json_integer(standing->position) : json_null(), "priority",
        job->priority, "step", (json_int_t)job->step, "steps", (json_int_t)job->steps, "eta_s",
        has_eta ? json_real(job->eta_s) : json_null(), "seconds", seconds_at_work(job), "held_up_s",
        is_held_up ? json_real(standing->held_up_s) : json_null(), "metrics",
        text_json(job->metrics), "attempts", job->attempts, "created_at",
        time_json(job->created_ms), "started_at", time_json(job->started_ms), "finished_at",
        time_json(job->finished_ms), "result", text_json(job->result), "error",
        text_json(job->error), "url", url, "events_url", events_url);
}

json_t *job_json(const struct job *job, const struct job_standing *standing) {
    json_t *json = job_summary_json(job, standing);
    if (json)
        json_object_set_new(json, "request", text_json(job->request));
    return json;
}
