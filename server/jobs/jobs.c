#include "server/jobs/jobs.h"

#include "base/monotonic.h"
#include "base/text/json.h"
#include "server/http/exchange.h"
#include "server/http/route.h"

#include <string.h>

static json_t *time_json(int64_t ms) {
    return ms ? json_real((double)ms * 1e-3) : json_null();
}

/* Parses a text that was JSON when it was stored. */
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

#define HELD_UP_S                                                                                  \
    1.0 /* shorter waits are normal between two pieces of training, and are not                    \
#reported */

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

bool jobs_add_validation_urls(const struct job *job, json_t *validation) {
    const json_int_t step = json_integer_value(json_object_get(validation, "step"));
    json_t *picture;
    size_t i;
    json_array_foreach(json_object_get(validation, "pictures"), i, picture) {
        const char *file = json_string_value(json_object_get(picture, "file"));
        json_t *url = json_sprintf(
            "/jobs/%s/validation/step-%lld/%s", job->id, (long long)step, file ? file : "");
        if (json_object_set_new(picture, "url", url) != 0)
            return false;
    }
    return true;
}

/* --- What routes share --- */

bool jobs_are_kept(const struct exchange *exchange, struct error *err) {
    const struct http_options *options = &exchange->server->options;
    if (options->queue)
        return true;
    if (err)
        *err = options->no_queue;
    return false;
}

static bool is_key(const char *text) {
    const size_t length = strlen(text);
    for (size_t i = 0; i < length; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return false;
    return length > 0 && length <= JOB_KEY_MAX_BYTES;
}

bool jobs_read_key(
    const struct exchange *exchange, char out[JOB_KEY_MAX_BYTES + 1], struct error *err) {
    const char *key = exchange_header(exchange, "Idempotency-Key");
    out[0] = 0;
    if (key && !is_key(key))
        return error_field(err, "Idempotency-Key", key,
            "at most %d printable characters without spaces", JOB_KEY_MAX_BYTES);
    snprintf(out, JOB_KEY_MAX_BYTES + 1, "%s", key ? key : "");
    return true;
}

job_change *jobs_change_of(const struct route *route) {
    if (strcmp(route->suffix, "/cancel") == 0)
        return queue_cancel;
    return strcmp(route->suffix, "/pause") == 0 ? queue_pause : queue_resume;
}

bool jobs_get(struct queue *queue, const char *id, const struct viewer *viewer, struct job *out,
    struct error *err) {
    if (!queue_get(queue, id, out, err))
        return false;
    if (viewer_sees(viewer, out->owner))
        return true;
    job_finish(out);
    return error_set(err, ERROR_NOT_FOUND, "there is no job %.40s", id);
}

bool jobs_get_standing(struct http_server *server, const struct job *job, struct job_standing *out,
    struct error *err) {
    const bool trains = job->state == JOB_RUNNING && strcmp(job->type, JOB_TYPE_TRAIN) == 0;
    out->held_up_s = trains ? engine_held_up_s(server->options.engine) : 0;
    return queue_position(server->options.queue, job, &out->position, err);
}

bool jobs_tell(struct task *task, const struct job *job, struct error *err) {
    struct job_standing standing;
    if (!jobs_get_standing(task->deferred.server, job, &standing, err))
        return false;
    task->json = job_json(job, &standing);
    return task->json;
}
