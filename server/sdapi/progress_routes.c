/* The progress of the caller's requests of this dialect, and their cancellation: GET
 * /sdapi/v1/progress, POST /sdapi/v1/interrupt and /skip, POST /internal/progress, GET
 * /internal/pending-tasks.
 *
 * AUTOMATIC1111 has only one job, which all its clients share. Here the job is the caller's oldest
 * running request or, if none runs, the caller's oldest request. ?task_id= selects another one. */
#include "base/text/base64.h"
#include "base/text/json.h"
#include "engine/loop/switch.h"
#include "server/generation/generations.h"
#include "server/http/respond.h"
#include "server/sdapi/sdapi.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define TASK_ID_BYTES 160 /* longer ids match no request */

/* --- queries: unknown names are ignored, as in FastAPI --- */

static int from_hex(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* Reads the value of `name`, unescaped and cut to `size`; "" if the query does not have it. */
static void read_query(const char *target, const char *name, char *out, size_t size) {
    const size_t length = strlen(name);
    const char *at = strchr(target, '?');
    size_t used = 0;
    while (at && (strncmp(at + 1, name, length) != 0 || at[1 + length] != '='))
        at = strchr(at + 1, '&');
    for (at = at ? at + 2 + length : ""; *at && *at != '&' && used + 1 < size; at++) {
        const int high = *at == '%' ? from_hex(at[1]) : -1;
        const int low = high >= 0 ? from_hex(at[2]) : -1;
        out[used++] = low >= 0 ? (char)(16 * high + low) : *at == '+' ? ' ' : *at;
        if (low >= 0)
            at += 2;
    }
    out[used] = 0;
}

static bool read_flag(const char *target, const char *name) {
    char value[8];
    read_query(target, name, value, sizeof(value));
    return strcmp(value, "true") == 0 || strcmp(value, "True") == 0 || strcmp(value, "1") == 0;
}

/* --- finding requests --- */

/* Returns the id by which clients know the request. */
static const char *id_of(const struct generation_look *look) {
    return look->task_id[0] ? look->task_id : look->id;
}

/* Lists the caller's requests of this dialect in order of arrival. *out is malloc'd; finish each
 * entry. Returns the count, -1 when memory is short. */
static int list_ours(struct exchange *exchange, struct generation_look **out) {
    int ours = 0;
    const int count = generations_list(exchange->server->generations, exchange->caller, out);
    for (int i = 0; i < count; i++) {
        if (strcmp((*out)[i].dialect, dialect_sdapi.name) == 0)
            (*out)[ours++] = (*out)[i];
        else
            generation_look_finish(&(*out)[i]);
    }
    return count < 0 ? count : ours;
}

static void free_looks(struct generation_look *looks, int count) {
    for (int i = 0; i < count; i++)
        generation_look_finish(&looks[i]);
    free(looks);
}

/* Finds the request with this id. If `id` is "", finds the first running request, or if none runs,
 * the first of all. */
static bool choose(struct exchange *exchange, const char *id, struct generation_look *out) {
    struct generation_look *looks = NULL;
    const int count = list_ours(exchange, &looks);
    int found = -1;
    for (int i = 0; i < count && found < 0; i++)
        if (id[0] ? strcmp(id, looks[i].task_id) == 0 || strcmp(id, looks[i].id) == 0
                  : looks[i].progress.running)
            found = i;
    if (found < 0 && !id[0] && count > 0)
        found = 0;
    if (found >= 0) {
        *out = looks[found];
        memset(&looks[found], 0, sizeof(looks[found]));
    }
    free_looks(looks, count);
    return found >= 0;
}

/* Returns the progress as AUTOMATIC1111 reports it: 0.01 more than the share that is done, because
 * 0 would mean idle. */
static double share_done(const struct generation_progress *p) {
    const double share = 0.01 + (p->steps > 0 ? (double)p->step / p->steps : 0);
    return share < 1 ? share : 1;
}

static json_t *preview_json(const struct preview *preview, const char *prefix) {
    char *text = preview ? base64_encode(preview->jpeg, preview->size, NULL) : NULL;
    json_t *json = text ? json_sprintf("%s%s", prefix, text) : json_null();
    free(text);
    return json;
}

/* --- GET /sdapi/v1/progress --- */

/* The work in progress: a request (`look`; NULL: none) or a switch of the model. A switch is
 * reported to every caller, because the client that began it asks here again and again until
 * nothing is in progress. */
struct sdapi_work {
    const struct generation_look *look;
    bool switching;
    double share;
};

static struct sdapi_work work_of(struct exchange *exchange, const struct generation_look *look) {
    struct model_switch s = { 0 };
    if (look)
        return (struct sdapi_work){ look, false, share_done(&look->progress) };
    engine_get_switch(exchange->server->options.engine, &s);
    if (s.state != SWITCH_CHECKING && s.state != SWITCH_DRAINING && s.state != SWITCH_LOADING)
        return (struct sdapi_work){ 0 };
    return (struct sdapi_work){ NULL, true, 0.01 + 0.98 * s.progress };
}

static json_t *state_json(const struct sdapi_work *work) {
    const struct generation_look *look = work->look;
    char begun[32] = "0";
    struct tm local;
    const time_t when = look ? time(NULL) - (time_t)look->progress.elapsed_s : 0;
    if (look && localtime_r(&when, &local))
        strftime(begun, sizeof(begun), "%Y%m%d%H%M%S", &local);
    const int images = look && look->images > 0 ? look->images : 1;
    return json_pack("{s:b, s:b, s:b, s:s, s:i, s:s, s:i, s:i, s:i}", "skipped", 0, "interrupted",
        0, "stopping_generation", 0, "job",
        look              ? "generation"
        : work->switching ? "load model"
                          : "",
        "job_count", look || work->switching, "job_timestamp", begun, "job_no", 0, "sampling_step",
        look ? look->progress.step / images : 0, "sampling_steps",
        look ? look->progress.steps / images : 0);
}

static enum MHD_Result progress(struct exchange *exchange) {
    struct generation_look look = { 0 };
    char id[TASK_ID_BYTES];
    read_query(exchange->target, "task_id", id, sizeof(id));
    const bool skip = read_flag(exchange->target, "skip_current_image");
    const bool found = choose(exchange, id, &look);
    const struct sdapi_work work = work_of(exchange, found ? &look : NULL);
    const double eta_s = found && look.progress.eta_s > 0 ? look.progress.eta_s : 0;
    json_t *json = json_pack("{s:f, s:f, s:o, s:o, s:n, s:o}", "progress", work.share,
        "eta_relative", eta_s, "state", state_json(&work), "current_image",
        skip ? json_null() : preview_json(look.preview, ""), "textinfo", "current_task",
        found ? json_string(id_of(&look)) : json_null());
    generation_look_finish(&look);
    return respond_json(exchange, 200, json);
}

/* --- POST /sdapi/v1/interrupt and /skip --- */

static enum MHD_Result interrupt(struct exchange *exchange) {
    struct generation_look look = { 0 };
    char id[TASK_ID_BYTES];
    const struct viewer viewer = viewer_of(exchange);
    read_query(exchange->target, "task_id", id, sizeof(id));
    if (choose(exchange, id, &look))
        generations_cancel(exchange->server->generations, &viewer, look.id);
    generation_look_finish(&look);
    return respond_json(exchange, 200, json_object());
}

/* --- /internal --- */

struct internal_request {
    char id[TASK_ID_BYTES];
    json_int_t preview;
    bool wants_preview;
};

static bool read_internal(
    const struct exchange *exchange, struct internal_request *out, struct error *err) {
    struct error why;
    json_t *body = json_parse_request(exchange->body, exchange->body_size, &why);
    const json_t *id = json_object_get(body, "id_task");
    const json_t *preview = json_object_get(body, "id_live_preview");
    bool ok = body || error_field(err, "body", "what came", "JSON; %.400s", why.message);
    if (ok && !json_is_string(id))
        ok = json_bad_field("id_task", id, "a valid string", err);
    if (ok && preview && !json_is_integer(preview))
        ok = json_bad_field("id_live_preview", preview, "a valid integer", err);
    if (ok) {
        snprintf(out->id, sizeof(out->id), "%s", json_string_value(id));
        out->preview = preview ? json_integer_value(preview) : -1;
        out->wants_preview = !json_is_false(json_object_get(body, "live_preview"));
    }
    json_decref(body);
    return ok;
}

/* Returns "In queue: 2/5": the request's position among the caller's waiting requests, and their
 * number. */
static json_t *place_json(struct exchange *exchange, const struct generation_look *look) {
    struct generation_look *looks = NULL;
    const int count = list_ours(exchange, &looks);
    int place = 0, waiting = 0;
    for (int i = 0; i < count; i++) {
        waiting += !looks[i].progress.running;
        if (strcmp(looks[i].id, look->id) == 0)
            place = waiting;
    }
    free_looks(looks, count);
    return json_sprintf("In queue: %d/%d", place, waiting);
}

static enum MHD_Result internal_progress(struct exchange *exchange) {
    struct generation_look look = { 0 };
    struct internal_request asked;
    struct error err = { 0 };
    if (!read_internal(exchange, &asked, &err))
        return respond_error(exchange, &err);
    const bool found = asked.id[0] && choose(exchange, asked.id, &look);
    const bool active = found && look.progress.running, queued = found && !active;
    const bool completed = !found && generations_has_ended(
                                         exchange->server->generations, exchange->caller, asked.id);
    const bool fresh = active && asked.wants_preview && look.preview &&
                       (json_int_t)look.preview->number != asked.preview;
    const json_int_t number = active && look.preview ? (json_int_t)look.preview->number : -1;
    json_t *place = queued ? place_json(exchange, &look) : json_string(active ? "" : "Waiting...");
    json_t *json = json_pack("{s:b, s:b, s:b, s:o, s:o, s:o, s:I, s:o}", "active", active, "queued",
        queued, "completed", completed, "progress",
        active ? json_real(share_done(&look.progress)) : json_null(), "eta",
        active && look.progress.eta_s >= 0 ? json_real(look.progress.eta_s) : json_null(),
        "live_preview", preview_json(fresh ? look.preview : NULL, "data:image/jpeg;base64,"),
        "id_live_preview", number, "textinfo", place);
    generation_look_finish(&look);
    return respond_json(exchange, 200, json);
}

static enum MHD_Result pending_tasks(struct exchange *exchange) {
    struct generation_look *looks = NULL;
    const int count = list_ours(exchange, &looks);
    json_t *tasks = json_array();
    bool ok = tasks && count >= 0;
    for (int i = 0; ok && i < count; i++)
        if (!looks[i].progress.running)
            ok = json_array_append_new(tasks, json_string(id_of(&looks[i]))) == 0;
    free_looks(looks, count);
    const int waiting = (int)json_array_size(tasks);
    json_t *json = ok ? json_pack("{s:i, s:O}", "size", waiting, "tasks", tasks) : NULL;
    json_decref(tasks);
    return respond_json(exchange, 200, json);
}

const struct route route_sdapi_progress = { .path = "/sdapi/v1/progress",
    .dialect = &dialect_sdapi,
    .methods = { { "GET", .handle = progress, .about = "How far the caller's oldest request is",
        .returns = "SdapiProgress", .query = "skip_current_image:boolean task_id" } } };

const struct route route_sdapi_interrupt = { .path = "/sdapi/v1/interrupt",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", sdapi_json_or_none, .handle = interrupt,
        .about = "Ends the caller's oldest request", .query = "task_id", .takes = "{...}",
        .returns = "{}" } } };

const struct route route_sdapi_skip = { .path = "/sdapi/v1/skip",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", sdapi_json_or_none, .handle = interrupt,
        .about = "Ends the caller's oldest request", .query = "task_id", .takes = "{...}",
        .returns = "{}" } } };

const struct route route_internal_progress = { .path = "/internal/progress",
    .dialect = &dialect_sdapi,
    .methods = { { "POST", content_types_json, .handle = internal_progress,
        .about = "How far one request is",
        .takes = "{id_task: string, id_live_preview?: integer, live_preview?: boolean, ...}",
        .returns = "{active: boolean, queued: boolean, completed: boolean, "
                   "progress: number|null, eta: number|null, live_preview: string|null, "
                   "id_live_preview: integer, textinfo: string|null}" } } };

const struct route route_internal_pending_tasks = { .path = "/internal/pending-tasks",
    .dialect = &dialect_sdapi,
    .methods = { { "GET", .handle = pending_tasks, .about = "Which of the caller's requests wait",
        .returns = "{size: integer, tasks: [string]}" } } };
